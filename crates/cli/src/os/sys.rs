//! Descriptors by number, locks of descriptors and the heap, for which the standard library has no calls.
#![allow(unsafe_code, reason = "the C library's calls on descriptors by number, locks and the heap")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use slackwater_host::local_stat;

/// Closes all descriptors except the standard three in programs that this process starts from now on.
pub(crate) fn keep_descriptors_from_programs() {
    let first = libc::STDERR_FILENO.cast_unsigned() + 1;
    // SAFETY: it marks descriptors and closes none. On a kernel without this call, they stay as they are.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// The descriptors that the service manager has passed to this process, with their names. To be called once, before
/// anything else can own them.
///
/// # Errors
/// The manager's variables are not numbers.
pub(crate) fn stored_descriptors() -> io::Result<Vec<(String, OwnedFd)>> {
    let passed = sd_notify::listen_fds_with_names()?;
    // SAFETY: the manager has opened them for this process, and nothing owns them yet.
    Ok(passed.map(|(number, name)| (name, unsafe { OwnedFd::from_raw_fd(number) })).collect())
}

/// A descriptor that the process which started this one has passed on by its number. To be called once, before anything
/// else can own it.
///
/// # Errors
/// No descriptor above the standard three has this number.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    match number > libc::STDERR_FILENO && kind_of(number).is_some() {
        // SAFETY: the descriptor is open, and nothing owns it yet.
        true => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        false => Err(io::Error::from_raw_os_error(libc::EBADF)),
    }
}

/// Type and device of the file that a descriptor is open on ([`local_stat`]); `None` if it is not open.
pub(crate) fn kind_of(number: RawFd) -> Option<(FileType, u64)> {
    // SAFETY: the number, which is not -1, is borrowed for a call that changes nothing and fails where it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    local_stat(fd, Path::new("")).ok()
}

/// Creates a child that shares the descriptor table with this process, so that the exit of this process closes nothing.
/// The child closes `others` as soon as the process has exited or is stuck in the exit, `locks` when its last thread
/// has ended, and then the rest. The caller exits.
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

/// Puts a shared lock of this open file description on a file or directory that it may read. It blocks nothing, and
/// ends when the description is closed.
pub(crate) fn mark(fd: impl AsFd) -> io::Result<()> {
    lock(fd, libc::F_OFD_SETLK, libc::F_RDLCK).map(drop)
}

/// Removes the lock that [`mark`] has put.
pub(crate) fn unmark(fd: impl AsFd) -> io::Result<()> {
    lock(fd, libc::F_OFD_SETLK, libc::F_UNLCK).map(drop)
}

/// Whether another description has such a lock, or a process has one of fcntl(2).
pub(crate) fn is_marked_by_others(fd: impl AsFd) -> bool {
    lock(fd, libc::F_OFD_GETLK, libc::F_WRLCK).is_ok_and(|found| i32::from(found) != libc::F_UNLCK)
}

/// Requests a lock of a whole file. Returns the type that the kernel has written.
fn lock(fd: impl AsFd, command: libc::c_int, kind: libc::c_int) -> io::Result<libc::c_short> {
    // SAFETY: a lock of zeroes is a valid one: of the whole file, by no process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(kind).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open, and the lock is valid for the call, which keeps no pointer to it.
    let result = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &raw mut lock) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(lock.l_type) }
}

/// Returns unused heap memory to the system. The C library does that on its own only at the end of a heap, and one
/// small object there keeps everything before it.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the heap's own locks and changes nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the threads share heaps. It is called before they start. The C library would have up to eight heaps per
/// processor, and what one thread frees in its heap is of no use to the others: the process would keep much more memory
/// than it uses. Each thread has a cache for small objects, so threads seldom wait for each other.
pub(crate) fn share_heaps() {
    #[cfg(target_env = "gnu")]
    {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let heaps = processors.clamp(2, 8) as libc::c_int;
        // SAFETY: it sets a number that the C library reads when a thread gets its heap.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, heaps);
        }
    }
}
