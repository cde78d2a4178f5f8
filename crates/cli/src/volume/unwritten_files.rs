//! The files with unwritten data, by name.
//!
//! The engine knows files by inode number; names are looked up in the source. If the source hangs, which may be the
//! reason to discard, there are no names and the numbers are shown instead.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use slackwater::SuperBlock;
use slackwater_arena::size;
use slackwater_fuse::Printable as _;

use crate::control::protocol::{FILES_MAX, LostFile, Reply};

/// Names are optional: the search for all of them ends after this time.
const SEARCH: Duration = Duration::from_secs(10);

/// Files, and the number that did not fit into a message.
#[derive(Debug, Default)]
pub(crate) struct UnwrittenFiles {
    pub(crate) files: Vec<LostFile>,
    pub(crate) more_files: u64,
    pub(crate) more_bytes: u64,
}

impl UnwrittenFiles {
    pub(crate) fn into_reply(self, source: PathBuf) -> Reply {
        Reply::WouldLose { source, files: self.files, more_files: self.more_files, more_bytes: self.more_bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum::<u64>() + self.more_bytes
    }

    /// One line per file.
    pub(crate) fn lines(&self, most: usize) -> Vec<String> {
        let line = |file: &LostFile| format!("{:>10}  {}", size::text(file.bytes), file.path.printable());
        let mut lines: Vec<_> = self.files.iter().take(most).map(line).collect();
        let left_out: u64 = self.files.iter().skip(most).map(|file| file.bytes).sum();
        let count = self.files.len().saturating_sub(most) as u64 + self.more_files;
        if count > 0 {
            lines.push(format!("{:>10}  in {count} more files", size::text(left_out + self.more_bytes)));
        }
        lines
    }
}

/// The files of `volume`, with their names below `source`.
///
/// # Blocking
/// For the source, at most ten seconds.
pub(crate) fn of(volume: &Arc<SuperBlock>, source: &Path) -> UnwrittenFiles {
    let mut unclean = volume.would_lose();
    unclean.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    let rest = unclean.split_off(unclean.len().min(FILES_MAX));
    let names = names(unclean.iter().map(|file| (file.id.dev, file.id.ino)).collect(), source.to_path_buf());
    let file = |file: &slackwater::UncleanFile| {
        let path = names.get(&(file.id.dev, file.id.ino)).map(|path| path.printable().to_string());
        let path = path.unwrap_or_else(|| format!("inode {} (name not found)", file.id.ino));
        LostFile { path, bytes: file.bytes }
    };
    UnwrittenFiles {
        files: unclean.iter().map(file).collect(),
        more_files: rest.len() as u64,
        more_bytes: rest.iter().map(|file| file.bytes).sum(),
    }
}

type Names = HashMap<(u64, u64), PathBuf>;

/// Runs on its own thread, which is left behind if the source hangs.
fn names(wanted: Vec<(u64, u64)>, source: PathBuf) -> Names {
    if wanted.is_empty() {
        return Names::new();
    }
    let (found, names) = channel();
    let searching = std::thread::Builder::new().name("sw-names".into()).spawn(move || {
        // The receiver may be gone.
        let _ = search(&wanted, source, &|name| found.send(name).is_ok());
    });
    let deadline = Instant::now() + SEARCH;
    let mut known = Names::new();
    while searching.is_ok()
        && let Ok((id, path)) = names.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        known.insert(id, path);
    }
    known
}

fn search(wanted: &[(u64, u64)], source: PathBuf, found: &dyn Fn(((u64, u64), PathBuf)) -> bool) -> Option<()> {
    let mut wanted: std::collections::HashSet<_> = wanted.iter().copied().collect();
    let mut folders = vec![source];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(status) = entry.metadata() else { continue };
            let id = (status.dev(), status.ino());
            if wanted.remove(&id) {
                found((id, entry.path())).then_some(())?;
            }
            if status.is_dir() {
                folders.push(entry.path());
            }
        }
        if wanted.is_empty() {
            return Some(());
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_say_what_they_leave_out() {
        let file = |name: &str, bytes| LostFile { path: name.into(), bytes };
        let loss =
            UnwrittenFiles { files: vec![file("/s/a", 4096), file("/s/b", 1024)], more_files: 3, more_bytes: 1024 };
        assert_eq!(loss.bytes(), 6144);
        assert_eq!(loss.lines(1), ["   4.0 KiB  /s/a", "   2.0 KiB  in 4 more files"]);
    }

    #[test]
    fn names_are_found_in_the_source() {
        let source = std::env::temp_dir().join(format!("slackwater-names-{}", std::process::id()));
        std::fs::create_dir_all(source.join("deep/er")).unwrap();
        let path = source.join("deep/er/file");
        std::fs::write(&path, "x").unwrap();
        let status = std::fs::metadata(&path).unwrap();
        let names = names(vec![(status.dev(), status.ino()), (0, 0)], source.clone());
        std::fs::remove_dir_all(&source).unwrap();
        assert_eq!(names, Names::from([((status.dev(), status.ino()), path)]));
    }
}
