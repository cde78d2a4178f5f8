//! Files with data of a dead predecessor, on sources that cannot open files by handle.
//!
//! Without CAP_DAC_READ_SEARCH, on FUSE, and on file systems without handles, a backend can reopen a node only after it
//! has found it by name. So the source is searched for the inode numbers, and the files found are looked up in the
//! backend. If the predecessor was kept, its keeper has descriptors of the nodes that programs used, and passes them
//! on.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;

use slackwater::backend::{Backend, Call, Done, Found, Node};
use slackwater::{BackendError, ErrorKind};
use slackwater_backends::DirBackend;
use slackwater_host::Printable as _;

/// Nodes, by the numbers that the kernel has of them.
pub(crate) type Numbered<T> = Vec<(u64, T)>;

/// Opens the directory `source` so that it reaches the nodes `left`, of which a dead predecessor left data. `nodes` are
/// descriptors that it has passed on, by number: only nodes in `left` without one are searched for. Returns those that
/// the backend has found.
///
/// # Errors
/// The source cannot be opened, or not all of it can be searched.
///
/// # Blocking
/// For the source, if nodes are searched for.
pub(crate) fn open(
    source: &Path,
    left: &HashSet<u64>,
    nodes: Numbered<OwnedFd>,
) -> io::Result<(DirBackend, Numbered<Found>)> {
    let backend = DirBackend::open(source).map_err(io::Error::other)?;
    let mut found = Vec::with_capacity(nodes.len());
    for (number, descriptor) in nodes {
        match backend.adopt(descriptor) {
            Ok(node) => found.push((number, node)),
            Err(error) => tracing::warn!(%error, "a node of the last process cannot be used: it is stale"),
        }
    }
    if backend.keeps_nodes_open() {
        let known: HashSet<_> = found.iter().map(|(_, found)| found.attr.id.ino).collect();
        let unknown: HashSet<_> = left.difference(&known).copied().collect();
        if !unknown.is_empty() {
            find_nodes(&backend, source, &unknown)?;
        }
    }
    Ok((backend, found))
}

/// Looks up every node below `source` whose inode number is in `wanted`. Nodes without a name are not found.
///
/// # Errors
/// A directory could not be read, or a name not looked up, so its contents are unknown.
///
/// # Blocking
/// For the source.
fn find_nodes(backend: &dyn Backend, source: &Path, wanted: &HashSet<u64>) -> io::Result<()> {
    let root = ask(backend, |done| Call::Root { done }).map_err(io::Error::other)?;
    let mut folders = vec![(source.to_path_buf(), root.node)];
    // Looked up last: a backend keeps a limited number of nodes, including those of directories.
    let mut names = Vec::new();
    while let Some((path, dir)) = folders.pop() {
        for entry in std::fs::read_dir(&path)? {
            let entry = entry?;
            // Asks the file: the inode number in a directory entry of a server may differ from the file's.
            let status = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                status => status?,
            };
            if wanted.contains(&status.ino()) {
                names.push((dir.clone(), entry.file_name()));
            } else if status.is_dir() {
                match look_up(backend, &dir, entry.file_name()) {
                    Ok(found) => folders.push((entry.path(), found.node)),
                    // A mount point is not part of the volume.
                    Err(error) if error.kind() == ErrorKind::CrossDevice => {}
                    Err(error) => return Err(io::Error::other(format!("{}: {error}", entry.path().printable()))),
                }
            }
        }
    }
    for (dir, name) in names {
        look_up(backend, &dir, name).map_err(io::Error::other)?;
    }
    Ok(())
}

fn look_up(backend: &dyn Backend, dir: &Node, name: OsString) -> Result<Found, BackendError> {
    ask(backend, |done| Call::Lookup { dir: dir.clone(), name, done })
}

/// Waits for the answer to a call.
///
/// # Blocking
/// For the source.
pub(crate) fn ask<T: Send + 'static>(
    backend: &dyn Backend,
    call: impl FnOnce(Done<T>) -> Call,
) -> Result<T, BackendError> {
    let (answer, answered) = channel();
    backend.submit(call(Done::new(move |result| {
        // The caller waits for it.
        let _ = answer.send(result);
    })));
    answered.recv().unwrap_or_else(|_| Err(ErrorKind::Abandoned.into()))
}
