//! What was published of the kernel, before and after its unmounts waited for expedited grace periods: 5000 tmpfs, mounted by one
//! command each and unmounted by one for all; sem. 12.2.

pub(crate) struct Published {
    pub(crate) machine: &'static str,
    pub(crate) mount_all_s: f64,
    pub(crate) umount_all_s: f64,
}

pub(crate) const VOLUMES: f64 = 5000.0;

pub(crate) const PUBLISHED: [Published; 3] = [
    Published { machine: "4 CPUs, normal grace period", mount_all_s: 8.0, umount_all_s: 100.0 },
    Published { machine: "1 CPU, normal grace period", mount_all_s: 18.0, umount_all_s: 36.0 },
    Published { machine: "4 CPUs, expedited", mount_all_s: 8.0, umount_all_s: 0.6 },
];
