//! The threads of a dead server, and whether they can still change the source.
//!
//! The threads of a killed process end one by one. One that is in a system call of the source ends when that returns,
//! and may still write there. One that sends a notification to the kernel may wait for the write-back of a mapping, which
//! only the successor can answer: it never ends before that, and keeps every descriptor of its process open. So a
//! process with such threads alone counts as ended, and locks are inherited instead of taken again. So does a process with
//! threads that wait for one of its own mounts: only the successor can answer those.
//!
//! # Kernel counterpart
//! `folio_wait_writeback` in `fuse_launder_folio`, and `request_wait_answer`, which no signal ends.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use slackwater_control::errln;
use slackwater_fuse::own_mount::OWN_MOUNT_THREAD;

use crate::os::killed_process::{has_ended, threads};

const DEVICE: &str = "/dev/fuse";

/// How often the threads of a dead server are looked at.
pub(super) const LOOK: Duration = Duration::from_millis(1);
/// The time after which a message says that such threads hold a takeover up.
pub(super) const SAID_AFTER: Duration = Duration::from_secs(2);

/// Kills the server of an earlier keeper, which is not a child of this one, and waits until it changes nothing any more.
/// `are_on_disks` as in [`are_harmless`].
///
/// # Blocking
/// For the source of the server.
pub(super) fn end(pidfd: &OwnedFd, are_on_disks: bool) {
    // It fails only when the process has ended.
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    let (since, mut is_said) = (Instant::now(), false);
    while !is_readable(pidfd)
        && let Some(pid) = pid_of(pidfd)
        && !are_harmless(pid, are_on_disks)
    {
        if since.elapsed() > SAID_AFTER && !std::mem::replace(&mut is_said, true) {
            errln!(
                "The process before (pid {pid}) has died, and its source does not let it go: waiting for the source."
            );
        }
        thread::sleep(LOOK);
    }
}

/// The process of a pidfd, unless it has ended.
fn pid_of(pidfd: &OwnedFd) -> Option<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
}

/// Whether something can be read, or a process has ended.
pub(super) fn is_readable(fd: impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fd = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fd, Some(&now)).is_ok() && fd[0].revents().contains(PollFlags::IN)
}

/// Whether no thread of a dying process will change anything any more. `are_on_disks` says that all its sources are
/// directories on disks: a thread that waits for the answer of a FUSE server is then in no call of a source.
pub(super) fn are_harmless(pid: u32, are_on_disks: bool) -> bool {
    let is_harmless = |thread: PathBuf| {
        has_ended(&thread)
            || notifies(&thread)
            || calls_own_mount(&thread)
            || (are_on_disks && waits_for_an_answer(&thread))
    };
    threads(pid).all(is_harmless)
}

/// Whether a thread waits for the answer of a FUSE server, which may be its own process: it may have been looking up a
/// path that leads over one of its mounts. It changes nothing after the answer, because it is killed. Kernel:
/// `request_wait_answer`, which the compiler may have made a part of its caller.
fn waits_for_an_answer(thread: &Path) -> bool {
    let place = fs::read_to_string(thread.join("wchan")).unwrap_or_default();
    ["request_wait_answer", "__fuse_request_send", "__fuse_simple_request"].contains(&place.trim())
}

/// Whether a thread calls mounts of its own process alone.
fn calls_own_mount(thread: &Path) -> bool {
    fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim_end() == OWN_MOUNT_THREAD)
}

/// Whether a thread is in a write to a FUSE connection.
fn notifies(thread: &Path) -> bool {
    let call = fs::read_to_string(thread.join("syscall")).unwrap_or_default();
    written_descriptor(&call).is_some_and(|number| {
        fs::read_link(thread.join("fd").join(number.to_string())).is_ok_and(|file| *file == *DEVICE)
    })
}

/// The descriptor of a write(2) or writev(2), as the kernel shows system calls: the number of the call, and its
/// arguments in hexadecimal.
fn written_descriptor(call: &str) -> Option<u64> {
    let mut words = call.split_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let argument = words.next()?.strip_prefix("0x")?;
    [libc::SYS_write, libc::SYS_writev].contains(&number).then(|| u64::from_str_radix(argument, 16).ok())?
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn writes_are_told_from_other_calls() {
        let call = |number| format!("{number} 0x5 0x7f00 0x1 0x0 0x0 0x0 0x7ffd 0x7f12\n");
        assert_eq!(written_descriptor(&call(libc::SYS_writev)), Some(5));
        assert_eq!(written_descriptor(&call(libc::SYS_write)), Some(5));
        for other in
            [call(libc::SYS_read), call(libc::SYS_pwrite64), "running".into(), "-1 0x7f 0x7f".into(), "".into()]
        {
            assert_eq!(written_descriptor(&other), None, "{other}");
        }
    }

    #[test]
    fn a_process_is_harmless_when_it_has_ended() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        assert!(!are_harmless(child.id(), true));
        child.kill().unwrap();
        let since = std::time::Instant::now();
        while !are_harmless(child.id(), false) {
            assert!(since.elapsed().as_secs() < 60, "it has been killed");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(are_harmless(child.id(), false));
    }
}
