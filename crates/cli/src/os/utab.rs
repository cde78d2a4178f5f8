//! `/run/mount/utab`, the list in which mount(8) keeps the options of mounts that the kernel does not know.
//!
//! umount(8) calls a helper for a FUSE mount only if the list has its mount point; otherwise it asks the kernel for the
//! type, and gets `fuse`. So the helper of mount(8) records each mount here, with the helper that unmounts it. umount(8)
//! removes the line. The format and the lock are those of libmount in util-linux.
//!
//! # Invariants
//! U1. The list is replaced by a rename, under the lock of `utab.lock`. Lines of other programs stay as they are.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use slackwater_control::os::mount_table::{MountTable, is_slackwater, mount_at};
use slackwater_host::MountInfo;

const DIR: &str = "/run/mount";

/// The helper `umount.slackwater`.
const HELPER: &str = "uhelper=slackwater";

/// Options in the list that say how other programs treat the mount.
const OF_PROGRAMS: [&str; 6] = ["_netdev", "user", "users", "owner", "group", "uhelper"];

/// Whether an option of fstab belongs into the list.
pub(crate) fn is_of_programs(option: &str) -> bool {
    OF_PROGRAMS.contains(&option.split('=').next().unwrap_or(option))
}

/// Records the mount at `mountpoint` with these options, and forgets mounts of ours that are gone. Does nothing for
/// users other than root, who cannot change the list.
///
/// # Errors
/// The list cannot be changed.
///
/// # Blocking
/// For another program that changes the list.
pub(crate) fn record(mountpoint: &Path, options: &[String]) -> io::Result<()> {
    let Some(mount) = mount_at(mountpoint).filter(|mount| geteuid().is_root() && is_slackwater(mount)) else {
        return Ok(());
    };
    let dir = Path::new(DIR);
    fs::create_dir_all(dir)?;
    let lock = File::options().write(true).create(true).truncate(false).mode(0o644).open(dir.join("utab.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let list = dir.join("utab");
    let before = match fs::read(&list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let mounts = MountTable::now();
    let is_ours = |point: &Path| mounts.has_slackwater_at(point);
    let after = with(&before, &line(&mount.source, mountpoint, options), &is_ours);
    let next = dir.join(format!("utab.slackwater-{}", std::process::id()));
    let mut file = File::options().write(true).create_new(true).mode(0o644).open(&next)?;
    file.write_all(&after)?;
    fs::rename(&next, &list).inspect_err(|_| drop(fs::remove_file(&next)))
}

/// The line of a mount.
fn line(source: &Path, mountpoint: &Path, options: &[String]) -> Vec<u8> {
    let mut options = options.to_vec();
    if !options.iter().any(|option| option.starts_with("uhelper=")) {
        options.push(HELPER.to_owned());
    }
    let mut line = Vec::new();
    let options = options.join(",");
    for (name, value) in [
        ("SRC", source.as_os_str()),
        ("TARGET", mountpoint.as_os_str()),
        ("ROOT", OsStr::new("/")),
        ("OPTS", OsStr::new(&options)),
    ] {
        line.extend_from_slice(if line.is_empty() { b"" } else { b" " });
        line.extend_from_slice(name.as_bytes());
        line.push(b'=');
        line.extend(mangled(value.as_bytes()));
    }
    line.push(b'\n');
    line
}

/// The list with `line` instead of an older line for the same mount point. Lines of ours whose mounts are gone are left
/// out.
fn with(list: &[u8], line: &[u8], is_mounted: &dyn Fn(&Path) -> bool) -> Vec<u8> {
    let target = target(line);
    let stays = |old: &&[u8]| {
        let is_gone = || {
            let point = self::target(old).map(MountInfo::path);
            point.is_some_and(|point| !is_mounted(&point))
        };
        self::target(old) != target && !(old.ends_with(HELPER.as_bytes()) && is_gone())
    };
    let lines = list.split(|byte| *byte == b'\n').filter(|old| !old.is_empty()).filter(stays);
    lines.flat_map(|old| [old, b"\n"]).chain([line]).flatten().copied().collect()
}

/// The mount point in a line, as it stands there.
fn target(line: &[u8]) -> Option<&[u8]> {
    line.split(|byte| matches!(byte, b' ' | b'\n')).find_map(|field| field.strip_prefix(b"TARGET="))
}

/// The path as libmount and the kernel write it: blanks and backslashes as three octal digits. [`MountInfo::path`] is
/// the inverse.
fn mangled(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_helper_and_the_options_of_programs() {
        let options = ["_netdev".to_owned(), "user=a".to_owned()];
        assert!(options.iter().all(|option| is_of_programs(option)) && !is_of_programs("cache=1GiB"));
        let text = line(Path::new("/srv/a b"), Path::new("/mnt/a\\b"), &options);
        let expected = "SRC=/srv/a\\040b TARGET=/mnt/a\\134b ROOT=/ OPTS=_netdev,user=a,uhelper=slackwater\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        let own = line(Path::new("/a"), Path::new("/b"), &["uhelper=other".to_owned()]);
        assert!(own.ends_with(b"OPTS=uhelper=other\n"));
        assert_eq!(MountInfo::path(&mangled(b" a\\040\t")).as_os_str().as_bytes(), b" a\\040\t");
    }

    #[test]
    fn other_lines_stay_and_lines_of_mounts_that_are_gone_leave() {
        let list = b"SRC=/x TARGET=/mnt/x ROOT=/ OPTS=_netdev\n\
            SRC=/y TARGET=/mnt/y ROOT=/ OPTS=uhelper=slackwater\n\
            SRC=/z TARGET=/mnt/z\\040z ROOT=/ OPTS=user,uhelper=slackwater\n\
            SRC=/old TARGET=/mnt/new ROOT=/ OPTS=_netdev\n";
        let line = line(Path::new("/new"), Path::new("/mnt/new"), &[]);
        let after = with(list, &line, &|point| point == Path::new("/mnt/z z"));
        let expected = "SRC=/x TARGET=/mnt/x ROOT=/ OPTS=_netdev\n\
            SRC=/z TARGET=/mnt/z\\040z ROOT=/ OPTS=user,uhelper=slackwater\n\
            SRC=/new TARGET=/mnt/new ROOT=/ OPTS=uhelper=slackwater\n";
        assert_eq!(String::from_utf8(after).unwrap(), expected);
    }
}
