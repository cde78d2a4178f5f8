//! The files with unwritten data, by name.
//!
//! The engine knows files by inode number; names are looked up in the source. If the source hangs, which may be the
//! reason to discard, there are no names and the numbers are shown instead. An object volume has most names in memory.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use slackwater::SuperBlock;
use slackwater::backend::{Backend, Call, NodeKind};
use slackwater_control::protocol::{FILES_MAX, LostFile, Reply};
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::source::Source;
use crate::source::opened::Opened;
use crate::volume::node_search;

/// Names are optional: the search for all of them ends after this time.
const SEARCH: Duration = Duration::from_secs(10);

/// Files, and the number that did not fit into a message.
#[derive(Debug, Default)]
pub(crate) struct UnwrittenFiles {
    pub(crate) files: Vec<LostFile>,
    pub(crate) more_files: u64,
    pub(crate) more_bytes: u64,
    /// Changes of names and attributes of an object volume that are only in its local log.
    pub(crate) changes: u64,
}

impl UnwrittenFiles {
    pub(crate) fn into_reply(self, source: PathBuf) -> Reply {
        let Self { files, more_files, more_bytes, changes } = self;
        Reply::WouldLose { source, files, more_files, more_bytes, changes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.changes == 0
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum::<u64>() + self.more_bytes
    }

    /// The files as text, at most `most` of them, each on a line.
    pub(crate) fn lines(&self, most: usize) -> Vec<String> {
        let line = |file: &LostFile| format!("{:>10}  {}", size::text(file.bytes), file.path.printable());
        let mut lines: Vec<_> = self.files.iter().take(most).map(line).collect();
        let left_out: u64 = self.files.iter().skip(most).map(|file| file.bytes).sum();
        let count = self.files.len().saturating_sub(most) as u64 + self.more_files;
        if count > 0 {
            lines.push(format!("{:>10}  in {count} more files", size::text(left_out + self.more_bytes)));
        }
        if self.changes > 0 {
            lines.push(format!("{:>10}  changes of names, attributes and the map of files", self.changes));
        }
        lines
    }
}

/// The files of `volume`, with their names below `source`, which is open as `opened`.
///
/// # Blocking
/// For the source, at most ten seconds.
pub(crate) fn of(volume: &Arc<SuperBlock>, source: &Source, opened: Option<&Opened>) -> UnwrittenFiles {
    let mut unclean = volume.would_lose();
    unclean.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    let rest = unclean.split_off(unclean.len().min(FILES_MAX));
    let place = match (source, opened) {
        (Source::Object(volume), Some(opened)) => {
            opened.backend(None).ok().map(|backend| Place::Backend { name: PathBuf::from(&volume.url), backend })
        }
        (Source::Object(_), None) => None,
        (Source::Directory(directory), _) => Some(Place::Directory(directory.path.clone())),
    };
    let inos: Vec<u64> = unclean.iter().map(|file| file.id.ino).collect();
    let known = opened.map(|opened| opened.known_paths(&inos)).unwrap_or_default();
    let removed: Names =
        volume.removed_paths(usize::MAX).into_iter().map(|(id, path)| ((id.dev, id.ino), path)).collect();
    let ids = unclean.iter().map(|file| (file.id.dev, file.id.ino));
    let wanted = ids.filter(|id| !known.contains_key(&id.1) && !removed.contains_key(id)).collect();
    let mut names = place.map(|place| names(wanted, place)).unwrap_or_default();
    names.extend(removed);
    if let Source::Object(volume) = source {
        let known = unclean.iter().filter_map(|file| Some(((file.id.dev, file.id.ino), known.get(&file.id.ino)?)));
        let below = |path: &PathBuf| PathBuf::from(&volume.url).join(path.strip_prefix("/").unwrap_or(path));
        names.extend(known.map(|(id, path)| (id, below(path))));
    }
    let file = |file: &slackwater::UncleanFile| {
        let path = names.get(&(file.id.dev, file.id.ino)).map(|path| path.printable().to_string());
        let path = path.unwrap_or_else(|| format!("inode {} (name not found)", file.id.ino));
        LostFile { path, bytes: file.bytes }
    };
    UnwrittenFiles {
        files: unclean.iter().map(file).collect(),
        more_files: rest.len() as u64,
        more_bytes: rest.iter().map(|file| file.bytes).sum(),
        changes: opened.and_then(Opened::status).map_or(0, |object| object.uncommitted_changes),
    }
}

/// Where names are searched for.
enum Place {
    Directory(PathBuf),
    /// An object volume, whose root is shown as `name`.
    Backend {
        name: PathBuf,
        backend: Arc<dyn Backend>,
    },
}

type Names = HashMap<(u64, u64), PathBuf>;

/// Runs on its own thread, which is left behind if the source hangs.
fn names(wanted: Vec<(u64, u64)>, place: Place) -> Names {
    if wanted.is_empty() {
        return Names::new();
    }
    let (found, names) = channel();
    let searching = std::thread::Builder::new().name("sw-names".into()).spawn(move || {
        // The receiver may be gone.
        let found = |name| found.send(name).is_ok();
        let _ = match place {
            Place::Directory(path) => search(&wanted, path, &found),
            Place::Backend { name, backend } => search_backend(&wanted, name, &*backend, &found),
        };
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

/// As [`search`], in a backend. Gives up when the backend fails.
fn search_backend(
    wanted: &[(u64, u64)],
    name: PathBuf,
    backend: &dyn Backend,
    found: &dyn Fn(((u64, u64), PathBuf)) -> bool,
) -> Option<()> {
    let mut wanted: std::collections::HashSet<_> = wanted.iter().copied().collect();
    let root = node_search::ask(backend, |done| Call::Root { done }).ok()?;
    let mut folders = vec![(name, root.node)];
    while let Some((path, dir)) = folders.pop() {
        let mut cookie = 0;
        loop {
            let entries =
                node_search::ask(backend, |done| Call::ReaddirPlus { node: dir.clone(), cookie, done }).ok()?;
            let Some(last) = entries.last() else { break };
            cookie = last.entry.cookie;
            for entry in entries {
                let Some(child) = entry.found else { continue };
                let (id, path) = (child.node.id(), path.join(&entry.entry.name));
                if wanted.remove(&(id.dev, id.ino)) {
                    found(((id.dev, id.ino), path.clone())).then_some(())?;
                }
                if child.attr.kind == NodeKind::Directory {
                    folders.push((path, child.node));
                }
            }
            if wanted.is_empty() {
                return Some(());
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use slackwater::backend::{MemBackend, NewNode, Node};

    use super::*;

    #[test]
    fn long_lists_say_what_they_leave_out() {
        let file = |name: &str, bytes| LostFile { path: name.into(), bytes };
        let files = vec![file("/s/a", 4096), file("/s/b", 1024)];
        let loss = UnwrittenFiles { files, more_files: 3, more_bytes: 1024, changes: 7 };
        assert_eq!(loss.bytes(), 6144);
        let lines = loss.lines(1);
        assert_eq!(lines[..2], ["   4.0 KiB  /s/a", "   2.0 KiB  in 4 more files"]);
        assert!(lines.len() == 3 && lines[2].starts_with("         7  changes"), "{lines:?}");
        assert!(!UnwrittenFiles { files: Vec::new(), ..loss }.is_empty());
    }

    #[test]
    fn names_are_found_in_a_backend() {
        let backend = Arc::new(MemBackend::new());
        let root = node_search::ask(&*backend, |done| Call::Root { done }).unwrap();
        let make = |dir: &Node, name: &str, what| {
            let (dir, name) = (dir.clone(), name.into());
            node_search::ask(&*backend, |done| Call::Make { dir, name, what, mode: 0o755, creator: None, done })
                .unwrap()
        };
        let dir = make(&root.node, "deep", NewNode::Directory);
        let file = make(&dir.node, "file", NewNode::File).node.id();
        let place = Place::Backend { name: "s3://b/v".into(), backend };
        let names = names(vec![(file.dev, file.ino), (0, 0)], place);
        assert_eq!(names, Names::from([((file.dev, file.ino), "s3://b/v/deep/file".into())]));
    }

    #[test]
    fn names_are_found_in_the_source() {
        let source = std::env::temp_dir().join(format!("slackwater-names-{}", std::process::id()));
        std::fs::create_dir_all(source.join("deep/er")).unwrap();
        let path = source.join("deep/er/file");
        std::fs::write(&path, "x").unwrap();
        let status = std::fs::metadata(&path).unwrap();
        let names = names(vec![(status.dev(), status.ino()), (0, 0)], Place::Directory(source.clone()));
        std::fs::remove_dir_all(&source).unwrap();
        assert_eq!(names, Names::from([((status.dev(), status.ino()), path)]));
    }
}
