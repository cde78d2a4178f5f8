//! A further mount point of a volume that the daemon has.

use std::sync::Arc;

use crate::commands::daemon::volumes::Volumes;
use crate::control::protocol::{EventKind, MountRequest};
use crate::exit::{Failure, Reason};
use crate::registry::Entry;
use crate::spec::wire::Stated;
use crate::volume::endpoints::name_of;
use crate::volume::front_end::{FrontEnd, MountPoint};
use crate::volume::name::VolumeName;
use crate::volume::session::Session;

impl Volumes {
    /// The volume that an earlier process has mounted for this request, if it has.
    pub(super) fn made_before(&self, request: &MountRequest) -> Option<(VolumeName, Arc<FrontEnd>)> {
        if !request.is_repeated {
            return None;
        }
        let place = MountPoint::here(name_of(&request.mountpoint).unwrap_or_else(|_| request.mountpoint.clone()));
        let is_meant = |(name, session): &(VolumeName, Arc<Session>)| {
            session.entry.source.name() == request.source
                && request.name.as_ref().is_none_or(|word| word == name.as_str())
        };
        let (name, session) = self.sessions().into_iter().filter(is_meant).find(|(_, it)| it.is_made(&place))?;
        session.served().map(|(front_end, _)| (name, front_end))
    }

    /// Mounts a volume that this daemon has at a further mount point. `None`, if it does not have it, or has it under
    /// another name.
    ///
    /// # Errors
    /// The volume has other options, or cannot be mounted there.
    pub(super) fn attach(
        &self,
        request: &MountRequest,
        entry: &Entry,
    ) -> Result<Option<(VolumeName, Arc<FrontEnd>)>, Failure> {
        let has_source = |session: &Session| {
            let source = &session.entry.source;
            source.is_same(&entry.source) && source.conflicts_with(&entry.source)
        };
        let found = self.sessions().into_iter().find(|(_, session)| has_source(session));
        let is_meant = |name: &VolumeName| request.name.as_ref().is_none_or(|word| word == name.as_str());
        let Some((name, session)) = found.filter(|(name, _)| is_meant(name)) else { return Ok(None) };
        let stated = Stated::of_volume(request.options.clone());
        match session.attach(MountPoint::here(entry.mountpoint.clone()), &stated, request.is_repeated, &mut |_, _| {}) {
            Ok(()) => {}
            Err(failure) if failure.reason == Reason::NotMounted => return Ok(None),
            Err(failure) => return Err(failure),
        }
        let mountpoint = entry.mountpoint.to_string_lossy().into_owned();
        self.shared.events.send(EventKind::Mounted, Some(name.as_str()), mountpoint);
        Ok(session.served().map(|(front_end, _)| (name, front_end)))
    }
}
