//! A remount of the volume: mount(2) of another process makes it read-only or writable.
//!
//! # Steps
//! 1. Check the options that the caller stated, and write everything back before the volume becomes read-only.
//! 2. The caller remounts. The kernel refuses while files are open for writing.
//! 3. Write back what was written since step 1, and record the state for further mount points and for a successor.

use std::collections::BTreeMap;

use slackwater_control::exit::Failure;
use slackwater_control::output::shell;
use slackwater_control::protocol::VolumeRef;
use slackwater_control::spec::settings::READ_ONLY;
use slackwater_control::spec::values::switch;
use slackwater_control::spec::wire::Stated;
use slackwater_host::Printable as _;

use crate::volume::session::Session;

/// The option of a mount that outlives its process.
const KEEP: &str = "keep";

impl Session {
    /// Step 1.
    ///
    /// # Errors
    /// An option contradicts those of the volume; the volume cannot become writable; or data cannot be written back.
    ///
    /// # Blocking
    /// For the source, if the volume is to become read-only.
    pub(super) fn prepare_remount(
        &self,
        read_only: bool,
        mut stated: BTreeMap<String, String>,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let mounted = self.wait_mounted(None, tick)?;
        let mountpoint = self.mountpoints().remove(0);
        let again = format!("unmount it (umount {}), and mount it again", shell::word(&mountpoint));
        let is_kept = stated.remove(KEEP).is_none_or(|_| self.kept.is_some());
        let mut contradictions = self.contradictions(&mounted, &Stated::of_texts(&stated));
        if !is_kept {
            contradictions.push("--keep is on here, and off there".to_owned());
        }
        if !contradictions.is_empty() {
            let what = format!("a remount of {} cannot change its options", mountpoint.printable());
            let failure = contradictions.into_iter().fold(Failure::failed(what), Failure::advise);
            return Err(failure.advise(format!("leave them out; or {again}")));
        }
        if !read_only && self.entry.source.is_reader() {
            let what = format!("{} follows the writer of an object volume", mountpoint.printable());
            return Err(Failure::failed(format!("{what}, and cannot become writable")).advise(again));
        }
        if read_only { self.sync(&mounted, tick) } else { Ok(()) }
    }

    /// Step 3, after a remount at the mount point that `volume` names.
    ///
    /// # Errors
    /// The volume cannot stay writable, or data cannot be written back.
    ///
    /// # Blocking
    /// For the source, if the volume has become read-only.
    pub(super) fn remounted(
        &self,
        volume: &VolumeRef,
        read_only: bool,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let mounted = self.wait_mounted(None, tick)?;
        {
            let _placing = self.placing();
            let place = self.asked_place(&mounted, volume).unwrap_or_else(|| mounted.place());
            mounted.remounted(&place, read_only).map_err(|error| {
                Failure::failed(format!("cannot make {} writable: {error}", place.path().printable()))
                    .advise("unmount it, and mount it without ro")
            })?;
            self.spec().volume.read_only = read_only;
            if let Some(kept) = &self.kept {
                kept.set(READ_ONLY, switch(read_only));
            }
        }
        if read_only { self.sync(&mounted, tick) } else { Ok(()) }
    }
}
