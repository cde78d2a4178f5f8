//! Kills of the process that serves a mount, at random moments, while its keeper starts the next one.

use crate::folders::cannot;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Times between two kills. Some are so short that they hit a takeover.
const LEAST: Duration = Duration::from_millis(300);
const MOST: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(40);
/// The mean number of kills of which one comes soon after the one before.
const SOON_EVERY: u64 = 8;
/// Kills without a takeover between them: the keeper gives up after ten processes that fail.
const IN_A_ROW: u32 = 4;

/// A part of the message of a recovery that does not trust the source's file.
const MOVED_ASIDE: &str = "its data is in a file of its own";

/// A thread that kills the servers of one keeper, one after another.
pub(super) struct Kills {
    /// Dropped to end the thread.
    stop: Sender<()>,
    thread: JoinHandle<u32>,
    log: PathBuf,
}

impl Kills {
    /// `log` receives the output of the mount.
    pub(super) fn start(keeper: u32, log: &Path) -> Kills {
        let (stop, stopped) = channel();
        let messages = log.to_owned();
        let thread = thread::spawn(move || {
            let (mut kills, mut in_a_row, mut takeovers) = (0, 0, 0);
            while stopped.recv_timeout(pause()) == Err(RecvTimeoutError::Timeout) {
                let completed = fs::read_to_string(&messages).map_or(0, |log| pauses_ms(&log).len());
                if completed > takeovers {
                    (takeovers, in_a_row) = (completed, 0);
                }
                if in_a_row < IN_A_ROW && server_of(keeper).is_some_and(kill) {
                    (kills, in_a_row) = (kills + 1, in_a_row + 1);
                }
            }
            kills
        });
        Kills { stop, thread, log: log.to_owned() }
    }

    /// Ends the kills. Returns their number and the longest pause.
    ///
    /// # Errors
    /// No process has taken the mount over, or one moved data aside as changed by another program.
    pub(super) fn end(self) -> Result<String, String> {
        drop(self.stop);
        let kills = self.thread.join().map_err(|_| "the thread that kills has panicked".to_owned())?;
        let log = fs::read_to_string(&self.log).map_err(|error| cannot(&self.log, &error))?;
        if let Some(moved) = log.lines().find(|line| line.contains(MOVED_ASIDE)) {
            return Err(format!("{kills} kills, and data was moved aside: {moved}"));
        }
        let pauses = pauses_ms(&log);
        match pauses.iter().max() {
            Some(longest) => Ok(format!("{kills} kills, {} takeovers, longest pause {longest} ms", pauses.len())),
            None => Err(format!("{kills} kills, and no takeover was completed")),
        }
    }
}

/// The newest child of the keeper: older ones are servers that have not quite ended.
fn server_of(keeper: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    children.split_whitespace().next_back()?.parse().ok()
}

fn kill(pid: u32) -> bool {
    let mut command = Command::new("kill");
    let command = command.arg("-KILL").arg(pid.to_string()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The pause in the message of each takeover.
fn pauses_ms(log: &str) -> Vec<u64> {
    let takeovers = log.lines().filter(|line| line.contains("has taken the mount over"));
    let pause = |line: &str| {
        let (_, rest) = line.split_once("pause_ms=")?;
        rest.split(|end: char| !end.is_ascii_digit()).next()?.parse().ok()
    };
    takeovers.filter_map(pause).collect()
}

/// A random number below `end`.
fn random(end: u64) -> u64 {
    RandomState::new().build_hasher().finish() % end
}

/// The time until the next kill.
fn pause() -> Duration {
    let (least, most) = if random(SOON_EVERY) == 0 { (Duration::ZERO, SOON) } else { (LEAST, MOST) };
    least + Duration::from_micros(random(u64::try_from((most - least).as_micros()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_read_from_the_messages_of_takeovers() {
        let log = "WARN this process has taken the mount over predecessor=7 takeovers=1 pause_ms=31\n\
                   The mount process (pid 8) was killed by signal 9: another one takes over.\n\
                   WARN this process has taken the mount over predecessor=8 takeovers=2 pause_ms=117\n";
        assert_eq!(pauses_ms(log), [31, 117]);
    }

    #[test]
    fn the_newest_child_is_the_server() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let own = std::process::id();
        // Another test may start one at the same time, on a thread of its own, and that thread may end meanwhile.
        let mut tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("children"));
        let is_listed = tasks.any(|children| {
            let children = fs::read_to_string(children).unwrap_or_default();
            children.split_whitespace().any(|pid| pid == child.id().to_string())
        });
        assert!(is_listed);
        assert!(kill(child.id()));
        assert!(!child.wait().unwrap().success());
        assert_eq!(server_of(own).filter(|pid| *pid == child.id()), None);
    }

    #[test]
    fn pauses_stay_within_their_limits() {
        assert!((0..1000).all(|_| pause() < MOST));
    }
}
