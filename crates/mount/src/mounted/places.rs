//! The places of a volume: it can be mounted at more than one, with one super block.
//!
//! A further mount is made as the first one was, with the descriptor of the connection: the kernel then uses the super
//! block that the connection has. So all places have one `st_dev`, one cache in the kernel and one here. Unlike a copy of
//! an existing mount it needs no place where the volume is still mounted: open files are enough.
//!
//! # Invariants
//! L1. The list has the places that were mounted by this process and not taken away. The volume may be gone from one of
//!     them, after an umount(2) by another program. The first of the list is what an unmount of the volume removes.
//! L2. Bind mounts, and copies in other mount namespaces, are not in the list. They keep the volume alive, and an unmount
//!     reports them.
//!
//! # Kernel counterpart
//! `fuse_get_tree`, which finds the super block of an initialised connection.

use rustix::io::Errno;
use slackwater_fuse::mount::{self, MountOptions};

use crate::mounted::deadline::Deadline;
use crate::mounted::point::MountPoint;
use crate::mounted::{MountVolumeError, MountedError, MountedVolume, Progress, Step, UmountRequest};

impl MountedVolume {
    /// Mounts the volume at `point` as well, with the options of its first mount, and read-only as it is now.
    ///
    /// # Errors
    /// It is not mounted there: the volume has ended, or this process may not mount.
    pub fn attach(&self, point: &MountPoint) -> Result<(), MountVolumeError> {
        if self.is_aborted() {
            return Err(MountVolumeError::Device(Errno::NOTCONN));
        }
        let device = self.session.try_clone_fd().map_err(MountVolumeError::Device)?;
        let options = MountOptions { read_only: self.writable.is_read_only(), ..self.options.clone() };
        let mounted = point.visit(move |path| mount::mount_again(&device, path, &options));
        mounted.map_err(MountVolumeError::Device)??;
        self.add_place(point);
        Ok(())
    }

    /// Counts a place where this process, or an earlier one, has mounted the volume.
    pub fn add_place(&self, point: &MountPoint) {
        let mut places = self.places.lock();
        if !places.contains(point) {
            places.push(point.clone());
        }
    }

    /// Takes over the places of an earlier process, of which there is at least one.
    pub fn set_places(&self, places: Vec<MountPoint>) {
        if !places.is_empty() {
            *self.places.lock() = places;
        }
    }

    /// Whether the volume is mounted at `point`, with nothing else on top of it. True also if the processes of its mount
    /// namespace do not answer now.
    pub fn is_mounted_at(&self, point: &MountPoint) -> bool {
        match point.device() {
            Ok(dev) => dev == self.dev,
            Err(errno) => errno == Errno::AGAIN,
        }
    }

    /// Major and minor number of the device of its files, with a colon, as in `/proc/PID/mountinfo`.
    pub fn device(&self) -> String {
        format!("{}:{}", rustix::fs::major(self.dev), rustix::fs::minor(self.dev))
    }

    /// The place that an unmount of the volume removes (L1).
    pub fn place(&self) -> MountPoint {
        self.places.lock()[0].clone()
    }

    /// The places of L1.
    pub fn places(&self) -> Vec<MountPoint> {
        self.places.lock().clone()
    }

    /// The places where the volume is mounted now.
    pub fn mounted_places(&self) -> Vec<MountPoint> {
        self.places().into_iter().filter(|place| self.is_mounted_at(place)).collect()
    }

    /// Makes `place` the one that an unmount of the volume removes.
    pub fn move_to(&self, place: MountPoint) {
        let mut places = self.places.lock();
        places.retain(|other| *other != place);
        places.insert(0, place);
    }

    /// Flushes, and removes the volume from `point`. It stays mounted at its other places.
    ///
    /// # Errors
    /// It is still mounted there, and nothing is lost.
    ///
    /// # Blocking
    /// For the backend, at most until the deadline.
    pub fn take_away(
        &self,
        point: &MountPoint,
        request: UmountRequest,
        progress: &dyn Fn(Progress),
    ) -> Result<(), MountedError> {
        let Some(_only) = self.umount.try_lock() else { return Err(MountedError::InProgress) };
        let deadline = Deadline::begin(&self.sb, request);
        self.check_busy(point)?;
        self.flush(Step::Flushing, &deadline, progress)?;
        self.unmount_when_unused(point)?;
        self.forget(point);
        Ok(())
    }

    /// Removes the volume from `point` without a flush, as `umount --lazy` does.
    ///
    /// # Errors
    /// It is still mounted there.
    pub fn detach_from(&self, point: &MountPoint) -> Result<(), MountedError> {
        point.unmount(true).map_err(MountedError::Unmount)?;
        self.forget(point);
        Ok(())
    }

    /// L1. The last place stays in the list, for messages.
    fn forget(&self, point: &MountPoint) {
        let mut places = self.places.lock();
        if places.len() > 1 {
            places.retain(|place| place != point);
        }
    }
}
