//! The survivors of the last process: the volumes, inodes and pages with data that only the arena has, and the records
//! that are damaged.

use std::fmt;

use crate::arena::Arena;
use crate::error::Mismatch;
use crate::ids::{FrameId, InodeSlot, VolumeSlot};
use crate::inode_table::InodeRecord;
use crate::record::PageKey;
use crate::validate::{DirtyFrame, Tables};
use crate::volume_table::VolumeRecord;

/// Everything in use in an opened arena. All of it stays allocated: the engine frees each slot and frame when it is
/// done with it.
///
/// Damaged records are set aside, with everything that cannot be attributed without them. Their slots and frames are
/// neither freed nor allocated again, so the file keeps their bytes. The next process finds them as they are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Survivors {
    /// By slot.
    pub volumes: Vec<SurvivingVolume>,
    /// Whether another process keeps the files open that had no name left, so that their data is still of use.
    pub removed_are_kept: bool,
    /// The damaged records. Empty after any crash: only a fault of the memory or of a program damages them.
    pub damages: Vec<Damage>,
    /// The frames with data that belongs to no surviving inode, or may not, because of the damages. By number.
    pub frames_set_aside: Vec<SetAsideFrame>,
}

/// A damaged record, and the number of sound records that cannot be used without it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Damage {
    /// Record and field, such as `inode[7].check`, with its value.
    pub mismatch: Mismatch,
    /// Inodes that name this volume.
    pub inodes: u64,
    /// DIRTY frames that name this inode, or an inode of this volume.
    pub frames: u64,
}

impl Damage {
    pub(crate) fn new(mismatch: Mismatch) -> Self {
        Self { mismatch, inodes: 0, frames: 0 }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mismatch.fmt(f)
    }
}

/// A frame whose bytes cannot be attributed to a file. They can be read as those of any frame.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct SetAsideFrame {
    /// The frame.
    pub frame: FrameId,
    /// The page that its record names. `None` if the record's check word is wrong.
    pub page: Option<SetAsidePage>,
}

/// The page that the record of a set-aside frame names.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct SetAsidePage {
    /// The number of its inode slot, which may be in no table.
    pub inode: u32,
    /// The index of the page in the file.
    pub index: u64,
    /// Orders the frames of one page.
    pub version: u64,
}

impl SetAsideFrame {
    pub(crate) fn new(frame: FrameId, page: Option<PageKey>) -> Self {
        let page = page.map(|PageKey { inode, index, version }| SetAsidePage { inode, index, version });
        Self { frame, page }
    }
}

/// A volume, with or without inodes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SurvivingVolume {
    /// The slot of its record.
    pub slot: VolumeSlot,
    /// A copy of the record.
    pub record: VolumeRecord,
    /// By slot.
    pub inodes: Vec<SurvivingInode>,
}

/// An inode, with or without pages.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SurvivingInode {
    /// The slot of its record.
    pub slot: InodeSlot,
    /// A copy of the record.
    pub record: InodeRecord,
    /// Page index and frame of each DIRTY page, by index. Of several versions, the newest.
    pub pages: Vec<(u64, FrameId)>,
}

/// DIRTY frames by what becomes of them.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Sorted {
    /// The newest of each page, ordered by inode and index.
    pub(crate) newest: Vec<DirtyFrame>,
    pub(crate) superseded: Vec<DirtyFrame>,
    /// Frames of one page with one version, each with the number of another such frame. No crash leaves them, and either
    /// may have the right bytes.
    pub(crate) ambiguous: Vec<(DirtyFrame, u32)>,
}

pub(crate) fn sort(mut frames: Vec<DirtyFrame>) -> Sorted {
    frames.sort_unstable_by_key(|dirty| (dirty.key.inode, dirty.key.index, dirty.key.version, dirty.frame));
    let mut sorted = Sorted::default();
    for page in frames.chunk_by(is_same_page) {
        let mut newest = None;
        for version in page.chunk_by(|a, b| a.key.version == b.key.version) {
            if let [only] = version {
                sorted.superseded.extend(newest.replace(*only));
            } else {
                let others = version[1..].iter().chain(&version[..1]).map(|other| other.frame);
                sorted.ambiguous.extend(version.iter().copied().zip(others));
            }
        }
        sorted.newest.extend(newest);
    }
    sorted
}

