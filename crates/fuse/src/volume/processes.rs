//! Whether a process is being killed, from `/proc`.

use rustix::fs::{Mode, OFlags, open};

/// Whether thread `pid` has SIGKILL pending, for itself or its process. The kernel turns every fatal signal into
/// SIGKILL, unless it dumps core. False for thread 0.
pub(super) fn fatal_signal_pending(pid: u32) -> bool {
    pid != 0 && status(pid).is_some_and(|status| has_sigkill(&status))
}

fn status(pid: u32) -> Option<String> {
    let file = open(format!("/proc/{pid}/status"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = vec![0; 8192];
    let len = rustix::io::read(&file, &mut bytes[..]).ok()?;
    bytes.truncate(len);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn has_sigkill(status: &str) -> bool {
    const SIGKILL: u64 = 1 << 8;
    let masks = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & SIGKILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_sigkill_is_seen_for_the_thread_and_for_its_process() {
        assert!(!has_sigkill(
            "Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\nSigCgt:\t0000000000000100\n"
        ));
        assert!(has_sigkill("SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(has_sigkill("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000102\n"));
    }

    #[test]
    fn no_fatal_signal_is_pending_for_this_process_nor_for_pid_0() {
        assert!(!fatal_signal_pending(rustix::process::getpid().as_raw_nonzero().get() as u32));
        assert!(!fatal_signal_pending(0));
    }
}
