//! Inodes with what belongs to them: chunks, large attributes and the marks of orphans, merged by number.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use slackwater::BackendError;
use slackwater::backend::NodeKind;

use crate::check::checksums::{Job, Verifier};
use crate::check::problem::Problem;
use crate::check::run::Findings;
use crate::check::segments::{Segments, Used};
use crate::check::snapshot::Snapshot;
use crate::format::{CHUNK_BYTES, Chunk, Decode, FILE_BYTES_MAX, Inode, Key, Source, Xattr};

/// The part of an inode that later passes need.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) ino: u64,
    pub(super) nlink: u32,
    pub(super) type_bits: u32,
    /// How many names lead to it, as counted by the pass over names.
    pub(super) names: u32,
    pub(super) is_orphan: bool,
}

/// The part of a directory that later passes need, beside its [`Node`].
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) ino: u64,
    /// By its inode.
    pub(super) parent: u64,
    /// The directory that has its name, as counted by the pass over names; 0 if none has.
    pub(super) named_in: u64,
    pub(super) subdirectories: u32,
    pub(super) is_reachable: bool,
}

/// All inodes, in the order of their numbers.
#[derive(Default)]
pub(super) struct Nodes {
    all: Vec<Node>,
    pub(super) directories: Vec<Directory>,
    /// Inodes whose records cannot be read. They exist, and nothing else is known of them (K3).
    unreadable: BTreeSet<u64>,
    /// The sum of the lengths of all extents.
    pub(super) data_bytes: u64,
}

impl Nodes {
    pub(super) fn find(&mut self, ino: u64) -> Option<&mut Node> {
        let index = self.all.binary_search_by_key(&ino, |node| node.ino).ok()?;
        Some(&mut self.all[index])
    }

    pub(super) fn directory_index(&self, ino: u64) -> Option<usize> {
        self.directories.binary_search_by_key(&ino, |directory| directory.ino).ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.all.iter()
    }

    pub(super) fn len(&self) -> u64 {
        (self.all.len() + self.unreadable.len()) as u64
    }

    /// The highest number; 0 if there is no inode.
    pub(super) fn last(&self) -> u64 {
        self.all.last().map_or(0, |node| node.ino).max(self.unreadable.last().copied().unwrap_or(0))
    }

    pub(super) fn is_unreadable(&self, ino: u64) -> bool {
        self.unreadable.contains(&ino)
    }

