//! Which process holds a claim, and whether it still runs.

use std::fs;

use parking_lot::Mutex;
use rustix::system::uname;
use serde::{Deserialize, Serialize};

/// A process, told apart from all others: of other machines, of earlier boots, and of earlier uses of its number.
#[derive(Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    /// The name of its machine.
    pub(crate) host: String,
    /// `/etc/machine-id`; empty on a machine that has none.
    pub(crate) machine_id: String,
    /// Random for each boot of each machine; empty if it could not be read.
    pub(crate) boot_id: String,
    /// The namespace that its number belongs to; 0 if it could not be read.
    pub(crate) pid_namespace: u64,
    pub(crate) pid: u32,
    /// When it started, in clock ticks since the boot.
    pub(crate) start_ticks: u64,
    /// Another process, which starts a successor if this one dies. A claim is theirs until both have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keeper: Option<Keeper>,
}

/// A process of the same machine, boot and namespace.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Keeper {
    pid: u32,
    start_ticks: u64,
}

/// Whether another process may still run.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Life {
    /// The process has ended.
    Dead,
    /// The process runs, or it is where this process cannot look.
    Possible,
}

impl Process {
    /// The process that calls.
    pub(crate) fn current() -> Self {
        let pid = std::process::id();
        let read = |path| fs::read_to_string(path).map_or_else(|_| String::new(), |text| text.trim().to_owned());
        Self {
            host: uname().nodename().to_string_lossy().into_owned(),
            machine_id: read("/etc/machine-id"),
            boot_id: read("/proc/sys/kernel/random/boot_id"),
            pid_namespace: namespace_of_link(&fs::read_link("/proc/self/ns/pid").unwrap_or_default().to_string_lossy()),
            pid,
            start_ticks: start_ticks(pid).unwrap_or(0),
            keeper: None,
        }
    }

    /// This process with its keeper, if it has one.
    pub(crate) fn kept_by(self, keeper: Option<u32>) -> Self {
        Self { keeper: keeper.map(|pid| Keeper { pid, start_ticks: start_ticks(pid).unwrap_or(0) }), ..self }
    }

    /// Whether a claim of one is a claim of the other: both are one process, or have the same keeper.
    pub(crate) fn shares_claims_with(&self, other: &Self) -> bool {
        let are_kept = self.keeper.is_some() && self.keeper == other.keeper && self.is_seen_by(other);
        are_kept || Self { keeper: None, ..self.clone() } == Self { keeper: None, ..other.clone() }
    }

    /// Whether the numbers of processes mean the same to both.
    fn is_seen_by(&self, observer: &Self) -> bool {
        self.has_boot_of(observer) && self.pid_namespace != 0 && self.pid_namespace == observer.pid_namespace
    }

    fn has_boot_of(&self, other: &Self) -> bool {
        !self.boot_id.is_empty() && self.boot_id == other.boot_id
    }

    /// Whether this process and its keeper, as seen from `observer`, have ended. `start_of` is the start time of the
    /// process that has a number now, if one has it.
    ///
    /// The boot id alone proves that two processes run on one machine, so that containers without a machine id are
    /// distinguished too. After a reboot the machine id and the name must both agree, because cloned machines share the former.
    pub(crate) fn life(&self, observer: &Self, start_of: impl Fn(u32) -> Option<u64>) -> Life {
        if self.has_boot_of(observer) {
            let runs = |pid, start_ticks| start_of(pid) == Some(start_ticks);
            let is_kept = || self.keeper.is_some_and(|keeper| runs(keeper.pid, keeper.start_ticks));
            let may_run = !self.is_seen_by(observer) || runs(self.pid, self.start_ticks) || is_kept();
            return if may_run { Life::Possible } else { Life::Dead };
        }
        let both_booted = !self.boot_id.is_empty() && !observer.boot_id.is_empty();
        let same_machine = !self.machine_id.is_empty() && self.machine_id == observer.machine_id;
        if both_booted && same_machine && self.host == observer.host { Life::Dead } else { Life::Possible }
    }
}

/// The start time of a process of this machine; `None` if there is none with this number.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok().as_deref().and_then(start_ticks_of_stat)
}

/// Field 22 of `/proc/PID/stat`. Field 2 is the name in parentheses, and may itself hold spaces and parentheses.
fn start_ticks_of_stat(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    // A zombie has let go of everything.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The number in `pid:[4026531836]`.
fn namespace_of_link(link: &str) -> u64 {
    let digits = link.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']'));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The claims that volumes of this process hold. A claim of this process that is not here was left behind.
static HELD_HERE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The name of one claim; while it lives, this process holds the claim.
#[derive(Debug)]
pub(crate) struct Token(String);

