//! Waking a thread that sleeps in read(2), by a signal; rustix has no safe wrappers for handlers of signals.
#![allow(unsafe_code, reason = "system calls")]

use std::ffi::c_int;
use std::{mem, ptr};

use rustix::io::Errno;
use rustix::process::getpid;
use slackwater_sync::shim::OnceLock;

/// The signal: one of those that are free for programs.
fn signal() -> c_int {
    libc::SIGRTMIN() + 5
}

/// Lets [`wake_up`] interrupt the calling thread.
///
/// # Errors
/// The signal has a handler of the program. It is left alone.
pub(super) fn accept_wake_up() -> Result<(), Errno> {
    static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
    (*INSTALLED.get_or_init(install))?;
    // SAFETY: a set is an array of integers.
    let mut set = unsafe { mem::zeroed::<libc::sigset_t>() };
    // SAFETY: the pointer leads to a set.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: the pointer leads to a set, and this is the number of a signal.
    unsafe { libc::sigaddset(&raw mut set, signal()) };
    // SAFETY: the pointer leads to a set; null says that the mask before is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
    Ok(())
}

/// Installs a handler that does nothing. Without SA_RESTART, a system call that sleeps is interrupted.
fn install() -> Result<(), Errno> {
    // SAFETY: all zeros is a valid action: the default one, without flags and with an empty mask.
    let mut action = unsafe { mem::zeroed::<libc::sigaction>() };
    // SAFETY: null changes nothing, and the other pointer leads to space for the action before.
    let outcome = unsafe { libc::sigaction(signal(), ptr::null(), &raw mut action) };
    if outcome < 0 || action.sa_sigaction != libc::SIG_DFL {
        return Err(Errno::BUSY);
    }
    action.sa_flags = 0;
    action.sa_sigaction = ignore as *const () as usize;
    // SAFETY: the action has the type of a handler without SA_SIGINFO, and the handler touches nothing.
    let outcome = unsafe { libc::sigaction(signal(), &raw const action, ptr::null_mut()) };
    if outcome < 0 { Err(Errno::INVAL) } else { Ok(()) }
}

extern "C" fn ignore(_: c_int) {}

/// Interrupts a thread of this process that has called [`accept_wake_up`], if it sleeps in a system call. Does nothing
/// if there is no such thread any more.
pub(super) fn wake_up(thread: u32) {
    let process = getpid().as_raw_nonzero().get();
    // SAFETY: tgkill takes three numbers. The signal has a handler, since the thread has called `accept_wake_up`.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal()) };
}
