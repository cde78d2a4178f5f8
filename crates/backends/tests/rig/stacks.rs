//! Where every thread of the process is: printed by a test that has waited in vain.
//!
//! First come the system calls that the threads wait in, before anything disturbs them: a futex whose word is not the
//! expected value is one that was never woken. Then each thread is sent a signal and writes its own stack. That
//! allocates, which a signal handler must not do: a thread that is interrupted inside the allocator hangs there. It is
//! skipped after a second; the test has failed anyway.

use std::backtrace::Backtrace;
use std::ffi::c_int;
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::sys::{self, Tid};

static WRITTEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn write_own(_: c_int) {
    let name = fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
    // Not `eprintln`, which a test runner may keep for the test that started the thread.
    let _ = writeln!(std::io::stderr(), "thread {}:\n{}", name.trim(), Backtrace::force_capture());
    WRITTEN.fetch_add(1, Ordering::SeqCst);
}

/// The system call of a thread, as `/proc/PID/syscall` shows it.
fn in_kernel(thread: Tid) -> String {
    let read = |file| fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).unwrap_or_default();
    let call = read("syscall");
    let (name, place, word) = (read("comm"), read("wchan"), sys::futex_word(&call));
    format!("{thread} {} {place}: {} {word:x?}", name.trim(), call.trim())
}

fn threads() -> impl Iterator<Item = Tid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

/// Writes the state of all threads but the caller to standard error.
pub(crate) fn write_all() {
    for thread in threads() {
        let _ = writeln!(std::io::stderr(), "{}", in_kernel(thread));
    }
    sys::handle_sigusr1(write_own);
    let own = sys::own_tid();
    for thread in threads().filter(|thread| *thread != own) {
        let before = WRITTEN.load(Ordering::SeqCst);
        if !sys::send_sigusr1(thread) {
            continue;
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        while WRITTEN.load(Ordering::SeqCst) == before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
