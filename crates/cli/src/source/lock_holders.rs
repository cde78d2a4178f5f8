//! The processes that hold a lock on a directory, and whether they may write to it.
//!
//! A lock of flock(2) only needs read permission. So a process without write permission can hold a lock on a source
//! without having data for it: it is a *stranger*. `/proc/PID/fdinfo` shows the current holders. `/proc/locks` names
//! the process that took a lock, which may have passed it on and ended. An owner keeps the locks that it took itself
//! until its end, so if a process hides its descriptors from us, `/proc/locks` is good enough.
//!
//! # Kernel counterpart
//! `show_fd_locks`, `locks_translate_pid`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{getpid, getuid};

use crate::source::directory::Directory;

/// The initial pid namespace, which shows every process. Kernel: `PROC_PID_INIT_INO`.
const INITIAL_PIDS: &str = "pid:[4026531836]";
const CAP_DAC_OVERRIDE: u32 = 1;

/// The holders of locks on a directory.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// A process that may write to the directory.
    pub(super) owner: Option<u32>,
    /// A process that may not, with its user.
    pub(super) stranger: Option<(u32, u32)>,
    /// Whether every process could be checked.
    pub(super) are_all_seen: bool,
}

/// The directory whose locks are searched for.
struct Locked {
    /// The name of the directory in `/proc/locks`, as [`lock_on`] returns it.
    name: String,
    owner: u32,
    mode: u32,
}

/// The relevant part of `/proc/PID/status`.
#[derive(Debug, Eq, PartialEq)]
struct Process {
    /// The real user: a set-user-ID program handles the descriptors of its caller.
    user: u32,
    /// Whether the process may write whatever its user namespace maps.
    overrides: bool,
}

impl Holders {
    /// Checks all processes, except the descriptor `but` of this one.
    ///
    /// # Errors
    /// The directory cannot be examined, or there is no /proc.
    pub(super) fn of(source: &Directory, but: &OwnedFd) -> io::Result<Self> {
        let status = rustix::fs::fstat(but)?;
        let directory = Locked { name: source.lock_name(), owner: status.st_uid, mode: status.st_mode };
        let takers = takers(&fs::read_to_string("/proc/locks").unwrap_or_default(), &directory.name);
        let own = (getpid().as_raw_nonzero().get().unsigned_abs(), but.as_raw_fd().to_string());
        let mut holders = Self::default();
        let (mut is_first_seen, mut are_all_seen) = (false, true);
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let process = match fs::read_to_string(format!("/proc/{pid}/status")) {
                Ok(status) => Process::parse(&status),
                Err(error) if is_gone(&error) => continue,
                Err(_) => None,
            };
            let Some(process) = process else {
                are_all_seen = false;
                continue;
            };
            is_first_seen |= pid == 1;
            let but = (pid == own.0).then_some(own.1.as_str());
            if !has_lock(pid, &directory.name, but).unwrap_or_else(|| takers.contains(&pid)) {
                continue;
            }
            if directory.may_be_written_by(pid, &process) {
                return Ok(Self { owner: Some(pid), ..holders });
            }
            holders.stranger = Some((pid, process.user));
        }
        let is_initial = fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == INITIAL_PIDS);
        holders.are_all_seen = is_initial && is_first_seen && are_all_seen;
        Ok(holders)
    }
}

/// Whether a user may write to a directory of `owner` with `mode`. Every user may be a member of the group, and an
/// access control list that admits more users shows in the group bits.
pub(super) fn may_write(user: u32, owner: u32, mode: u32) -> bool {
    [0, owner, getuid().as_raw()].contains(&user) || mode & 0o022 != 0
}

impl Locked {
    fn may_be_written_by(&self, pid: u32, process: &Process) -> bool {
        may_write(process.user, self.owner, self.mode) || process.overrides && self.is_mapped_for(pid)
    }

    /// Whether the user namespace of a process maps the owner; otherwise its capabilities do not count here.
    fn is_mapped_for(&self, pid: u32) -> bool {
        let map = |process: &str| fs::read_to_string(format!("/proc/{process}/uid_map")).ok();
        // The map of our own namespace uses the numbers of its parent.
        map(&pid.to_string()).is_none_or(|theirs| Some(&theirs) == map("self").as_ref() || maps(&theirs, self.owner))
    }
}

impl Process {
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let mut users = field("Uid")?.split_whitespace().map(str::parse::<u32>);
        let (user, effective) = (users.next()?.ok()?, users.next()?.ok()?);
        let capabilities = u64::from_str_radix(field("CapEff")?.trim(), 16).ok()?;
        // The capabilities of a set-user-ID program are not those of its caller.
        let overrides = user == effective && capabilities >> CAP_DAC_OVERRIDE & 1 == 1;
        Some(Self { user, overrides })
    }
}

