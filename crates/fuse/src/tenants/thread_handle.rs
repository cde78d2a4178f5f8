//! A descriptor that means one thread and never another: what makes it safe to remember something of a thread id (T1).
//!
//! A pidfd is one, and tells the cgroup as well. Kernels before 6.13 do not tell it, those before 6.9 have no pidfds of
//! threads; there the directory `/proc/TID`, held open, serves as well: it is bound to the thread and not to its
//! number, and nothing is found in it once the thread is gone. Unlike the thread's start time, which counts in 10 ms, it
//! cannot be the same for two threads.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::tenants::error::LookupError;
use crate::tenants::membership::Membership;
use crate::tenants::sys::pidfd_cgroup_id;

/// `PIDFD_THREAD`.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());

/// What descriptors this kernel gives.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum ThreadHandleKind {
    /// A pidfd that tells the cgroup.
    Pidfd,
    /// `/proc/TID`.
    Directory,
}

impl ThreadHandleKind {
    /// Tries it out on the calling thread.
    pub(super) fn of_this_kernel() -> Self {
        let tried = pidfd_open(rustix::thread::gettid(), THREAD).and_then(|pidfd| pidfd_cgroup_id(pidfd.as_fd()));
        match tried {
            Ok(_) => Self::Pidfd,
            Err(errno) => {
                tracing::info!("the kernel does not name the cgroup of a pidfd ({errno}): /proc is read instead");
                Self::Directory
            }
        }
    }
}

/// Holds on to a thread's identity, not to the thread.
#[derive(Debug)]
pub(super) enum ThreadHandle {
    Pidfd(OwnedFd),
    Directory(OwnedFd),
}

impl ThreadHandle {
    /// For the thread that has the id now.
    pub(super) fn open(kind: ThreadHandleKind, tid: u32) -> Result<Self, LookupError> {
        let opened = match kind {
            ThreadHandleKind::Pidfd => {
                let pid = i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(LookupError::Gone)?;
                pidfd_open(pid, THREAD).map(Self::Pidfd)
            }
            ThreadHandleKind::Directory => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                openat(CWD, format!("/proc/{tid}"), flags, Mode::empty()).map(Self::Directory)
            }
        };
        opened.map_err(|errno| if is_gone(errno) { LookupError::Gone } else { LookupError::Descriptor(errno) })
    }

    /// Asks whether the thread is alive, and for the number of its unified cgroup where the kernel tells it.
    pub(super) fn unified_id(&self) -> Result<Option<u64>, LookupError> {
        let answer = match self {
            Self::Pidfd(pidfd) => pidfd_cgroup_id(pidfd.as_fd()).map(Some),
            Self::Directory(directory) => {
                accessat(directory, "cgroup", Access::EXISTS, AtFlags::empty()).map(|()| None)
            }
        };
        answer.map_err(|errno| if is_gone(errno) { LookupError::Gone } else { LookupError::Descriptor(errno) })
    }

    /// What `/proc` says of the thread, whose id is `tid`. Takes 24 us.
    pub(super) fn membership(&self, tid: u32) -> Result<Membership, LookupError> {
        let failed = |source: io::Error| match Errno::from_io_error(&source) {
            Some(errno) if is_gone(errno) => LookupError::Gone,
            _ => LookupError::Proc { tid, source },
        };
        let text = match self {
            Self::Pidfd(_) => {
                let text = std::fs::read(format!("/proc/{tid}/cgroup")).map_err(failed)?;
                // Read by number: it is of this thread if that lives even now.
                self.unified_id()?;
                text
            }
            Self::Directory(directory) => {
                let file = openat(directory, "cgroup", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                let mut text = Vec::new();
                File::from(file.map_err(|errno| failed(errno.into()))?).read_to_end(&mut text).map_err(failed)?;
                text
            }
        };
        Ok(Membership::parse(&text))
    }
}

/// ESRCH, or ENOENT where `/proc` is asked.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::SRCH | Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    const KINDS: [ThreadHandleKind; 2] = [ThreadHandleKind::Pidfd, ThreadHandleKind::Directory];

    fn child() -> Child {
        Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep of coreutils")
    }

    fn is_usable(kind: ThreadHandleKind) -> bool {
        let is_usable = kind == ThreadHandleKind::Directory || ThreadHandleKind::of_this_kernel() == kind;
        if !is_usable {
            println!("skipped: this kernel names no cgroup of a pidfd");
        }
        is_usable
    }

    #[test]
    fn a_proof_ends_with_its_thread() {
        for kind in KINDS.into_iter().filter(|kind| is_usable(*kind)) {
            let mut child = child();
            let handle = ThreadHandle::open(kind, child.id()).unwrap();
            assert!(handle.unified_id().is_ok());
            assert_ne!(handle.membership(child.id()).unwrap(), Membership::default());
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(matches!(handle.unified_id(), Err(LookupError::Gone)), "{kind:?}");
            assert!(matches!(handle.membership(child.id()), Err(LookupError::Gone)), "{kind:?}");
            // Of a thread with that number that lives, the old descriptor tells nothing.
            assert!(matches!(handle.membership(std::process::id()), Err(LookupError::Gone)), "{kind:?}");
        }
    }

    #[test]
    fn any_thread_of_a_process_has_a_proof() {
        for kind in KINDS.into_iter().filter(|kind| is_usable(*kind)) {
            let thread = std::thread::spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
                assert_ne!(tid, std::process::id());
                let handle = ThreadHandle::open(kind, tid).unwrap();
                handle.membership(tid).unwrap();
                handle
            });
            let handle = thread.join().unwrap();
            // The kernel wakes who joins a moment before it gives the thread's id back.
            while handle.unified_id().is_ok() {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn nobody_has_no_proof() {
        for kind in KINDS.into_iter().filter(|kind| is_usable(*kind)) {
            for tid in [0, 4_194_305, u32::MAX] {
                assert!(matches!(ThreadHandle::open(kind, tid), Err(LookupError::Gone)), "{kind:?} {tid}");
            }
        }
    }
}