fn is_same_page(a: &DirtyFrame, b: &DirtyFrame) -> bool {
    (a.key.inode, a.key.index) == (b.key.inode, b.key.index)
}

/// Sets aside the frames that [`sort`] found ambiguous.
pub(crate) fn set_aside_ambiguous(tables: &mut Tables, ambiguous: &[(DirtyFrame, u32)]) {
    for (DirtyFrame { key, frame }, other) in ambiguous {
        let expected = format!("another than that of frame[{other}], which has the same page");
        tables.damages.push(Damage::new(Mismatch::new(format!("frame[{frame}].version"), key.version, expected)));
        tables.frames_set_aside.push(SetAsideFrame::new(FrameId::new(*frame), Some(*key)));
    }
    tables.frames_set_aside.sort_unstable_by_key(|set_aside| set_aside.frame);
}

/// Groups the newest frames of `tables` by the volumes and inodes there (C1).
pub(crate) fn group(arena: &Arena, tables: Tables, newest: &[DirtyFrame]) -> Survivors {
    let slots = tables.volumes.into_iter().map(VolumeSlot::new);
    let mut volumes =
        slots.map(|slot| SurvivingVolume { slot, record: arena.volume(slot), inodes: Vec::new() }).collect::<Vec<_>>();
    let mut pages = newest.chunk_by(|a, b| a.key.inode == b.key.inode).peekable();
    for number in tables.inodes {
        let slot = InodeSlot::new(number);
        let own = pages.next_if(|pages| pages[0].key.inode == number).unwrap_or_default();
        let pages = own.iter().map(|dirty| (dirty.key.index, FrameId::new(dirty.frame))).collect();
        let record = arena.inode(slot);
        let volume = volumes.binary_search_by_key(&record.volume, |volume| volume.slot);
        let volume = &mut volumes[volume.expect("C1: the inode's volume is in use")];
        volume.inodes.push(SurvivingInode { slot, record, pages });
    }
    let Tables { damages, frames_set_aside, .. } = tables;
    Survivors { volumes, removed_are_kept: false, damages, frames_set_aside }
}

#[cfg(test)]
mod tests {
    use super::{Sorted, sort};
    use crate::record::PageKey;
    use crate::validate::DirtyFrame;

    fn dirty(frame: u32, inode: u32, index: u64, version: u64) -> DirtyFrame {
        DirtyFrame { key: PageKey { inode, index, version }, frame }
    }

    #[test]
    fn newest_version_of_each_page_wins() {
        let frames =
            vec![dirty(0, 1, 5, 2), dirty(1, 0, 9, 1), dirty(2, 1, 5, 3), dirty(3, 1, 4, 7), dirty(4, 1, 5, 1)];
        let newest = vec![dirty(1, 0, 9, 1), dirty(3, 1, 4, 7), dirty(2, 1, 5, 3)];
        let superseded = vec![dirty(4, 1, 5, 1), dirty(0, 1, 5, 2)];
        assert_eq!(sort(frames), Sorted { newest, superseded, ambiguous: Vec::new() });
    }

    #[test]
    fn frames_of_one_version_are_ambiguous_and_an_older_one_is_used() {
        let sorted = sort(vec![dirty(7, 1, 5, 2), dirty(3, 1, 5, 2), dirty(1, 1, 5, 1), dirty(0, 1, 5, 0)]);
        let ambiguous = vec![(dirty(3, 1, 5, 2), 7), (dirty(7, 1, 5, 2), 3)];
        assert_eq!(sorted, Sorted { newest: vec![dirty(1, 1, 5, 1)], superseded: vec![dirty(0, 1, 5, 0)], ambiguous });
    }
}