    /// Reads all inodes of a snapshot.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn read(
        snapshot: &mut Snapshot,
        segments: &mut Segments,
        mut verifier: Option<&mut Verifier>,
        findings: &mut Findings<'_>,
    ) -> Result<Self, BackendError> {
        let mut nodes = Self::default();
        while let Some((key, value)) = snapshot.inodes.next(|problem| findings.add(problem)).await? {
            findings.step("reading inodes", 1);
            let Key::Inode(ino) = key else { continue };
            nodes.strays_before(snapshot, ino, segments, findings).await?;
            let orphan = snapshot.orphans.next_up_to(Key::Orphan(ino), |problem| findings.add(problem)).await?;
            let inode = match Inode::decode(&value) {
                Ok(inode) => inode,
                Err(bad) => {
                    findings.add(Problem::Undecodable(key, bad.0));
                    nodes.unreadable.insert(ino);
                    nodes.skip(snapshot, ino, segments, findings).await?;
                    continue;
                }
            };
            nodes.add(ino, &inode, orphan.is_some(), findings);
            check_xattrs(snapshot, ino, &inode, findings).await?;
            let file = File { ino, inode: &inode };
            let (chunks, verifier) = (Counted { nodes: &mut nodes, segments }, verifier.as_deref_mut());
            file.check_chunks(snapshot, chunks, verifier, findings).await?;
        }
        nodes.strays_before(snapshot, u64::MAX, segments, findings).await?;
        if let Some(verifier) = verifier {
            verifier.finish(findings).await?;
        }
        Ok(nodes)
    }

    fn add(&mut self, ino: u64, inode: &Inode, is_orphan: bool, findings: &mut Findings<'_>) {
        let type_bits = inode.mode & 0o170_000;
        self.all.push(Node { ino, nlink: inode.nlink, type_bits, names: 0, is_orphan });
        if NodeKind::of_mode(inode.mode) == NodeKind::Directory {
            findings.report.directories += 1;
            let directory =
                Directory { ino, parent: inode.parent, named_in: 0, subdirectories: 0, is_reachable: false };
            self.directories.push(directory);
        } else {
            findings.report.files += 1;
        }
        findings.report.orphans += u64::from(is_orphan);
    }

    /// Reports what belongs to inodes before `ino` that do not exist. Data of such an inode counts as used: a repair makes
    /// the inode anew (K2).
    async fn strays_before(
        &mut self,
        snapshot: &mut Snapshot,
        ino: u64,
        segments: &mut Segments,
        findings: &mut Findings<'_>,
    ) -> Result<(), BackendError> {
        let Some(last) = ino.checked_sub(1) else { return Ok(()) };
        let mut lost = None;
        let last_chunk = Key::Chunk { ino: last, index: u64::MAX };
        while let Some((key, value)) = snapshot.chunks.next_up_to(last_chunk, |problem| findings.add(problem)).await? {
            let Key::Chunk { ino, index } = key else { continue };
            let Some(chunk) = decode(key, &value, findings) else { continue };
            self.count(&chunk, segments);
            let end = chunk.extents.last().map_or(0, |extent| u64::from(extent.end()));
            let end_bytes = index.saturating_mul(CHUNK_BYTES).saturating_add(end).min(FILE_BYTES_MAX);
            if let Some((before, end_bytes)) = lost.replace((ino, end_bytes)).filter(|(before, _)| *before != ino) {
                findings.add(Problem::LostInode { ino: before, end_bytes });
            }
        }
        if let Some((ino, end_bytes)) = lost {
            findings.add(Problem::LostInode { ino, end_bytes });
        }
        let last_xattr = Key::Xattr { ino: last, number: u64::MAX };
        while let Some((key, _)) = snapshot.xattrs.next_up_to(last_xattr, |problem| findings.add(problem)).await? {
            if let Key::Xattr { ino, number } = key {
                findings.add(Problem::StrayXattr { ino, number });
            }
        }
        while let Some((key, _)) = snapshot.orphans.next_up_to(Key::Orphan(last), |p| findings.add(p)).await? {
            if let Key::Orphan(ino) = key {
                findings.add(Problem::StrayOrphan(ino));
            }
        }
        Ok(())
    }

    /// Passes over what belongs to an inode that cannot be read, and counts its extents alone.
    async fn skip(
        &mut self,
        snapshot: &mut Snapshot,
        ino: u64,
        segments: &mut Segments,
        findings: &mut Findings<'_>,
    ) -> Result<(), BackendError> {
        let last = Key::Chunk { ino, index: u64::MAX };
        while let Some((key, value)) = snapshot.chunks.next_up_to(last, |problem| findings.add(problem)).await? {
            if let Some(chunk) = decode(key, &value, findings) {
                self.count(&chunk, segments);
            }
        }
        let last = Key::Xattr { ino, number: u64::MAX };
        while snapshot.xattrs.next_up_to(last, |problem| findings.add(problem)).await?.is_some() {}
        Ok(())
    }

    /// Counts the extents of a file without a readable inode. Those that are lost are reported once it has one.
    fn count(&mut self, chunk: &Chunk, segments: &mut Segments) {
        for extent in &chunk.extents {
            self.data_bytes += u64::from(extent.len);
            if let Source::Segment(stored) = &extent.source {
                segments.count(stored, extent.len);
            }
        }
    }
}

