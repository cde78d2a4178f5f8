//! The mount points of a volume: `mount` adds one, `umount` removes one, and the volume ends with the last.
//!
//! A mount point that slackwater has not made, such as a bind mount or a copy in another mount namespace, is not one of
//! them: it keeps the volume alive, and the unmount of the last mount point reports it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use slackwater_host::Printable as _;

use crate::control::protocol::VolumeRef;
use crate::exit::{Failure, Reason};
use crate::keeper::protocol::HeldVolume;
use crate::os::mount_table::MountTable;
use crate::output::shell;
use crate::spec::wire::Stated;
use crate::spec::{MountSpec, Transport};
use crate::volume::front_end::{FrontEnd, MountPoint, UmountRequest};
use crate::volume::session::Session;

/// Whether one of the places is in `mounts`, the table of this process.
pub(super) fn are_known(front_end: &FrontEnd, mounts: &MountTable) -> bool {
    front_end.places().iter().any(|place| match place.is_here() {
        true => mounts.has_slackwater_at(place.path()),
        false => front_end.is_mounted_at(place),
    })
}

impl Session {
    /// Held while a mount point changes.
    pub(super) fn placing(&self) -> MutexGuard<'_, ()> {
        // It guards no data.
        self.placing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the options that a further mount of the volume may state.
    pub(crate) fn set_spec(&self, spec: MountSpec) {
        self.state().spec = spec;
    }

    /// The mount points, of which there is at least one: the first one where the volume is mounted nowhere.
    pub(super) fn mountpoints(&self) -> Vec<PathBuf> {
        let front_end = self.state().front_end.clone();
        let places = front_end.map(|front_end| match &front_end.places()[..] {
            [only] => vec![only.clone()],
            _ => front_end.mounted_places(),
        });
        let paths: Vec<_> = places.iter().flatten().map(|place| place.path().to_path_buf()).collect();
        if paths.is_empty() { vec![self.entry.mountpoint.clone()] } else { paths }
    }

    /// Whether the volume is mounted at `path` as the process `peer` sees it, by a `mount` after the first.
    pub(crate) fn has_place(&self, peer: u32, path: &Path) -> bool {
        let front_end = self.state().front_end.clone();
        front_end.is_some_and(|front_end| front_end.places().contains(&place_of(peer, path.to_path_buf())))
    }

    /// Whether an earlier process has mounted the volume at `place`. It may have died before the keeper knew, so the
    /// keeper gets it again.
    pub(crate) fn is_made(&self, place: &MountPoint) -> bool {
        let Some((front_end, _)) = self.served() else { return false };
        let _placing = self.placing();
        self.adopt(&front_end, place)
    }

