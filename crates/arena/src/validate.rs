//! Checking the tables of a file that another process wrote.
//!
//! Nothing is changed here. Every state that a crash can leave is accepted: any mixture of FREE, CLEAN, DIRTY and LIVE
//! records, and anything in the fields of a FREE one. Everything else is damage and is named in the error.
//!
//! # Invariants
//! C1. Tables that pass obey R2 of [`crate::record`] and F6 of [`crate::arena`]: complete records that name used slots.

use crate::error::ArenaError;
use crate::ids::SHORT_BYTES_MAX;
use crate::mapping::Mapping;
use crate::record::{CLEAN, DIRTY, FREE, LIVE, PageKey, ShortEntry};

/// A DIRTY frame.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct DirtyFrame {
    pub(crate) key: PageKey,
    pub(crate) frame: u32,
}

/// Checks all tables and returns the DIRTY frames by frame number.
pub(crate) fn dirty_frames(mapping: &Mapping) -> Result<Vec<DirtyFrame>, ArenaError> {
    for slot in 0..mapping.layout().counts.volumes {
        check_volume(mapping, slot)?;
    }
    for slot in 0..mapping.layout().counts.inodes {
        check_inode(mapping, slot)?;
    }
    let frames = 0..mapping.layout().counts.frames;
    frames.filter_map(|frame| check_frame(mapping, frame).transpose()).collect()
}

fn check_volume(mapping: &Mapping, slot: u32) -> Result<(), ArenaError> {
    let entry = &mapping.volumes()[slot as usize];
    let at = || format!("volume[{slot}]");
    if is_live(entry.state.get(), at)? {
        check_len(&entry.id, || format!("volume[{slot}].id_len"))?;
        check_sum(entry.check.get(), entry.sum(slot), at)?;
    }
    Ok(())
}

fn check_inode(mapping: &Mapping, slot: u32) -> Result<(), ArenaError> {
    let entry = &mapping.inodes()[slot as usize];
    let at = || format!("inode[{slot}]");
    if is_live(entry.state.get(), at)? {
        check_len(&entry.handle, || format!("inode[{slot}].handle_len"))?;
        check_sum(entry.check.get(), entry.sum(slot), at)?;
        let volume = entry.volume.get();
        let named = mapping.volumes().get(volume as usize);
        if named.is_none_or(|named| named.state.get() != LIVE) {
            return Err(ArenaError::damaged(format!("inode[{slot}].volume"), volume, "a volume slot in use"));
        }
    }
    Ok(())
}

fn check_frame(mapping: &Mapping, frame: u32) -> Result<Option<DirtyFrame>, ArenaError> {
    let entry = &mapping.frames()[frame as usize];
    match entry.state() {
        FREE | CLEAN => return Ok(None),
        DIRTY => {}
        other => {
            let expected = format!("FREE ({FREE:#x}), CLEAN ({CLEAN:#x}) or DIRTY ({DIRTY:#x})");
            return Err(ArenaError::damaged(format!("frame[{frame}].state"), format!("{other:#x}"), expected));
        }
    }
    check_sum(entry.check(), entry.sum(frame), || format!("frame[{frame}]"))?;
    let key = entry.key();
    let named = mapping.inodes().get(key.inode as usize);
    if named.is_none_or(|named| named.state.get() != LIVE) {
        return Err(ArenaError::damaged(format!("frame[{frame}].inode"), key.inode, "an inode slot in use"));
    }
    Ok(Some(DirtyFrame { key, frame }))
}

fn is_live(state: u32, at: impl Fn() -> String) -> Result<bool, ArenaError> {
    match state {
        FREE => Ok(false),
        LIVE => Ok(true),
        other => {
            let expected = format!("FREE ({FREE:#x}) or LIVE ({LIVE:#x})");
            Err(ArenaError::damaged(format!("{}.state", at()), format!("{other:#x}"), expected))
        }
    }
}

fn check_len(entry: &ShortEntry, field: impl Fn() -> String) -> Result<(), ArenaError> {
    if entry.len() > SHORT_BYTES_MAX as u64 {
        return Err(ArenaError::damaged(field(), entry.len(), format!("at most {SHORT_BYTES_MAX}")));
    }
    Ok(())
}

fn check_sum(found: u64, expected: u64, at: impl Fn() -> String) -> Result<(), ArenaError> {
    if found != expected {
        return Err(ArenaError::damaged(format!("{}.check", at()), format!("{found:#x}"), format!("{expected:#x}")));
    }
    Ok(())
}
