//! A handle that refers to one thread and never to another, so that results for a thread id can be cached (T1).
//!
//! A pidfd is such a handle, and also returns the cgroup. Kernels before 6.13 do not return the cgroup, and those
//! before 6.9 have no pidfds for threads. There an open descriptor of the directory `/proc/TID` is used: it is bound to
//! the thread and not to its id, and nothing is found in it once the thread has exited. The thread's start time would
//! not do: it has a resolution of 10 ms, so two threads can share it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::tenants::error::LookupError;
use crate::tenants::sys::pidfd_cgroup_id;
use slackwater_host::cgroup::Membership;

/// `PIDFD_THREAD`.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());

/// The kind of handle that this kernel supports.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum ThreadHandleKind {
    /// A pidfd that returns the cgroup.
    Pidfd,
    /// `/proc/TID`.
    Directory,
}

impl ThreadHandleKind {
    /// Probes the kernel with the calling thread.
    pub(super) fn of_this_kernel() -> Self {
        let tried = pidfd_open(rustix::thread::gettid(), THREAD).and_then(|pidfd| pidfd_cgroup_id(pidfd.as_fd()));
        match tried {
            Ok(_) => Self::Pidfd,
            Err(errno) => {
                tracing::info!("the kernel does not return the cgroup of a pidfd ({errno}): reading /proc instead");
                Self::Directory
            }
        }
    }
}

/// Refers to a thread without keeping it alive.
#[derive(Debug)]
pub(super) enum ThreadHandle {
    Pidfd(OwnedFd),
    Directory(OwnedFd),
}

impl ThreadHandle {
    /// A handle of the thread that has the id now.
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

    /// Checks that the thread is alive, and returns the number of its unified cgroup if the kernel provides it.
    pub(super) fn unified_id(&self) -> Result<Option<u64>, LookupError> {
        let answer = match self {
            Self::Pidfd(pidfd) => pidfd_cgroup_id(pidfd.as_fd()).map(Some),
            Self::Directory(directory) => {
                accessat(directory, "cgroup", Access::EXISTS, AtFlags::empty()).map(|()| None)
            }
        };
        answer.map_err(|errno| if is_gone(errno) { LookupError::Gone } else { LookupError::Descriptor(errno) })
    }

    /// The thread's cgroups from `/proc`; its id is `tid`. Takes 24 us.
    pub(super) fn membership(&self, tid: u32) -> Result<Membership, LookupError> {
        let failed = |source: io::Error| match Errno::from_io_error(&source) {
            Some(errno) if is_gone(errno) => LookupError::Gone,
            _ => LookupError::Proc { tid, source },
        };
        let text = match self {
            Self::Pidfd(_) => {
                let text = std::fs::read(format!("/proc/{tid}/cgroup")).map_err(failed)?;
                // Read by id: it belongs to this thread if the thread is still alive.
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

/// ESRCH, or ENOENT from `/proc`.
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
            println!("skipped: this kernel does not return the cgroup of a pidfd");
        }
        is_usable
    }

    #[test]
    fn a_handle_is_gone_when_its_thread_has_exited() {
        for kind in KINDS.into_iter().filter(|kind| is_usable(*kind)) {
            let mut child = child();
            let handle = ThreadHandle::open(kind, child.id()).unwrap();
            assert!(handle.unified_id().is_ok());
            assert_ne!(handle.membership(child.id()).unwrap(), Membership::default());
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(matches!(handle.unified_id(), Err(LookupError::Gone)), "{kind:?}");
            assert!(matches!(handle.membership(child.id()), Err(LookupError::Gone)), "{kind:?}");
            // The old handle does not read another live thread.
            assert!(matches!(handle.membership(std::process::id()), Err(LookupError::Gone)), "{kind:?}");
        }
    }

    #[test]
    fn any_thread_of_a_process_has_a_handle() {
        for kind in KINDS.into_iter().filter(|kind| is_usable(*kind)) {
            let thread = std::thread::spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
                assert_ne!(tid, std::process::id());
                let handle = ThreadHandle::open(kind, tid).unwrap();
                handle.membership(tid).unwrap();
                handle
            });
            let handle = thread.join().unwrap();
            // The kernel wakes the joining thread a moment before it releases the thread id.
            while handle.unified_id().is_ok() {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn an_id_without_a_thread_has_no_handle() {
        for kind in KINDS.into_iter().filter(|kind| is_usable(*kind)) {
            for tid in [0, 4_194_305, u32::MAX] {
                assert!(matches!(ThreadHandle::open(kind, tid), Err(LookupError::Gone)), "{kind:?} {tid}");
            }
        }
    }
}
