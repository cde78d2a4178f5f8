//! Calls of the C library and the kernel that a test makes about its own process.
#![allow(unsafe_code, reason = "the C library's calls on signals and on its allocator")]

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// A thread's number.
pub(crate) type Tid = libc::pid_t;

pub(crate) fn own_tid() -> Tid {
    // SAFETY: it has no preconditions.
    unsafe { libc::gettid() }
}

/// Installs `handler` for SIGUSR1, to be run by whichever thread of the process receives it.
pub(crate) fn handle_sigusr1(handler: extern "C" fn(c_int)) {
    // SAFETY: the handler is of the type that `signal` wants; nothing else here uses the signal.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
}

/// False if the thread has ended.
pub(crate) fn send_sigusr1(thread: Tid) -> bool {
    // SAFETY: it has no preconditions; a thread that has ended is an error that changes nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGUSR1) == 0 }
}

/// The value of the futex that a thread waits for, if `syscall`, its line in `/proc/self/task/TID`, names one.
pub(crate) fn futex_word(syscall: &str) -> Option<u32> {
    let arguments = syscall.strip_prefix(&format!("{} 0x", libc::SYS_futex))?;
    let address = usize::from_str_radix(arguments.split(' ').next()?, 16).ok()?;
    let word = ptr::with_exposed_provenance::<AtomicU32>(address);
    // SAFETY: the thread waits for this word, so it is mapped.
    Some(unsafe { &*word }.load(Ordering::SeqCst))
}

/// Makes the allocator return free memory to the system.
pub(crate) fn trim_heap() {
    // SAFETY: it has no preconditions.
    unsafe { libc::malloc_trim(0) };
}
