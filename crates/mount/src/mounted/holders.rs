//! Processes that use a mount, from `/proc`. Nothing here sends a request to the mounted file system, since it may
//! hang.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use crate::mounted::processes::each_process;
use slackwater_host::Printable as _;
use slackwater_host::local_stat;

/// A process that uses a mount, and one thing that it uses there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// The name of the process's command.
    pub command: String,
    /// The path that the process uses, or where the volume is mounted.
    pub path: PathBuf,
    /// How the process uses the mount.
    pub how: Hold,
}

/// How a process holds a mount.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Hold {
    /// The process has a working directory, program, open file or mapping there.
    Use,
    /// The volume is mounted at the path in the mount namespace of the process.
    Mount,
}

/// Holders named in a message.
const NAMED_MAX: usize = 5;

/// The holders, formatted for a message; empty if there are none.
pub(super) fn list(holders: &[Holder]) -> String {
    let mut text = String::new();
    for (at, Holder { pid, command, path, how }) in holders.iter().take(NAMED_MAX).enumerate() {
        text += if at == 0 { ": " } else { ", " };
        text += match how {
            Hold::Use => "",
            Hold::Mount => "mounted for ",
        };
        text += &format!("{} ({pid}) at {}", command.printable(), path.printable());
    }
    if holders.len() > NAMED_MAX {
        text += &format!(" and {} more", holders.len() - NAMED_MAX);
    }
    text
}

/// All processes that use something on the device `dev`, each with the first path found.
///
/// # Blocking
/// As [`each_process`].
pub(super) fn of(dev: u64) -> Vec<Holder> {
    each_process(move |pid| holder(pid, dev)).collect()
}

fn holder(pid: u32, dev: u64) -> Option<Holder> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let path = used_link(&process, dev).or_else(|| open_file(&process, dev)).or_else(|| mapped_file(&process, dev))?;
    // A process that has exited meanwhile holds nothing.
    let command = fs::read(process.join("comm")).ok()?;
    let command = String::from_utf8_lossy(command.trim_ascii_end()).into_owned();
    Some(Holder { pid, command, path, how: Hold::Use })
}

fn used_link(process: &Path, dev: u64) -> Option<PathBuf> {
    ["cwd", "root", "exe"].iter().find_map(|name| link_on(&process.join(name), dev))
}

fn open_file(process: &Path, dev: u64) -> Option<PathBuf> {
    fs::read_dir(process.join("fd")).ok()?.flatten().find_map(|entry| link_on(&entry.path(), dev))
}

/// The target of a `/proc` link, if it is on `dev`.
fn link_on(link: &Path, dev: u64) -> Option<PathBuf> {
    let (_, device) = local_stat(CWD, link).ok()?;
    (device == dev).then(|| fs::read_link(link).ok())?
}

fn mapped_file(process: &Path, dev: u64) -> Option<PathBuf> {
    let device = format!("{:02x}:{:02x}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let maps = fs::read(process.join("maps")).ok()?;
    String::from_utf8_lossy(&maps).lines().find_map(|line| path_of_mapping(line, &device))
}

/// Fields are `address perms offset dev inode path`, padded with spaces.
fn path_of_mapping(line: &str, device: &str) -> Option<PathBuf> {
    let mut words = line.splitn(6, ' ');
    (words.nth(3)? == device).then(|| PathBuf::from(words.nth(1).unwrap_or("").trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_names_its_device_and_its_path() {
        let line = "7f00a000-7f00b000 rw-s 00000000 00:2f 42                         /mnt/a file";
        assert_eq!(path_of_mapping(line, "00:2f"), Some(PathBuf::from("/mnt/a file")));
        assert_eq!(path_of_mapping(line, "00:30"), None);
        assert_eq!(path_of_mapping("7f00a000-7f00b000 rw-p 00000000 00:00 0 ", "00:2f"), None);
    }

    #[test]
    fn this_process_holds_the_file_system_of_its_program() {
        let stat = fs::metadata("/proc/self/exe").unwrap();
        let dev = std::os::unix::fs::MetadataExt::dev(&stat);
        let is_found = || of(dev).iter().any(|holder| holder.pid == std::process::id());
        // On a very busy machine a process may not be examined in time.
        assert!((0..20).any(|_| is_found()));
    }

    #[test]
    fn a_message_names_some_holders_and_counts_the_rest() {
        assert_eq!(list(&[]), "");
        let one = |pid| Holder { pid, command: "sh".to_owned(), path: PathBuf::from("/mnt"), how: Hold::Use };
        assert_eq!(list(&[one(7)]), ": sh (7) at /mnt");
        assert!(list(&(1..8).map(one).collect::<Vec<_>>()).ends_with("sh (5) at /mnt and 2 more"));
    }
}
