//! Files that a dead predecessor left data of, where the source cannot open them by handle.
//!
//! Without CAP_DAC_READ_SEARCH, on FUSE, and on file systems without handles, a backend opens a node again only after it has found
//! it by name. So the source is searched for the numbers, and what is found is looked up in the backend.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;

use slackwater::backend::{Backend, Call, Done, Found, Node};
use slackwater::{BackendError, ErrorKind};
use slackwater_backends::DirBackend;
use slackwater_fuse::Printable as _;

/// Opens the directory `source`, so that it reaches the nodes `left`: those that a dead predecessor left data of.
///
/// # Errors
/// It cannot be opened, or not all of it be searched.
///
/// # Blocking
/// For the source.
pub(crate) fn open_for(source: &Path, left: Option<&HashSet<u64>>) -> io::Result<DirBackend> {
    let backend = DirBackend::open(source).map_err(io::Error::other)?;
    if let Some(nodes) = left.filter(|_| backend.keeps_nodes_open()) {
        find_nodes(&backend, source, nodes)?;
    }
    Ok(backend)
}

/// Looks up every node below `source` whose number is in `wanted`. What has no name left is not found.
///
/// # Errors
/// A directory could not be read, or a name not be looked up: what is in there is not known.
///
/// # Blocking
/// For the source.
fn find_nodes(backend: &dyn Backend, source: &Path, wanted: &HashSet<u64>) -> io::Result<()> {
    let root = ask(backend, |done| Call::Root { done }).map_err(io::Error::other)?;
    let mut folders = vec![(source.to_path_buf(), root.node)];
    // Looked up last: a backend keeps a limited number of nodes, those of folders among them.
    let mut names = Vec::new();
    while let Some((path, dir)) = folders.pop() {
        for entry in std::fs::read_dir(&path)? {
            let entry = entry?;
            // Asked of the file: what a directory says of numbers is not what a server's files have.
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

fn ask(backend: &dyn Backend, call: impl FnOnce(Done<Found>) -> Call) -> Result<Found, BackendError> {
    let (answer, answered) = channel();
    backend.submit(call(Done::new(move |result| {
        // Who asked waits for it.
        let _ = answer.send(result);
    })));
    answered.recv().unwrap_or_else(|_| Err(ErrorKind::Abandoned.into()))
}
