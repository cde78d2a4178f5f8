//! Where every thread of the process is: what a test says that has waited in vain.
//!
//! First what each waits for in the kernel, before anything disturbs it: a futex whose word is not what the thread expects
//! is one that was never woken. Then each is sent a signal and writes its own stack. That allocates, which a signal handler
//! must not: a thread that is interrupted inside the allocator stays there. It is passed over after a second; the test has
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

/// What a thread does in the kernel, as `/proc/PID/syscall` says it.
fn in_kernel(thread: libc::pid_t) -> String {
    let read = |file| fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).unwrap_or_default();
    let call = read("syscall");
    let mut numbers = call.split_whitespace().map(|number| u64::from_str_radix(number.trim_start_matches("0x"), 16));
    let word = match (call.starts_with(&format!("{} ", libc::SYS_futex)), numbers.nth(1)) {
        // SAFETY: the thread waits for this word, so it is mapped.
        (true, Some(Ok(address))) => unsafe {
            std::ptr::with_exposed_provenance::<AtomicU32>(address as usize).as_ref()
        },
        _ => None,
    };
    let word = word.map(|word| word.load(Ordering::SeqCst));
    format!("{} {} {}: {} {word:x?}", thread, read("comm").trim(), read("wchan"), call.trim())
}

fn threads() -> impl Iterator<Item = libc::pid_t> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

/// Writes what all threads but the caller do to standard error.
pub(crate) fn write_all() {
    for thread in threads() {
        let _ = writeln!(std::io::stderr(), "{}", in_kernel(thread));
    }
    let handler: extern "C" fn(c_int) = write_own;
    // SAFETY: the handler is of the type that `signal` wants, and the signal is used for nothing else here.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    // SAFETY: it has no preconditions.
    let own = unsafe { libc::gettid() };
    let process = std::process::id();
    for thread in threads().filter(|thread| *thread != own) {
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