/// Compares the large attributes that an inode names with the values that are there.
async fn check_xattrs(
    snapshot: &mut Snapshot,
    ino: u64,
    inode: &Inode,
    findings: &mut Findings<'_>,
) -> Result<(), BackendError> {
    let mut present = HashSet::new();
    let last = Key::Xattr { ino, number: u64::MAX };
    while let Some((key, _)) = snapshot.xattrs.next_up_to(last, |problem| findings.add(problem)).await? {
        if let Key::Xattr { number, .. } = key {
            present.insert(number);
        }
    }
    for (name, value) in &inode.xattrs {
        if let Xattr::Apart(number) = value
            && !present.remove(number)
        {
            findings.add(Problem::LostXattr { ino, name: name.clone() });
        }
    }
    for number in present {
        findings.add(Problem::StrayXattr { ino, number });
    }
    Ok(())
}

/// A file whose chunks are read.
struct File<'a> {
    ino: u64,
    inode: &'a Inode,
}

/// Where the extents of a file are counted.
struct Counted<'a> {
    nodes: &'a mut Nodes,
    segments: &'a mut Segments,
}

impl File<'_> {
    async fn check_chunks(
        &self,
        snapshot: &mut Snapshot,
        counted: Counted<'_>,
        mut verifier: Option<&mut Verifier>,
        findings: &mut Findings<'_>,
    ) -> Result<(), BackendError> {
        let is_file = NodeKind::of_mode(self.inode.mode) == NodeKind::File;
        let (mut allocated_bytes, mut data_end, mut is_readable) = (0, 0, true);
        let last = Key::Chunk { ino: self.ino, index: u64::MAX };
        while let Some((key, value)) = snapshot.chunks.next_up_to(last, |problem| findings.add(problem)).await? {
            findings.step("reading extents", 1);
            let Key::Chunk { ino, index } = key else { continue };
            if !is_file {
                findings.add(Problem::StrayChunk { ino, index });
                continue;
            }
            let Some(chunk) = decode(key, &value, findings) else {
                is_readable = false;
                continue;
            };
            if chunk.extents.is_empty() {
                findings.add(Problem::EmptyChunk { ino, index });
            }
            for extent in &chunk.extents {
                allocated_bytes += u64::from(extent.len);
                let Source::Segment(stored) = &extent.source else { continue };
                let offset_bytes = index.saturating_mul(CHUNK_BYTES).saturating_add(u64::from(extent.at));
                data_end = offset_bytes.saturating_add(u64::from(extent.len));
                match (counted.segments.count(stored, extent.len), verifier.as_deref_mut()) {
                    (Used::At(place), Some(verifier)) => {
                        let job = Job { ino, index, at: extent.at, len: extent.len, stored: stored.clone(), place };
                        verifier.start(job, findings).await?;
                    }
                    (Used::At(_) | Used::Unknown, _) => {}
                    (Used::Lost(why), _) => {
                        let (at, len, segment) = (extent.at, extent.len, stored.segment);
                        findings.add(Problem::LostExtent { ino, index, at, len, segment, why });
                    }
                }
            }
        }
        counted.nodes.data_bytes += allocated_bytes;
        if is_readable && allocated_bytes != self.inode.allocated_bytes {
            let (is, should) = (self.inode.allocated_bytes, allocated_bytes);
            findings.add(Problem::WrongAllocated { ino: self.ino, is, should });
        }
        if data_end > self.inode.size_bytes {
            findings.add(Problem::BehindEnd { ino: self.ino, size_bytes: self.inode.size_bytes });
        }
        Ok(())
    }
}

fn decode(key: Key, value: &Bytes, findings: &mut Findings<'_>) -> Option<Chunk> {
    match Chunk::decode(value) {
        Ok(chunk) => Some(chunk),
        Err(bad) => {
            findings.add(Problem::Undecodable(key, bad.0));
            None
        }
    }
}