    fn adopt(&self, front_end: &FrontEnd, place: &MountPoint) -> bool {
        let is_made = front_end.is_mounted_at(place);
        if is_made {
            front_end.add_place(place);
            self.record_places(front_end);
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
        let front_end = self.front_end(None, tick)?;
        let _placing = self.placing();
        if is_repeated && self.adopt(&front_end, &place) {
            return Ok(());
        }
        if front_end.is_unmounted() {
            return Err(Failure::new(Reason::NotMounted, "the volume has just been unmounted"));
        }
        if self.is_fenced() {
            return Err(Failure::new(Reason::NotMounted, "the volume was taken over"));
        }
        self.check_options(&front_end, stated)?;
        let attached = front_end.attach(&place);
        self.record_places(&front_end);
        attached
    }

    /// Tells the keeper where the volume is mounted, if there is one.
    fn record_places(&self, front_end: &FrontEnd) {
        if let Some(kept) = self.kept() {
            let parts = |place: &MountPoint| (place.path().to_path_buf(), place.namespace().map(Path::to_path_buf));
            kept.set_places(front_end.places().iter().map(parts).collect());
        }
    }

    /// Takes over the mount points that the volume has acquired under a predecessor.
    pub(crate) fn inherit(front_end: &FrontEnd, volume: &HeldVolume) {
        let places = volume.places.iter().cloned().map(|(path, namespace)| MountPoint::again(path, namespace));
        front_end.set_places(places.collect());
    }

    /// A line for each of the options that the volume does not have.
    pub(super) fn contradictions(&self, front_end: &FrontEnd, stated: &Stated) -> Vec<String> {
        let mut own = self.state().spec.clone();
        if own.volume.transport == Transport::Auto {
            own.volume.transport = if front_end.rings().is_ok() { Transport::Uring } else { Transport::Dev };
        }
        stated.contradictions(&own)
    }

    fn check_options(&self, front_end: &FrontEnd, stated: &Stated) -> Result<(), Failure> {
        let contradictions = self.contradictions(front_end, stated);
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

    /// Unmounts for a client, as [`umount_for_client`](Self::umount_for_client): the mount point that `volume` names, or
    /// all of them. With force, it is always all of them.
    pub(super) fn umount_at(
        &self,
        volume: &VolumeRef,
        request: UmountRequest,
        park: bool,
        release: &dyn Fn(),
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        if let Some((front_end, _)) = self.served()
            && !front_end.is_unmounted()
        {
            let _placing = self.placing();
            match self.asked_place(&front_end, volume) {
                Some(place) if !request.force => {
                    if self.is_one_of_several(&front_end, &place)? {
                        let taken = self.take_away(&front_end, &place, request, park, tick);
                        self.record_places(&front_end);
                        return taken;
                    }
                }
                _ => self.keep_one_place(&front_end, request, tick)?,
            }
            self.record_places(&front_end);
        }
        self.umount_for_client(request, park, release, tick)
    }

    /// Detaches the volume from the mount point that `volume` names, or from all of them.
    pub(super) fn detach(&self, volume: &VolumeRef, tick: &mut dyn FnMut(u64, u64)) -> Result<(), Failure> {
        let front_end = self.front_end(None, tick)?;
        let _placing = self.placing();
        let detached = match self.asked_place(&front_end, volume) {
            Some(place) => front_end.detach_from(&place),
            None => match front_end.mounted_places() {
                places if places.is_empty() => front_end.detach_from(&front_end.place()),
                places => places.iter().try_for_each(|place| front_end.detach_from(place)),
            },
        };
        self.record_places(&front_end);
        detached
    }

    /// The mount point that a request is about; `None` if it is about the whole volume.
    pub(super) fn asked_place(&self, front_end: &FrontEnd, volume: &VolumeRef) -> Option<MountPoint> {
        let named = volume.place.clone().map(|path| place_of(volume.peer, path));
        // A daemon is asked by a word that is a name or a mount point.
        let word = || volume.mountpoint.clone().map(|path| place_of(volume.peer, path));
        named.or_else(|| word().filter(|place| front_end.places().contains(place)))
    }

    /// Whether the volume has other mount points than `place`. If not, the next unmount of the volume is at `place`.
    ///
    /// # Errors
    /// It is mounted, and not at `place`.
    fn is_one_of_several(&self, front_end: &FrontEnd, place: &MountPoint) -> Result<bool, Failure> {
        if front_end.places() == [place.clone()] {
            return Ok(false);
        }
        let others: Vec<_> = front_end.mounted_places().into_iter().filter(|other| other != place).collect();
        match (front_end.is_mounted_at(place), others.first()) {
            (true, Some(_)) => Ok(true),
            (false, Some(other)) => {
                let what = format!("{} is not mounted", place.path().printable());
                let advice = format!("the volume is mounted at {}", other.path().printable());
                Err(Failure::new(Reason::NotMounted, what).advise(advice))
            }
            (_, None) => {
                front_end.move_to(place.clone());
                Ok(false)
            }
        }
    }

    /// Removes one mount point of several.
    fn take_away(
        &self,
        front_end: &Arc<FrontEnd>,
        place: &MountPoint,
        request: UmountRequest,
        park: bool,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        if request.discard {
            let what = format!("the volume at {} has other mount points", place.path().printable());
            return Err(Failure::busy(what).advise("unmount it there first, or use --force to end it everywhere"));
        }
        match self.watch(|| front_end.take_away(place, request), tick) {
            // The data stays in the cache of the volume, which goes on.
            Err(failure) if park && failure.reason == Reason::Deadline => front_end.detach_from(place),
            outcome => outcome,
        }
    }

    /// Leaves the volume at one mount point at most, which the next unmount removes. With force, that unmount removes
    /// them all.
    pub(super) fn keep_one_place(
        &self,
        front_end: &Arc<FrontEnd>,
        request: UmountRequest,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        if request.force || front_end.places().len() == 1 {
            return Ok(());
        }
        let mut places = front_end.mounted_places();
        let Some(last) = places.pop() else { return Ok(()) };
        places.iter().try_for_each(|place| self.watch(|| front_end.take_away(place, request), tick))?;
        front_end.move_to(last);
        Ok(())
    }
}

/// A path of the process `peer`. If that process cannot be examined, it is taken to be in our mount namespace.
pub(super) fn place_of(peer: u32, path: PathBuf) -> MountPoint {
    MountPoint::of_process(peer, path.clone()).unwrap_or_else(|_| MountPoint::here(path))
}
