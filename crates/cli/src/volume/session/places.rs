//! The mount points of a volume: `mount` adds one, `umount` removes one, and the volume ends with the last.
//!
//! A mount point that slackwater has not made, such as a bind mount or a copy in another mount namespace, is not one of
//! them: it keeps the volume alive, and the unmount of the last mount point reports it.

use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::mount_table::MountTable;
use slackwater_control::output::shell;
use slackwater_control::protocol::VolumeRef;
use slackwater_control::spec::Transport;
use slackwater_control::spec::wire::Stated;
use slackwater_fuse::mount::MountError;
use slackwater_host::Printable as _;
use slackwater_mount::{MountPoint, MountVolumeError, MountedVolume};

use crate::keeper::protocol::HeldVolume;
use crate::volume::mounting;
use crate::volume::session::{Session, UmountRequest};

/// Whether one of the places is in `mounts`, the table of this process.
pub(super) fn are_known(mounted: &MountedVolume, mounts: &MountTable) -> bool {
    mounted.places().iter().any(|place| match place.is_here() {
        true => mounts.has_slackwater_at(place.path()),
        false => mounted.is_mounted_at(place),
    })
}

impl Session {
    /// Held while a mount point changes.
    pub(super) fn placing(&self) -> MutexGuard<'_, ()> {
        // It guards no data.
        self.placing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mount points, of which there is at least one: the first one where the volume is mounted nowhere.
    pub(super) fn mountpoints(&self) -> Vec<PathBuf> {
        let places = self.mounted().map(|mounted| match &mounted.places()[..] {
            [only] => vec![only.clone()],
            _ => mounted.mounted_places(),
        });
        let paths: Vec<_> = places.iter().flatten().map(|place| place.path().to_path_buf()).collect();
        if paths.is_empty() { vec![self.entry.mountpoint.clone()] } else { paths }
    }

    /// Whether the volume is mounted at `path` as the process `peer` sees it, by a `mount` after the first.
    pub(crate) fn has_place(&self, peer: u32, path: &Path) -> bool {
        self.mounted().is_some_and(|mounted| mounted.places().contains(&place_of(peer, path.to_path_buf())))
    }

    /// Whether an earlier process has mounted the volume at `place`. It may have died before the keeper knew, so the
    /// keeper gets it again.
    pub(crate) fn is_made(&self, place: &MountPoint) -> bool {
        let Some(mounted) = self.mounted() else { return false };
        let _placing = self.placing();
        self.adopt(&mounted, place)
    }

    fn adopt(&self, mounted: &MountedVolume, place: &MountPoint) -> bool {
        let is_made = mounted.is_mounted_at(place);
        if is_made {
            mounted.add_place(place);
            self.record_places(mounted);
        }
        is_made
    }

    /// Mounts the volume at a further mount point, unless `is_repeated` and an earlier process has done so.
    ///
    /// # Errors
    /// `NotMounted`, if the volume has ended or can have no further mount point; `Busy`, if it does not have one of the
    /// stated options.
    ///
    /// # Blocking
    /// While the volume is being mounted.
    pub(crate) fn attach(
        &self,
        place: MountPoint,
        stated: &Stated,
        is_repeated: bool,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let mounted = self.wait_mounted(None, tick)?;
        let _placing = self.placing();
        if is_repeated && self.adopt(&mounted, &place) {
            return Ok(());
        }
        if mounted.is_unmounted() {
            return Err(Failure::new(Reason::NotMounted, "the volume has just been unmounted"));
        }
        if self.is_fenced() {
            return Err(Failure::new(Reason::NotMounted, "the volume was taken over"));
        }
        self.check_options(&mounted, stated)?;
        let attached = mounted.attach(&place);
        self.record_places(&mounted);
        attached.map_err(|error| {
            let failure = mounting::not_mounted(place.path(), &error);
            // The volume has ended, or this user cannot mount a volume twice.
            let is_impossible = matches!(
                &error,
                MountVolumeError::Device(Errno::NOTCONN)
                    | MountVolumeError::Mount(MountError::Kernel(Errno::NOTCONN) | MountError::NoPermission(_))
            );
            if is_impossible { Failure { reason: Reason::NotMounted, ..failure } } else { failure }
        })
    }

    /// Tells the keeper where the volume is mounted, if there is one.
    fn record_places(&self, mounted: &MountedVolume) {
        if let Some(kept) = &self.kept {
            let parts = |place: &MountPoint| (place.path().to_path_buf(), place.namespace().map(Path::to_path_buf));
            kept.set_places(mounted.places().iter().map(parts).collect());
        }
    }

    /// Takes over the mount points that the volume has acquired under a predecessor.
    pub(crate) fn inherit(mounted: &MountedVolume, volume: &HeldVolume) {
        let places = volume.places.iter().cloned().map(|(path, namespace)| MountPoint::again(path, namespace));
        mounted.set_places(places.collect());
    }

    /// A line for each of the options that the volume does not have.
    pub(super) fn contradictions(&self, mounted: &MountedVolume, stated: &Stated) -> Vec<String> {
        let mut own = self.spec().clone();
        if own.volume.transport == Transport::Auto {
            own.volume.transport = if mounted.rings().is_ok() { Transport::Uring } else { Transport::Dev };
        }
        stated.contradictions(&own)
    }

