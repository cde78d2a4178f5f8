//! System calls without safe wrappers: futex, membarrier, and the current CPU.
//!
//! # Memory ordering
//! Users of a futex do not rely on its calls for ordering: each publishes with its own release and rechecks with its
//! own acquire. `membarrier` is a full barrier for its caller and for every running thread.
#![allow(unsafe_code, reason = "raw system calls")]

use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use libc::{FUTEX_PRIVATE_FLAG, FUTEX_WAIT, FUTEX_WAKE};

/// Sleeps while the word holds `expected`, at most for `timeout`. Returns true if the time ran out.
///
/// Any other return means only that the caller must look again: the value differed, or a wake or signal arrived, or a
/// stray wake meant for an earlier user of the address.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    let timespec = timeout.map(|t| libc::timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let timespec = timespec.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is borrowed, hence mapped and aligned; the timespec is null or outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), FUTEX_WAIT | FUTEX_PRIVATE_FLAG, expected, timespec) };
    result == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT)
}

/// Wakes one thread that sleeps on this address. The word is not read and may have been freed.
pub fn futex_wake_one(word: *const AtomicU32) {
    futex_wake(word, 1);
}

/// Wakes every thread that sleeps on this address. The word is not read and may have been freed.
pub fn futex_wake_all(word: *const AtomicU32) {
    futex_wake(word, i32::MAX);
}

fn futex_wake(word: *const AtomicU32, count: i32) {
    // SAFETY: the kernel uses the address of a private futex as a key and does not access memory in a wake.
    unsafe { libc::syscall(libc::SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count) };
}

/// The commands of `membarrier(2)` that we use.
#[derive(Clone, Copy)]
pub(super) enum Membarrier {
    /// A barrier on every CPU that runs a thread of this process, now, by interrupting it.
    PrivateExpedited,
    /// A barrier on every CPU within milliseconds, without interrupting any.
    Global,
    /// Announces [`Membarrier::PrivateExpedited`]. Cheap only while the process has one thread.
    RegisterPrivateExpedited,
}

/// Issues one membarrier command. Returns whether the kernel carried it out.
pub(super) fn membarrier(command: Membarrier) -> bool {
    let command = match command {
        Membarrier::PrivateExpedited => libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED,
        Membarrier::Global => libc::MEMBARRIER_CMD_GLOBAL,
        Membarrier::RegisterPrivateExpedited => libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
    };
    // SAFETY: takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// The CPU that runs this thread: with rseq a load from thread-local memory, otherwise a vDSO call.
#[inline]
pub(super) fn current_cpu() -> usize {
    // SAFETY: no argument, and no effect beyond the return value.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}
