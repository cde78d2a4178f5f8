//! Directory entries: whether they lead to inodes, and whether the root leads to everything.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;

use slackwater::BackendError;
use slackwater::backend::NodeKind;

use crate::check::inodes::Nodes;
use crate::check::problem::{Place, Problem};
use crate::check::run::Findings;
use crate::check::snapshot::Snapshot;
use crate::format::{Decode, Entries, Entry, Key, ROOT, hash_of_name};
use crate::paths::Paths;

/// Reads all names of a snapshot, and counts them at their inodes. Returns the places of the inodes with errors so far.
///
/// # Errors
/// The store's.
pub(super) async fn read(
    snapshot: &mut Snapshot,
    salt: u64,
    nodes: &mut Nodes,
    findings: &mut Findings<'_>,
) -> Result<Paths, BackendError> {
    let wanted: HashSet<u64> = findings.problems.iter().filter_map(Problem::ino).collect();
    let mut paths = Paths::default();
    if let Some(root) = nodes.directory_index(ROOT) {
        nodes.directories[root].named_in = ROOT;
    }
    while let Some((key, value)) = snapshot.names.next(|problem| findings.add(problem)).await? {
        findings.step("reading names", 1);
        let Key::Entries { dir, hash } = key else { continue };
        let index = nodes.directory_index(dir);
        if index.is_none() && !nodes.is_unreadable(dir) {
            findings.add(Problem::StrayNames { dir, hash });
            continue;
        }
        let entries = match Entries::decode(&value) {
            Ok(entries) => entries.0,
            Err(bad) => {
                findings.add(Problem::Undecodable(key, bad.0));
                continue;
            }
        };
        for (number, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.is_free()) {
            findings.report.names += 1;
            let place = Place { dir, hash, name: entry.name.clone(), ino: entry.ino };
            if wanted.contains(&entry.ino) {
                paths.insert(entry.ino, dir, entry.name.clone());
            }
            let right_hash = hash_of_name(salt, &entry.name);
            let is_repeated = entries[..number].iter().any(|other| other.name == entry.name);
            if (right_hash != hash || is_repeated) && nodes.find(entry.ino).is_some() {
                findings.add(Problem::MisplacedName { place: place.clone(), hash: right_hash });
            }
            if nodes.is_unreadable(entry.ino) {
                if let Some(index) = index.filter(|_| NodeKind::of_mode(entry.type_bits) == NodeKind::Directory) {
                    nodes.directories[index].subdirectories += 1;
                }
            } else {
                count(nodes, index, entry, place, findings);
            }
        }
    }
    Ok(paths)
}

/// Counts a name at its inode and at its directory.
fn count(nodes: &mut Nodes, parent: Option<usize>, entry: &Entry, place: Place, findings: &mut Findings<'_>) {
    let Some(node) = nodes.find(entry.ino) else { return findings.add(Problem::DanglingName(place)) };
    node.names += 1;
    let type_bits = node.type_bits;
    if let Some(index) = nodes.directory_index(entry.ino) {
        if let Some(parent) = parent {
            nodes.directories[parent].subdirectories += 1;
        }
        if nodes.directories[index].named_in == 0 {
            nodes.directories[index].named_in = place.dir;
        } else {
            findings.add(Problem::SecondName(place.clone()));
        }
    }
    if type_bits != entry.type_bits {
        findings.add(Problem::WrongType { place, type_bits });
    }
}

/// Compares what was counted with what inodes say. If a record of names could not be read, names are not missed: it may
/// have them (K3).
pub(super) fn finish(nodes: &mut Nodes, findings: &mut Findings<'_>) {
    for node in nodes.iter() {
        let directory = nodes.directory_index(node.ino).map(|index| &nodes.directories[index]);
        let is_named = node.names != 0 || node.ino == ROOT;
        if !is_named && !node.is_orphan {
            if !findings.lacks_names {
                findings.add(Problem::Unnamed(node.ino));
            }
            continue;
        }
        if is_named && node.is_orphan {
            findings.add(Problem::NamedOrphan(node.ino));
        }
        let should = match directory {
            Some(directory) if is_named => 2 + directory.subdirectories,
            Some(_) => 0,
            None => node.names,
        };
        if node.nlink != should && !findings.lacks_names {
            findings.add(Problem::WrongLinks { ino: node.ino, is: node.nlink, should });
        }
        if let Some(directory) = directory.filter(|directory| is_named && directory.named_in != directory.parent) {
            let (dir, parent, is) = (directory.ino, directory.named_in, directory.parent);
            findings.add(Problem::WrongParent { dir, parent, is });
        }
    }
    if nodes.directory_index(ROOT).is_none() && !nodes.is_unreadable(ROOT) {
        findings.add(Problem::NoRoot);
    }
    find_cycles(nodes, findings);
}

/// Walks up from each directory until one is met that was seen.
fn find_cycles(nodes: &mut Nodes, findings: &mut Findings<'_>) {
    let mut walked = Vec::new();
    for start in 0..nodes.directories.len() {
        let mut current = Some(start);
        while let Some(index) = current {
            let directory = &mut nodes.directories[index];
            if directory.is_reachable {
                // Of this very walk: the walk came back to where it has been.
                if walked.contains(&index) && directory.named_in != directory.ino {
                    findings.add(Problem::Cycle { dir: directory.ino, parent: directory.named_in });
                }
                break;
            }
            directory.is_reachable = true;
            walked.push(index);
            let parent = directory.named_in;
            current = nodes.directory_index(parent);
        }
        walked.clear();
    }
}

/// Adds the names of all directories above the inodes with errors.
///
/// # Errors
/// The store's.
pub(super) async fn find_paths(
    snapshot: &mut Snapshot,
    nodes: &Nodes,
    paths: &mut Paths,
    findings: &mut Findings<'_>,
) -> Result<(), BackendError> {
    let found = paths.directories();
    let starts: Vec<u64> = findings.problems.iter().filter_map(Problem::ino).chain(found).collect();
    let mut wanted: HashMap<u64, u64> = HashMap::new();
    for start in starts {
        let mut current = nodes.directory_index(start);
        while let Some(index) = current {
            let directory = &nodes.directories[index];
            if directory.ino == ROOT || wanted.insert(directory.ino, directory.named_in).is_some() {
                break;
            }
            current = nodes.directory_index(directory.named_in);
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    while let Some((key, value)) = snapshot.paths.next(|_| ()).await? {
        findings.step("finding paths", 1);
        let Key::Entries { dir, .. } = key else { continue };
        for entry in Entries::decode(&value).unwrap_or_default().0 {
            let is_directory = NodeKind::of_mode(entry.type_bits) == NodeKind::Directory;
            if is_directory && wanted.get(&entry.ino) == Some(&dir) && !entry.name.as_bytes().is_empty() {
                paths.insert(entry.ino, dir, entry.name);
            }
        }
    }
    Ok(())
}
