//! Signals, descriptors as numbers, locks of descriptors and the heap, which the standard library leaves to the C one.
//!
//! # Invariants
//! G1. [`Signals::block`] runs before the first thread starts. A signal that is blocked nowhere ends the process
//!     in whichever thread it finds.
#![allow(unsafe_code, reason = "the C library's calls on signal sets, descriptors by number, locks and the heap")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, StatxFlags, makedev, statx};

/// What somebody wants of this process.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// End in an orderly way.
    Terminate,
    /// The terminal is gone.
    HangUp,
}

/// The signals that are waited for instead of being delivered.
pub(crate) struct Signals {
    set: libc::sigset_t,
    /// `nohup` was here.
    ignores_hang_up: bool,
}

impl Signals {
    /// Blocks them in this thread and all it starts (G1). Blocked signals are kept even where they were ignored.
    pub(crate) fn block() -> Self {
        let mut set = MaybeUninit::uninit();
        let mut hang_up = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the set is initialised by the first call before the others read it; the pointers are valid
        // for the calls, and a null action asks for the present one.
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one protocol of the C library")]
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::sigaction(libc::SIGHUP, std::ptr::null(), hang_up.as_mut_ptr());
            let ignores_hang_up = hang_up.assume_init().sa_sigaction == libc::SIG_IGN;
            Self { set: set.assume_init(), ignores_hang_up }
        }
    }

    /// The next signal that matters.
    ///
    /// # Blocking
    /// Until there is one.
    pub(crate) fn wait(&self) -> Signal {
        loop {
            let mut signal = 0;
            // SAFETY: the set was initialised by `block`, and `signal` is a valid place for the answer.
            let error = unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
            match signal {
                libc::SIGINT if error == 0 => return Signal::Interrupt,
                libc::SIGTERM if error == 0 => return Signal::Terminate,
                libc::SIGHUP if error == 0 && !self.ignores_hang_up => return Signal::HangUp,
                _ => {}
            }
        }
    }
}

/// Closes every descriptor but the standard three in the programs that this process starts from now on.
pub(crate) fn keep_descriptors_from_programs() {
    let first = libc::STDERR_FILENO.cast_unsigned() + 1;
    // SAFETY: it marks descriptors and closes none. Where the kernel has no such call, they stay as they are.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// What a descriptor is open on: its type and device. The kernel answers from memory, also for a server that hangs.
pub(crate) fn kind_of(number: RawFd) -> Option<(FileType, u64)> {
    // SAFETY: the number, which is not -1, is borrowed for a call that changes nothing and fails where it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let status = statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    let device = makedev(status.stx_dev_major, status.stx_dev_minor);
    Some((FileType::from_raw_mode(status.stx_mode.into()), device))
}

/// Makes a child that shares the table of descriptors with this process, so that the end of this one closes nothing. The child
/// closes `others` as soon as the process has exited or is stuck in that, `locks` when its last thread has gone, and then the rest.
/// The caller exits.
pub(crate) fn leave_descriptors(this_process: OwnedFd, others: &[RawFd], locks: &[RawFd]) {
    /// An exit that takes longer waits for threads that the kernel cannot interrupt.
    const EXIT_WITHIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without CLONE_VM it is a fork(2): the child has a copy of the memory and this thread alone, so it takes no lock
    // and allocates nothing. Null stands for no new stack, and for arguments that these flags do not use.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if child != 0 {
        std::mem::forget(this_process); // the table is the child's too, which waits on it
        return;
    }
    let wait = |time: Option<&Timespec>| {
        let _ = poll(&mut [PollFd::new(&this_process, PollFlags::IN)], time);
    };
    let close = |numbers: &[RawFd]| {
        for number in numbers {
            // SAFETY: the process that used the descriptor has exited, or the kernel lets it do nothing but that.
            unsafe { libc::close(*number) };
        }
    };
    wait(Some(&EXIT_WITHIN));
    close(others);
    wait(None);
    close(locks);
    // SAFETY: it ends the child, without what this process would do at its end.
    unsafe { libc::_exit(0) };
}

/// Puts a shared lock of this open file description on a file or directory that it may read. It keeps nobody from anything, and
/// is gone when the description is closed.
pub(crate) fn mark(fd: impl AsFd) -> io::Result<()> {
    lock(fd, libc::F_OFD_SETLK, libc::F_RDLCK).map(drop)
}

/// Takes it away.
pub(crate) fn unmark(fd: impl AsFd) -> io::Result<()> {
    lock(fd, libc::F_OFD_SETLK, libc::F_UNLCK).map(drop)
}

/// Whether such a lock of another description is there, or one of fcntl(2) that a process has.
pub(crate) fn is_marked_by_others(fd: impl AsFd) -> bool {
    lock(fd, libc::F_OFD_GETLK, libc::F_WRLCK).is_ok_and(|found| i32::from(found) != libc::F_UNLCK)
}

/// Asks for a lock of a whole file; answers with the type that the kernel has written.
fn lock(fd: impl AsFd, command: libc::c_int, kind: libc::c_int) -> io::Result<libc::c_short> {
    // SAFETY: a lock of zeroes is a valid one: of the whole file, by no process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(kind).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open, and the lock is valid for the call, which keeps no pointer to it.
    let result = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &raw mut lock) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(lock.l_type) }
}

/// Gives memory that the heap holds and nothing uses back to the system. The C library does that by itself only at the end of
/// a heap, and one small object that stays there keeps all before it.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the heap's own locks and changes nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