    fn check_options(&self, mounted: &MountedVolume, stated: &Stated) -> Result<(), Failure> {
        let contradictions = self.contradictions(mounted, stated);
        if contradictions.is_empty() {
            return Ok(());
        }
        let (source, mountpoint) = (self.entry.source.name().printable(), self.mountpoints().remove(0));
        let what = format!(
            "{source} is already mounted at {} with other options (pid {})",
            mountpoint.printable(),
            self.entry.pid
        );
        let failure = contradictions.into_iter().fold(Failure::busy(what), Failure::advise);
        let unmount = format!("slackwater umount {}", shell::word(&mountpoint));
        Err(failure.advise(format!("leave them out to mount it here as well, or unmount it first: {unmount}")))
    }

    /// Unmounts for a client, as [`umount_for_client`](Self::umount_for_client): the mount point that `volume` names,
    /// or all of them. With force, it is always all of them.
    pub(super) fn umount_at(
        &self,
        volume: &VolumeRef,
        request: UmountRequest,
        release: &dyn Fn(),
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        if let Some(mounted) = self.mounted()
            && !mounted.is_unmounted()
        {
            let _placing = self.placing();
            match self.asked_place(&mounted, volume) {
                Some(place) if !request.force => {
                    if self.is_one_of_several(&mounted, &place)? {
                        let taken = self.take_away(&mounted, &place, request, tick);
                        self.record_places(&mounted);
                        return taken;
                    }
                }
                _ => self.keep_one_place(&mounted, request, tick)?,
            }
            self.record_places(&mounted);
        }
        self.umount_for_client(request, release, tick)
    }

    /// Detaches the volume from the mount point that `volume` names, or from all of them.
    pub(super) fn detach(&self, volume: &VolumeRef, tick: &mut dyn FnMut(u64, u64)) -> Result<(), Failure> {
        let mounted = self.wait_mounted(None, tick)?;
        let _placing = self.placing();
        let places = match self.asked_place(&mounted, volume) {
            Some(place) => vec![place],
            None => mounted.mounted_places(),
        };
        let places = if places.is_empty() { vec![mounted.place()] } else { places };
        let detached = places.iter().try_for_each(|place| detach_from(&mounted, place));
        self.record_places(&mounted);
        detached
    }

    /// The mount point that a request is about; `None` if it is about the whole volume.
    pub(super) fn asked_place(&self, mounted: &MountedVolume, volume: &VolumeRef) -> Option<MountPoint> {
        let named = volume.place.clone().map(|path| place_of(volume.peer, path));
        // A daemon is asked by a word that is a name or a mount point.
        let word = || volume.mountpoint.clone().map(|path| place_of(volume.peer, path));
        named.or_else(|| word().filter(|place| mounted.places().contains(place)))
    }

    /// Whether the volume has other mount points than `place`. If not, the next unmount of the volume is at `place`.
    ///
    /// # Errors
    /// The volume is mounted, and not at `place`.
    fn is_one_of_several(&self, mounted: &MountedVolume, place: &MountPoint) -> Result<bool, Failure> {
        if mounted.places() == [place.clone()] {
            return Ok(false);
        }
        let others: Vec<_> = mounted.mounted_places().into_iter().filter(|other| other != place).collect();
        match (mounted.is_mounted_at(place), others.first()) {
            (true, Some(_)) => Ok(true),
            (false, Some(other)) => {
                let what = format!("{} is not mounted", place.path().printable());
                let advice = format!("the volume is mounted at {}", other.path().printable());
                Err(Failure::new(Reason::NotMounted, what).advise(advice))
            }
            (_, None) => {
                mounted.move_to(place.clone());
                Ok(false)
            }
        }
    }

    /// Removes one mount point of several.
    fn take_away(
        &self,
        mounted: &MountedVolume,
        place: &MountPoint,
        request: UmountRequest,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        if request.discard {
            let what = format!("the volume at {} has other mount points", place.path().printable());
            return Err(Failure::busy(what).advise("unmount it there first, or use --force to end it everywhere"));
        }
        match self.take_from(mounted, place, request, tick) {
            // The data stays in the cache of the volume, which goes on.
            Err(failure) if request.park && failure.reason == Reason::Deadline => detach_from(mounted, place),
            outcome => outcome,
        }
    }

    /// Flushes, and unmounts the volume at one mount point.
    fn take_from(
        &self,
        mounted: &MountedVolume,
        place: &MountPoint,
        request: UmountRequest,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let taken = self.watch(|| mounted.take_away(place, request.remaining(Duration::ZERO), &|_| {}), tick);
        taken.map_err(|error| mounting::failed_at(place.path(), &error))
    }

    /// Leaves the volume at one mount point at most, which the next unmount removes. With force, that unmount removes
    /// them all.
    pub(super) fn keep_one_place(
        &self,
        mounted: &MountedVolume,
        request: UmountRequest,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        if request.force || mounted.places().len() == 1 {
            return Ok(());
        }
        let mut places = mounted.mounted_places();
        let Some(last) = places.pop() else { return Ok(()) };
        places.iter().try_for_each(|place| self.take_from(mounted, place, request, tick))?;
        mounted.move_to(last);
        Ok(())
    }
}

/// Detaches the volume from `place`. It ends when it is mounted nowhere and no program uses it any more.
fn detach_from(mounted: &MountedVolume, place: &MountPoint) -> Result<(), Failure> {
    mounted.detach_from(place).map_err(|error| mounting::failed_at(place.path(), &error))
}

/// A path of the process `peer`. If that process cannot be examined, it is taken to be in our mount namespace.
pub(super) fn place_of(peer: u32, path: PathBuf) -> MountPoint {
    MountPoint::of_process(peer, path.clone()).unwrap_or_else(|_| MountPoint::here(path))
}
