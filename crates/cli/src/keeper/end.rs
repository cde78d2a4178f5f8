//! The end of a server, as its exit status tells it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The exit status of a program in Rust whose main thread has panicked.
const PANICKED: i32 = 101;
/// The number of SIGKILL.
const KILL: i32 = libc::SIGKILL;

/// How a server has ended.
pub(super) enum End {
    /// The server ended by itself, with this status.
    Exited(i32),
    /// A signal or a panic ended the server; the text is for people.
    Died(String),
    /// SIGKILL, which comes from outside, ended the server.
    Killed(String),
    /// The server has died, and its source holds it up; its mount is over, or is to end nevertheless.
    Held,
}

impl End {
    /// The end of the process `pid`, by the status that wait(2) has for it.
    pub(super) fn of(status: ExitStatus, pid: u32) -> Self {
        match (status.code(), status.signal()) {
            (Some(PANICKED), _) => Self::Died(format!("(pid {pid}) panicked")),
            (Some(code), _) => Self::Exited(code),
            (None, Some(KILL)) => Self::Killed(format!("(pid {pid}) was killed by signal {KILL}")),
            (None, signal) => Self::Died(format!("(pid {pid}) was killed by signal {}", signal.unwrap_or_default())),
        }
    }

    /// The end of the process `pid`, which wait(2) does not report yet: its first thread has ended, and others wait in the
    /// kernel.
    pub(super) fn of_unfinished(pid: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let status = stat.split_whitespace().next_back().and_then(|code| code.parse().ok()).map(ExitStatus::from_raw);
        match status.filter(|status| status.signal().is_some()) {
            Some(status) => Self::of(status, pid),
            None => Self::Died(format!("(pid {pid}) died")),
        }
    }
}