/// Whether a process now holds a lock on the directory `name`, in a descriptor other than `but`. `None` if that cannot
/// be determined, which includes a process that is ending: its descriptors are no longer listed while they are being
/// closed.
fn has_lock(pid: u32, name: &str, but: Option<&str>) -> Option<bool> {
    let mut is_any_listed = false;
    for descriptor in fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()? {
        let descriptor = descriptor.ok()?;
        is_any_listed = true;
        if but.is_some_and(|but| descriptor.file_name() == but) {
            continue;
        }
        match fs::read_to_string(descriptor.path()) {
            Ok(info) => {
                let locks = info.lines().filter_map(|line| line.strip_prefix("lock:"));
                if locks.filter_map(lock_on).any(|(_, on)| on == name) {
                    return Some(true);
                }
            }
            Err(error) if is_gone(&error) => {}
            Err(_) => return None,
        }
    }
    is_any_listed.then_some(false)
}

/// A process or descriptor that existed a moment ago.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// The processes that took a lock of flock(2) on the directory `name`.
fn takers(locks: &str, name: &str) -> HashSet<u32> {
    let on_it = locks.lines().filter(|line| line.contains(" FLOCK ")).filter_map(lock_on).filter(|(_, on)| *on == name);
    on_it.filter_map(|(pid, _)| pid.parse().ok()).collect()
}

/// Process and place of a held lock: number, kind, `ADVISORY`, `READ` or `WRITE`, process, device and inode, range. A
/// waiting lock has an arrow before its kind.
fn lock_on(line: &str) -> Option<(&str, &str)> {
    let mut fields = line.split_whitespace().skip(1).peekable();
    fields.next_if(|kind| *kind != "->")?;
    let mut fields = fields.skip(2);
    Some((fields.next()?, fields.next()?))
}

/// Whether a user namespace map contains a user: first inside, first outside, count.
fn maps(map: &str, user: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [_, first, count] if (first..first + count).contains(&u64::from(user)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_takers_of_a_lock_are_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 10 fe:00:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 11 fe:00:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 12 fe:00:77 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 13 fe:00:77 0 EOF\n\
                     nonsense\n4: ->\n5: FLOCK  ADVISORY\n";
        assert_eq!(takers(locks, "fe:00:77"), HashSet::from([13]));
        assert_eq!(takers(locks, "fe:00:79"), HashSet::new());
        let ours = "\t1: OFDLCK ADVISORY  READ -1 fe:00:77 0 EOF";
        assert_eq!(lock_on(ours), Some(("-1", "fe:00:77")));
    }

    #[test]
    fn write_permission_depends_on_real_user_and_capabilities() {
        let process = |text: &str| Process::parse(text).unwrap();
        let nobody = process("Name:\tx\nUid:\t65534\t65534\t65534\t65534\nCapEff:\t0000000000000000\n");
        let setuid = process("Uid:\t65534\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
        let service = process("Uid:\t990\t990\t990\t990\nCapEff:\t0000000000000002\n");
        let directory = |owner, mode| Locked { name: String::new(), owner, mode };
        let own = std::process::id();
        let may = |directory: Locked, process: &Process| directory.may_be_written_by(own, process);
        assert!(!may(directory(0, 0o755), &nobody) && !may(directory(0, 0o755), &setuid));
        assert!(may(directory(65534, 0o755), &nobody) && may(directory(0, 0o775), &nobody));
        assert!(may(directory(0, 0o755), &service));
        assert_eq!(Process::parse("Uid:\t1\n"), None);
        assert!(maps("0 100000 65536\n70000 5 1\n", 165_535) && maps("0 100000 65536\n70000 5 1\n", 5));
        assert!(!maps("0 65534 1\n", 0) && !maps("nonsense\n", 0));
    }

    #[test]
    fn a_lock_is_seen_in_the_descriptor_that_has_it() {
        let dir = std::env::temp_dir().join(format!("slackwater-holders-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (place, own) = Directory::open(&dir, rustix::fs::OFlags::RDONLY).unwrap();
        let (_, other) = Directory::open(&dir, rustix::fs::OFlags::RDONLY).unwrap();
        assert_eq!(Holders::of(&place, &own).unwrap().owner, None);
        for take in
            [&|fd: &OwnedFd| rustix::fs::flock(fd, rustix::fs::FlockOperation::LockShared).unwrap(), &|fd: &OwnedFd| {
                crate::os::sys::mark(fd).unwrap()
            }] as [&dyn Fn(&OwnedFd); 2]
        {
            let (_, other) = Directory::open(&dir, rustix::fs::OFlags::RDONLY).unwrap();
            take(&other);
            assert_eq!(Holders::of(&place, &own).unwrap().owner, Some(std::process::id()));
            assert_eq!(Holders::of(&place, &other).unwrap().owner, None, "it is not its own obstacle");
        }
        drop(other);
        fs::remove_dir_all(&dir).unwrap();
    }
}