impl Token {
    /// A new, random one.
    pub(crate) fn new() -> Self {
        let text = fs::read_to_string("/proc/sys/kernel/random/uuid");
        // Without /proc, the number of the process and the order of its claims still tell claims of one machine apart.
        let text = text.unwrap_or_else(|_| format!("{}-{}", std::process::id(), HELD_HERE.lock().len()));
        let token = text.trim().to_owned();
        HELD_HERE.lock().push(token.clone());
        Self(token)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a volume of this process holds the claim of this name.
    pub(crate) fn is_held_here(token: &str) -> bool {
        HELD_HERE.lock().iter().any(|held| held == token)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        HELD_HERE.lock().retain(|held| *held != self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> Process {
        Process {
            host: "alpha".into(),
            machine_id: "m1".into(),
            boot_id: "b1".into(),
            pid_namespace: 7,
            pid: 100,
            start_ticks: 5,
            keeper: None,
        }
    }

    fn life_with(change: impl FnOnce(&mut Process), start_of_100: Option<u64>) -> Life {
        let mut holder = process();
        change(&mut holder);
        holder.life(&process(), |pid| {
            assert_eq!(pid, 100);
            start_of_100
        })
    }

    #[test]
    fn a_process_of_this_boot_is_judged_by_number_and_start() {
        assert_eq!(life_with(|_| (), Some(5)), Life::Possible);
        assert_eq!(life_with(|_| (), None), Life::Dead);
        assert_eq!(life_with(|_| (), Some(6)), Life::Dead, "the number has another process now");
        assert_eq!(life_with(|p| p.machine_id = String::new(), None), Life::Dead, "the boot id is enough");
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_not_judged() {
        assert_eq!(life_with(|p| p.pid_namespace = 8, None), Life::Possible);
        assert_eq!(life_with(|p| p.pid_namespace = 0, None), Life::Possible);
    }

    #[test]
    fn a_process_with_a_keeper_lives_as_long_as_one_of_both() {
        let kept = Process { keeper: Some(Keeper { pid: 101, start_ticks: 6 }), ..process() };
        let life = |of_process, of_keeper| kept.life(&process(), |pid| if pid == 100 { of_process } else { of_keeper });
        assert_eq!(life(None, Some(6)), Life::Possible, "a successor may have begun");
        assert_eq!(life(Some(5), None), Life::Possible, "a process goes on without its keeper");
        assert_eq!(life(None, None), Life::Dead);
        assert_eq!(life(Some(7), Some(7)), Life::Dead, "both numbers have other processes now");
    }

    #[test]
    fn a_successor_has_the_same_keeper() {
        let kept = |pid, keeper| Process { pid, keeper: Some(Keeper { pid: keeper, start_ticks: 6 }), ..process() };
        assert!(kept(100, 101).shares_claims_with(&kept(102, 101)));
        assert!(!kept(100, 101).shares_claims_with(&kept(102, 103)), "another mount");
        assert!(kept(100, 101).shares_claims_with(&process()), "the same process opens another volume");
        assert!(!process().shares_claims_with(&Process { pid: 102, ..process() }), "neither has a keeper");
        let elsewhere = Process { pid_namespace: 8, ..kept(102, 101) };
        assert!(!kept(100, 101).shares_claims_with(&elsewhere), "its numbers mean other processes");
    }

    #[test]
    fn an_earlier_boot_of_this_machine_is_over() {
        assert_eq!(life_with(|p| p.boot_id = "b0".into(), Some(5)), Life::Dead);
    }

    #[test]
    fn other_machines_and_clones_of_this_one_are_not_judged() {
        let other = |p: &mut Process| (p.boot_id, p.machine_id) = ("b9".into(), "m9".into());
        assert_eq!(life_with(other, None), Life::Possible);
        let clone = |p: &mut Process| (p.boot_id, p.host) = ("b9".into(), "beta".into());
        assert_eq!(life_with(clone, None), Life::Possible);
        let nameless = |p: &mut Process| (p.boot_id, p.machine_id) = ("b9".into(), String::new());
        assert_eq!(life_with(nameless, None), Life::Possible);
        assert_eq!(life_with(|p| p.boot_id = String::new(), None), Life::Possible);
    }

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
        assert_eq!(start_ticks_of_stat(&format!("17 (a) b (c)) {tail}")), Some(4242));
        assert_eq!(start_ticks_of_stat(&format!("17 (z) {}", tail.replacen('S', "Z", 1))), None);
        assert_eq!(start_ticks_of_stat("17 (short) S 1 2"), None);
        assert_eq!(start_ticks_of_stat(""), None);
    }

    #[test]
    fn this_process_lives_and_is_equal_to_itself() {
        let current = Process::current();
        assert_ne!(current.start_ticks, 0);
        assert_ne!(current.pid_namespace, 0);
        assert_eq!(current, Process::current());
        assert_eq!(current.life(&Process::current(), start_ticks), Life::Possible);
    }

    #[test]
    fn a_token_is_held_until_it_is_dropped() {
        let token = Token::new();
        let name = token.as_str().to_owned();
        assert!(Token::is_held_here(&name));
        drop(token);
        assert!(!Token::is_held_here(&name));
    }
}
