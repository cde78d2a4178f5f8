//! `mount -o remount`: makes a mounted volume read-only or writable, and changes nosuid, nodev and noexec of its mount
//! point. The kernel enforces all of them.
//!
//! Other options cannot change. A line of fstab repeats them, so those that the volume has are accepted.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use slackwater_control::exit::Failure;
use slackwater_control::mountpoint::name_of;
use slackwater_control::output::shell;
use slackwater_control::protocol::Request;
use slackwater_control::spec::settings::READ_ONLY;
use slackwater_control::spec::values::ON;
use slackwater_control::spec::{VolumeSpec, wire};
use slackwater_host::Printable as _;

use crate::arguments::{DaemonSocket, MountArguments};
use crate::commands::long_requests::converse;
use crate::commands::mount_helpers::slackwater_at;
use crate::commands::target::Target;
use crate::volume::arena_file;

/// The options that the kernel applies to the mount point or to the volume.
const OF_THE_KERNEL: [&str; 4] = [READ_ONLY, "nosuid", "nodev", "noexec"];

/// Remounts the volume at the mount point of `arguments`.
///
/// # Errors
/// The volume is not mounted there, an option contradicts its own, its data cannot be written back, or the kernel
/// refuses.
///
/// # Blocking
/// For the source, if the volume is to become read-only.
pub(crate) fn remount(arguments: &MountArguments) -> Result<(), Failure> {
    let word = &arguments.mountpoint;
    let mountpoint = name_of(word).unwrap_or_else(|_| word.clone());
    slackwater_at(&mountpoint)?;
    let target = Target::find(&mountpoint, &DaemonSocket { socket: None })?;
    let mut spec = arguments.spec.clone();
    spec.server.arena = spec.server.arena.as_deref().map(arena_file::named).transpose()?;
    let mut options = wire::texts(&spec);
    options.retain(|name, _| !OF_THE_KERNEL.contains(&name.as_str()));
    if arguments.keep {
        options.insert("keep".to_owned(), ON.to_owned());
    }
    let VolumeSpec { read_only, nosuid, nodev, noexec, .. } = spec.volume;
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, read_only);
    flags.set(MountFlags::NOSUID, nosuid);
    flags.set(MountFlags::NODEV, nodev);
    flags.set(MountFlags::NOEXEC, noexec);
    change(&target, &mountpoint, flags, options)
}

/// Makes the volume read-only at a mount point that is in use, for `umount -r`.
///
/// # Errors
/// The data of the volume cannot be written back, or the kernel refuses.
///
/// # Blocking
/// For the source.
pub(crate) fn make_read_only(target: &Target, mountpoint: &Path) -> Result<(), Failure> {
    let status = statvfs(mountpoint)
        .map_err(|errno| Failure::failed(format!("cannot examine {}: {errno}", mountpoint.printable())))?;
    let mut flags = MountFlags::NOATIME | MountFlags::RDONLY;
    flags.set(MountFlags::NOSUID, status.f_flag.contains(StatVfsMountFlags::NOSUID));
    flags.set(MountFlags::NODEV, status.f_flag.contains(StatVfsMountFlags::NODEV));
    flags.set(MountFlags::NOEXEC, status.f_flag.contains(StatVfsMountFlags::NOEXEC));
    change(target, mountpoint, flags, BTreeMap::new())
}

/// Remounts, between two messages to the process of the mount. `options` are those that must be as they are.
fn change(
    target: &Target,
    mountpoint: &Path,
    flags: MountFlags,
    options: BTreeMap<String, String>,
) -> Result<(), Failure> {
    let read_only = flags.contains(MountFlags::RDONLY);
    let ask = |request| converse(target, &request, "flushing", io::stderr().is_terminal());
    ask(Request::PrepareRemount { read_only, options })?;
    set(mountpoint, flags)?;
    ask(Request::Remounted { read_only }).inspect_err(|_| {
        if !read_only {
            // It was read-only before, so no file is open for writing.
            let _ = set(mountpoint, flags | MountFlags::RDONLY);
        }
    })
}

fn set(mountpoint: &Path, flags: MountFlags) -> Result<(), Failure> {
    mount_remount(mountpoint, flags, c"").map_err(|errno| {
        let failure = Failure::failed(format!("cannot remount {}: {errno}", mountpoint.printable()));
        match errno {
            Errno::BUSY => failure
                .advise("files are open for writing, or removed files are still open")
                .advise(format!("fuser -vm {} lists the programs that use it", shell::word(mountpoint))),
            _ => failure,
        }
    })
}
