//! Whether a process is being killed, from `/proc`.
//!
//! # Invariants
//! F1. In doubt a thread is not dying: its call then waits longer, but ends with its own result. In doubt are a thread in
//!     another pid namespace, whose id is 0 or unknown here, and one whose status cannot be read.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};
use slackwater_sync::shim::OnceLock;

const SIGKILL: u64 = bit(9);
/// Signals that do not end a process by default: SIGCHLD, SIGCONT, SIGURG and SIGWINCH are ignored, and SIGSTOP, SIGTSTP,
/// SIGTTIN and SIGTTOU stop it. Kernel: `SIG_KERNEL_IGNORE_MASK`, `SIG_KERNEL_STOP_MASK`.
const HARMLESS: u64 = bit(17) | bit(18) | bit(19) | bit(20) | bit(21) | bit(22) | bit(23) | bit(28);

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// Whether the program of thread `pid` will not run any more: a signal that ends it is pending, or it is gone.
pub(super) fn is_dying(pid: u32) -> bool {
    if pid == 0 || !shows_own_namespace() {
        return false;
    }
    match fs::read(format!("/proc/{pid}/status")) {
        Ok(status) => is_ending(&String::from_utf8_lossy(&status)),
        // Gone, unless `/proc` hides the processes of other users.
        Err(_) => Pid::from_raw(pid.cast_signed()).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH)),
    }
}

/// Whether `/proc` has the threads by the ids that this process knows.
fn shows_own_namespace() -> bool {
    static SHOWS: OnceLock<bool> = OnceLock::new();
    let own = || fs::read_link("/proc/self").ok();
    *SHOWS.get_or_init(|| own().as_deref() == Some(Path::new(&getpid().as_raw_nonzero().to_string())))
}

/// The same, from the thread's status.
///
/// A signal that ends a process becomes a SIGKILL for each of its threads, as do `exit_group` and `execve` of another
/// thread. The exceptions are signals that dump core. They end the process once the thread returns from its call, unless
/// the thread blocks them or the program ignores or catches them. A debugger may take them away, and a process that
/// already dumps core gets no others.
fn is_ending(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let mask = |name| field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
    let pending = mask("SigPnd").unwrap_or(0) | mask("ShdPnd").unwrap_or(0);
    let is_gone = field("State").is_some_and(|state| state.starts_with(['Z', 'X']));
    let is_taken = |name| mask(name).unwrap_or(u64::MAX);
    let deadly = pending & !HARMLESS & !is_taken("SigBlk") & !is_taken("SigIgn") & !is_taken("SigCgt");
    let is_free = ["TracerPid", "CoreDumping"].map(field).iter().all(|value| value.is_none_or(|value| value == "0"));
    is_gone || pending & SIGKILL != 0 || deadly != 0 && is_free
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A status with signals in the masks of these names.
    fn status(masks: &[(&str, &[u32])], rest: &str) -> String {
        let mask = |name: &str| {
            let signals = masks.iter().filter(|(of, _)| *of == name).flat_map(|(_, signals)| *signals);
            format!("{name}:\t{:016x}\n", signals.fold(0, |mask, signal| mask | bit(*signal)))
        };
        format!("Name:\tx\n{rest}{}", ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"].map(mask).concat())
    }

    #[test]
    fn a_pending_sigkill_is_seen_for_the_thread_and_for_its_process() {
        for pending in ["SigPnd", "ShdPnd"] {
            assert!(is_ending(&status(&[(pending, &[9, 2]), ("SigCgt", &[2])], "TracerPid:\t4711\nCoreDumping:\t1\n")));
        }
        assert!(!is_ending(&status(&[("SigCgt", &[9])], "")));
    }

    #[test]
    fn signals_that_stop_or_that_do_nothing_by_default_end_no_process() {
        for signal in [17, 18, 19, 20, 21, 22, 23, 28] {
            assert!(!is_ending(&status(&[("ShdPnd", &[signal])], "")), "{signal}");
        }
    }

    /// No SIGKILL is pending for a signal that dumps core, such as SIGQUIT.
    #[test]
    fn a_signal_that_dumps_core_ends_a_process_that_neither_blocks_nor_ignores_nor_catches_it() {
        for pending in ["SigPnd", "ShdPnd"] {
            assert!(is_ending(&status(&[(pending, &[3]), ("SigCgt", &[2])], "TracerPid:\t0\nCoreDumping:\t0\n")));
            for taken in ["SigBlk", "SigIgn", "SigCgt"] {
                assert!(!is_ending(&status(&[(pending, &[3]), (taken, &[3])], "")), "{taken}");
            }
            for rest in ["TracerPid:\t4711\n", "CoreDumping:\t1\n"] {
                assert!(!is_ending(&status(&[(pending, &[3])], rest)), "{rest}");
            }
        }
        assert!(!is_ending("SigPnd:\t0000000000000004\n"), "a status that is cut");
    }

    #[test]
    fn a_zombie_is_dying_and_a_thread_of_another_namespace_is_not() {
        assert!(is_ending(&status(&[], "State:\tZ (zombie)\n")) && is_ending(&status(&[], "State:\tX (dead)\n")));
        assert!(!is_ending(&status(&[], "State:\tD (disk sleep)\n")));
        assert!(!is_dying(0));
    }

    #[test]
    fn this_process_is_not_dying_and_one_that_is_gone_is() {
        assert!(!is_dying(getpid().as_raw_nonzero().get().cast_unsigned()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(is_dying(child.id()));
    }
}
