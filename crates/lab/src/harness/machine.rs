//! What the figures were taken on.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use slackwater_arena::MountInfo;
use slackwater_size as size;

use crate::table::{Align, Table};

/// Facts that a reader needs to compare figures.
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    memory_bytes: u64,
    load: String,
    huge_pages: String,
    /// Where files are made, and the type of the file system there.
    files: Option<(String, String)>,
}

impl Machine {
    /// Looks around; `dir` is where the experiment's files are, if it has any.
    pub(crate) fn of(dir: Option<&Path>) -> Self {
        let unknown = || "unknown".to_owned();
        let uname = rustix::system::uname();
        let load = read("/proc/loadavg").split_whitespace().next().map_or_else(unknown, str::to_owned);
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: uname.release().to_string_lossy().into_owned(),
            memory_bytes: field("/proc/meminfo", "MemTotal").and_then(|text| kib(&text)).unwrap_or(0),
            load,
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled").trim().to_owned(),
            files: dir.map(|dir| (dir.display().to_string(), file_system_of(dir).unwrap_or_else(unknown))),
        }
    }

    pub(crate) fn table(&self, experiment: &str, seed: u64, rounds: Option<u32>) -> Table {
        let title = format!("slackwater-lab {experiment}");
        let mut table = Table::new(title, &[("", Align::Left), ("", Align::Left)]);
        let mut row = |name: &str, text: String| table.row([format!("  {name}"), text]);
        row("machine", format!("{}, {} cores, {} memory", self.cpu, self.cores, size::text(self.memory_bytes)));
        row("kernel", format!("{}, huge pages {}, load {}", self.kernel, self.huge_pages, self.load));
        if let Some((dir, file_system)) = &self.files {
            row("files in", format!("{dir} ({file_system})"));
        }
        match rounds {
            Some(rounds) => row("rounds", format!("{rounds}, seed {seed}")),
            None => row("seed", seed.to_string()),
        }
        table
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "cpu": self.cpu, "cores": self.cores, "kernel": self.kernel, "memory_bytes": self.memory_bytes,
            "load": self.load, "huge_pages": self.huge_pages,
            "dir": self.files.as_ref().map(|(dir, _)| dir),
            "file_system": self.files.as_ref().map(|(_, file_system)| file_system),
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

/// The type of the file system that `path` is on: that of the deepest mount point above it.
pub(crate) fn file_system_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = read("/proc/self/mountinfo");
    let above = MountInfo::all(&mounts).filter(|mount| path.starts_with(&mount.point));
    // Of several at one point the last covers the others.
    above.max_by_key(|mount| mount.point.as_os_str().len()).map(|mount| mount.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_of_proc_is_known() {
        assert_eq!(file_system_of(Path::new("/proc/self")).as_deref(), Some("proc"));
    }
}
