//! A further mount point of a volume that the daemon has.

use std::sync::Arc;

use crate::commands::daemon::volumes::Volumes;
use crate::commands::mount::attach;
use crate::control::protocol::{EventKind, MountRequest};
use crate::exit::{Failure, Reason};
use crate::registry::Entry;
use crate::volume::front_end::FrontEnd;
use crate::volume::name::VolumeName;
use crate::volume::session::Session;

impl Volumes {
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
        let stated = attach::stated_of_volume(&request.options);
        match session.attach(std::process::id(), entry.mountpoint.clone(), &stated, &mut |_, _| {}) {
            Ok(()) => {}
            Err(failure) if failure.reason == Reason::NotMounted => return Ok(None),
            Err(failure) => return Err(failure),
        }
        let mountpoint = entry.mountpoint.to_string_lossy().into_owned();
        self.shared.events.send(EventKind::Mounted, Some(name.as_str()), mountpoint);
        Ok(session.served().map(|(front_end, _)| (name, front_end)))
    }
}
