//! The machine, the kernel, the disk and the commit that figures were measured with.

use std::fs;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use slackwater_host::MountInfo;
use slackwater_host::size;

use super::table::Table;

/// The commit that this program was built from, as `build.rs` found it.
const COMMIT: &str = env!("SLACKWATER_LAB_COMMIT");

/// Facts that a reader needs to compare figures.
pub(crate) struct Machine {
    /// When the experiment began, in UTC.
    date: String,
    cpu: String,
    cores: usize,
    kernel: String,
    memory_bytes: u64,
    load: String,
    huge_pages: String,
    /// The directory of the experiment's files, and what it is on.
    dir: String,
    file_system: String,
    device: String,
}

impl Machine {
    /// The facts as they are now; `dir` is where the experiment's files are.
    pub(crate) fn of(dir: &Path) -> Self {
        let unknown = || "unknown".to_owned();
        let mount = mount_of(dir);
        let uname = rustix::system::uname();
        let load = read("/proc/loadavg").split_whitespace().next().map_or_else(unknown, str::to_owned);
        Self {
            date: date(clock_gettime(ClockId::Realtime).tv_sec),
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: uname.release().to_string_lossy().into_owned(),
            memory_bytes: field("/proc/meminfo", "MemTotal").and_then(|text| kib(&text)).unwrap_or(0),
            load,
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled").trim().to_owned(),
            dir: dir.display().to_string(),
            file_system: mount.as_ref().map_or_else(unknown, |mount| mount.kind.clone()),
            device: mount.map_or_else(unknown, |mount| mount.source.display().to_string()),
        }
    }

    pub(crate) fn table(&self, experiment: &str, seed: u64, rounds: Option<u32>) -> Table {
        let mut table = Table::new(format!("slackwater-lab {experiment}"), " | <");
        let mut row = |name: &str, text: String| {
            table.row(format!("  {name}")).text(text);
        };
        row("commit", format!("{COMMIT}, measured on {}", self.date));
        row("machine", format!("{}, {} CPUs, {} memory", self.cpu, self.cores, size::text(self.memory_bytes)));
        row("kernel", format!("{}, huge pages {}, load {}", self.kernel, self.huge_pages, self.load));
        row("files in", format!("{} ({} on {})", self.dir, self.file_system, self.device));
        match rounds {
            Some(rounds) => row("rounds", format!("{rounds}, seed {seed}")),
            None => row("seed", seed.to_string()),
        }
        table
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "commit": COMMIT, "date": self.date, "cpu": self.cpu, "cores": self.cores, "kernel": self.kernel,
            "memory_bytes": self.memory_bytes, "load": self.load, "huge_pages": self.huge_pages,
            "dir": self.dir, "file_system": self.file_system, "device": self.device,
        })
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field(path: &str, name: &str) -> Option<String> {
    read(path).lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn kib(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// The mount that `path`, or the deepest directory above it that exists, is on.
fn mount_of(path: &Path) -> Option<MountInfo> {
    let path = std::path::absolute(path).ok()?.ancestors().find_map(|path| path.canonicalize().ok())?;
    let mounts = read("/proc/self/mountinfo");
    let above = MountInfo::all(&mounts).filter(|mount| path.starts_with(&mount.point));
    // Of several at one point the last covers the others.
    above.max_by_key(|mount| mount.point.as_os_str().len())
}

/// `2026-11-24 12:00 UTC`, from seconds since 1970.
fn date(seconds: i64) -> String {
    let (mut days, minutes) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) / 60);
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let (mut year, mut month) = (1970, 0);
    while days >= 365 + i64::from(is_leap(year)) {
        days -= 365 + i64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + i64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02} {:02}:{:02} UTC", month + 1, days + 1, minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_of_proc_is_known() {
        assert_eq!(mount_of(Path::new("/proc/self")).unwrap().kind, "proc");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_340), "2000-02-28 23:59 UTC");
        assert_eq!(date(1_795_564_800 + 86_399), "2026-11-25 23:59 UTC");
    }
}
