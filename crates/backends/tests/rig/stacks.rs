//! Where every thread of the process is: what a test says that has waited in vain.
//!
//! Each thread is sent a signal and writes its own stack, one after the other. That allocates, which a signal handler must
//! not: a thread that is interrupted inside the allocator stays there. It is passed over after a second; the test has
//! failed anyway.

#![allow(unsafe_code, reason = "signals are not in rustix")]

use std::backtrace::Backtrace;
use std::ffi::c_int;
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

static WRITTEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn write_own(_: c_int) {
    let name = fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
    // Not `eprintln`, which a test runner may keep for the test that started the thread.
    let _ = writeln!(std::io::stderr(), "thread {}:\n{}", name.trim(), Backtrace::force_capture());
    WRITTEN.fetch_add(1, Ordering::SeqCst);
}

/// Writes the stacks of all threads but the caller's to standard error.
pub(crate) fn write_all() {
    let handler: extern "C" fn(c_int) = write_own;
    // SAFETY: the handler is of the type that `signal` wants, and the signal is used for nothing else here.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    // SAFETY: these have no preconditions.
    let (process, own) = unsafe { (libc::getpid(), libc::gettid()) };
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for thread in
        tasks.filter_map(|task| task.file_name().to_str()?.parse::<libc::pid_t>().ok()).filter(|thread| *thread != own)
    {
        let before = WRITTEN.load(Ordering::SeqCst);
        // SAFETY: it has no preconditions; a thread that has ended is an error that changes nothing.
        if unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) } != 0 {
            continue;
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        while WRITTEN.load(Ordering::SeqCst) == before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
