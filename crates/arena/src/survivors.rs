//! The survivors of the last process: the volumes, inodes and pages with data that only the arena has.

use crate::arena::Arena;
use crate::error::ArenaError;
use crate::ids::{FrameId, InodeSlot, VolumeSlot};
use crate::inode_table::InodeRecord;
use crate::record::LIVE;
use crate::validate::DirtyFrame;
use crate::volume_table::VolumeRecord;

/// Everything in use in an opened arena. All of it stays allocated: the engine frees each slot and frame when it is
/// done with it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Survivors {
    /// By slot.
    pub volumes: Vec<SurvivingVolume>,
    /// Whether another process keeps the files open that had no name left, so that their data is still of use.
    pub removed_are_kept: bool,
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

/// Splits frames into the newest of each page, ordered by inode and index, and the superseded ones.
pub(crate) fn newest(mut frames: Vec<DirtyFrame>) -> Result<(Vec<DirtyFrame>, Vec<DirtyFrame>), ArenaError> {
    frames.sort_unstable_by_key(|dirty| (dirty.key.inode, dirty.key.index, dirty.key.version, dirty.frame));
    let (mut newest, mut superseded) = (Vec::<DirtyFrame>::with_capacity(frames.len()), Vec::new());
    for dirty in frames {
        if let Some(last) = newest.last_mut().filter(|last| is_same_page(last, &dirty)) {
            if last.key.version == dirty.key.version {
                let expected = format!("another than that of frame[{}], which has the same page", last.frame);
                return Err(ArenaError::damaged(
                    format!("frame[{}].version", dirty.frame),
                    dirty.key.version,
                    expected,
                ));
            }
            superseded.push(std::mem::replace(last, dirty));
        } else {
            newest.push(dirty);
        }
    }
    Ok((newest, superseded))
}

fn is_same_page(a: &DirtyFrame, b: &DirtyFrame) -> bool {
    (a.key.inode, a.key.index) == (b.key.inode, b.key.index)
}

/// Groups what [`newest`] found. The tables were checked.
pub(crate) fn group(arena: &Arena, newest: &[DirtyFrame]) -> Survivors {
    let mut volumes =
        arena.volumes().map(|(slot, record)| SurvivingVolume { slot, record, inodes: Vec::new() }).collect::<Vec<_>>();
    let mut pages = newest.chunk_by(|a, b| a.key.inode == b.key.inode).peekable();
    for (number, _) in (0..).zip(arena.mapping().inodes()).filter(|(_, entry)| entry.state.get() == LIVE) {
        let slot = InodeSlot::new(number);
        let own = pages.next_if(|pages| pages[0].key.inode == number).unwrap_or_default();
        let pages = own.iter().map(|dirty| (dirty.key.index, FrameId::new(dirty.frame))).collect();
        let record = arena.inode(slot);
        let volume = volumes.binary_search_by_key(&record.volume, |volume| volume.slot);
        let volume = &mut volumes[volume.expect("C1: the inode's volume is in use")];
        volume.inodes.push(SurvivingInode { slot, record, pages });
    }
    Survivors { volumes, removed_are_kept: false }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::newest;
    use crate::record::PageKey;
    use crate::validate::DirtyFrame;

    fn dirty(frame: u32, inode: u32, index: u64, version: u64) -> DirtyFrame {
        DirtyFrame { key: PageKey { inode, index, version }, frame }
    }

    #[test]
    fn newest_version_of_each_page_wins() {
        let frames =
            vec![dirty(0, 1, 5, 2), dirty(1, 0, 9, 1), dirty(2, 1, 5, 3), dirty(3, 1, 4, 7), dirty(4, 1, 5, 1)];
        let (newest, superseded) = newest(frames).unwrap();
        assert_eq!(newest, [dirty(1, 0, 9, 1), dirty(3, 1, 4, 7), dirty(2, 1, 5, 3)]);
        assert_eq!(superseded, [dirty(4, 1, 5, 1), dirty(0, 1, 5, 2)]);
    }

    #[test]
    fn two_frames_of_one_version_are_damage() {
        let error = newest(vec![dirty(7, 1, 5, 2), dirty(3, 1, 5, 2)]).unwrap_err().to_string();
        assert!(error.contains("frame[7].version is 2, expected another than that of frame[3]"), "{error}");
    }
}
