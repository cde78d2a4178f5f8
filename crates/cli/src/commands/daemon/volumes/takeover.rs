//! The volumes of a predecessor.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use slackwater_host::Printable as _;

use super::{Held, Slot, State, Volumes};
use crate::commands::mount::attach;
use crate::exit::Failure;
use crate::keeper::client::InheritedVolume;
use crate::os::detach::detach;
use crate::volume::keeping::{self, not_taken_over, taken_over};
use crate::volume::name::VolumeName;
use crate::volume::session::Session;

/// How long a successor waits for volumes that are being mounted.
const MOUNTED_WITHIN: Duration = Duration::from_secs(10);

impl Volumes {
    /// Takes a volume over.
    ///
    /// # Errors
    /// The cause of the failure; the keeper has the volume as before.
    ///
    /// # Blocking
    /// For the source.
    pub(in crate::commands::daemon) fn take_over(&self, inherited: &InheritedVolume) -> Result<(), Failure> {
        let held = &inherited.volume;
        let keeper = self.shared.keeper.as_ref().ok_or_else(|| not_taken_over("there is no keeper"))?;
        let entry = Arc::new(held.entry.clone().of_successor(keeper.pid));
        let name = VolumeName::new(entry.volume.as_deref().unwrap_or_default())?;
        let reservation = self.reserve(&name, &entry)?;
        let ownership = keeping::ownership(inherited, &self.shared.registry, &entry)?;
        let (session, kept) = (Session::new(entry, self.shared.tally.clone()), keeper.inherited(held));
        let options = held.changed(held.options.clone())?;
        session.set_spec(attach::of_volume(options.clone()));
        session.set_kept(&kept);
        let kept = taken_over(inherited, &kept)?;
        let (source, front_end) = self.open(&name, &session, &options, Some(kept))?;
        Session::inherit(&front_end, held);
        let is_ending = self.serve(reservation, &session, &front_end, Held { source, ownership: ownership.take() });
        // The shutdown has not seen this volume.
        if is_ending { self.umount(&name, &session, true) } else { Ok(()) }
    }

    /// Ends the mount of a volume that cannot be taken over. Its data stays in the arena, and a later mount of the source
    /// writes it back.
    pub(in crate::commands::daemon) fn give_up(&self, inherited: InheritedVolume) {
        let mountpoint = inherited.volume.entry.mountpoint.clone();
        if let Some(keeper) = &self.shared.keeper {
            keeper.inherited(&inherited.volume).ended();
        }
        // The last descriptor of the connection.
        drop(inherited);
        if let Err(error) = detach(&mountpoint) {
            tracing::error!("cannot free {}, the mount point of a volume given up: {error}", mountpoint.printable());
        }
    }

    /// Lets no volume come or go any more, because another process takes all of them over.
    ///
    /// # Blocking
    /// For volumes that are being mounted.
    pub(in crate::commands::daemon) fn refuse_changes(&self) {
        let mut state = self.state();
        state.is_handing_over = true;
        let is_mounting = |state: &mut State| state.by_name.values().any(|slot| matches!(slot, Slot::Reserved(_)));
        let waited = self.changed.wait_timeout_while(state, MOUNTED_WITHIN, is_mounting);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether a volume has this name.
    pub(in crate::commands::daemon) fn has(&self, name: &str) -> bool {
        VolumeName::new(name).is_ok_and(|name| self.state().by_name.contains_key(&name))
    }
}
