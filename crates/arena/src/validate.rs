//! Checking the tables of a file that another process wrote.
//!
//! Nothing is changed here. Every state that a crash can leave is accepted: any mixture of FREE, CLEAN, DIRTY and LIVE
//! records, and anything in the fields of a FREE one. Everything else is damage. It is reported by name, and its record
//! is set aside with the records that depend on it.
//!
//! # Invariants
//! C1. The volumes, inodes and DIRTY frames that pass obey R2 of [`crate::record`] and F6 of [`crate::arena`]: complete
//!     records that name used slots.
//! C2. A free slot that a damaged record names is set aside too. A new owner of the slot would make that record valid,
//!     and the next process would take its data for the data of the new owner.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Mismatch;
use crate::ids::{FrameId, SHORT_BYTES_MAX};
use crate::mapping::Mapping;
use crate::record::{CLEAN, DIRTY, FREE, LIVE, PageKey, ShortEntry};
use crate::survivors::{Damage, SetAsideFrame};

/// A DIRTY frame.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct DirtyFrame {
    pub(crate) key: PageKey,
    pub(crate) frame: u32,
}

/// Slots that nothing uses as long as the arena is open: those of damaged records and of records that depend on them,
/// and free ones (C2).
#[derive(Debug, Default)]
pub(crate) struct SetAside {
    pub(crate) volumes: BTreeSet<u32>,
    pub(crate) inodes: BTreeSet<u32>,
}

/// The tables of an arena, checked.
#[derive(Default)]
pub(crate) struct Tables {
    /// The slots of the volumes and inodes in use (C1), ascending.
    pub(crate) volumes: Vec<u32>,
    pub(crate) inodes: Vec<u32>,
    /// By frame number (C1).
    pub(crate) dirty: Vec<DirtyFrame>,
    pub(crate) damages: Vec<Damage>,
    pub(crate) frames_set_aside: Vec<SetAsideFrame>,
    pub(crate) set_aside: SetAside,
}

/// Checks all tables.
pub(crate) fn tables(mapping: &Mapping) -> Tables {
    let mut check =
        Check { mapping, tables: Tables::default(), volume_damage: BTreeMap::new(), inode_damage: BTreeMap::new() };
    let counts = mapping.layout().counts;
    (0..counts.volumes).for_each(|slot| check.volume(slot));
    (0..counts.inodes).for_each(|slot| check.inode(slot));
    (0..counts.frames).for_each(|frame| check.frame(frame));
    check.tables
}

struct Check<'m> {
    mapping: &'m Mapping,
    tables: Tables,
    /// Which of the damages makes a slot unusable.
    volume_damage: BTreeMap<u32, usize>,
    inode_damage: BTreeMap<u32, usize>,
}

impl Check<'_> {
    fn damage(&mut self, mismatch: Mismatch) -> usize {
        self.tables.damages.push(Damage::new(mismatch));
        self.tables.damages.len() - 1
    }

    fn volume(&mut self, slot: u32) {
        match volume_is_used(self.mapping, slot) {
            Ok(false) => {}
            Ok(true) => self.tables.volumes.push(slot),
            Err(mismatch) => {
                let damage = self.damage(mismatch);
                self.volume_damage.insert(slot, damage);
                self.tables.set_aside.volumes.insert(slot);
            }
        }
    }

    fn inode(&mut self, slot: u32) {
        let damage = match inode_is_used(self.mapping, slot) {
            Ok(false) => return,
            Ok(true) => match self.damage_of_named_volume(slot) {
                None => return self.tables.inodes.push(slot),
                Some(damage) => damage,
            },
            Err(mismatch) => self.damage(mismatch),
        };
        self.inode_damage.insert(slot, damage);
        self.tables.set_aside.inodes.insert(slot);
    }

    /// The damage that makes a sound inode record unusable, if the volume that it names is not in use.
    fn damage_of_named_volume(&mut self, slot: u32) -> Option<usize> {
        let volume = self.mapping.inodes()[slot as usize].volume.get();
        if let Some(damage) = self.volume_damage.get(&volume) {
            self.tables.damages[*damage].inodes += 1;
            return Some(*damage);
        }
        let named = self.mapping.volumes().get(volume as usize);
        if named.is_some_and(|named| named.state.get() == LIVE) {
            return None;
        }
        self.tables.set_aside.volumes.insert(volume); // C2
        Some(self.damage(Mismatch::new(format!("inode[{slot}].volume"), volume, "a volume slot in use")))
    }

    fn frame(&mut self, frame: u32) {
        let entry = &self.mapping.frames()[frame as usize];
        let state = entry.state();
        if state == FREE || state == CLEAN {
            return;
        }
        let key = entry.key();
        let sound = check_sum(entry.check(), entry.sum(frame), || format!("frame[{frame}]"));
        let page = sound.is_ok().then_some(key);
        let mismatch = if state != DIRTY {
            let expected = format!("FREE ({FREE:#x}), CLEAN ({CLEAN:#x}) or DIRTY ({DIRTY:#x})");
            Mismatch::new(format!("frame[{frame}].state"), format!("{state:#x}"), expected)
        } else if let Err(mismatch) = sound {
            mismatch
        } else if let Some(damage) = self.inode_damage.get(&key.inode) {
            self.tables.damages[*damage].frames += 1;
            return self.set_aside(frame, page);
        } else {
            let named = self.mapping.inodes().get(key.inode as usize);
            if named.is_some_and(|named| named.state.get() == LIVE) {
                return self.tables.dirty.push(DirtyFrame { key, frame });
            }
            self.tables.set_aside.inodes.insert(key.inode); // C2
            Mismatch::new(format!("frame[{frame}].inode"), key.inode, "an inode slot in use")
        };
        self.damage(mismatch);
        self.set_aside(frame, page);
    }

    fn set_aside(&mut self, frame: u32, page: Option<PageKey>) {
        self.tables.frames_set_aside.push(SetAsideFrame::new(FrameId::new(frame), page));
    }
}

fn volume_is_used(mapping: &Mapping, slot: u32) -> Result<bool, Mismatch> {
    let entry = &mapping.volumes()[slot as usize];
    let at = || format!("volume[{slot}]");
    let is_used = is_live(entry.state.get(), at)?;
    if is_used {
        check_len(&entry.id, || format!("volume[{slot}].id_len"))?;
        check_sum(entry.check.get(), entry.sum(slot), at)?;
    }
    Ok(is_used)
}

fn inode_is_used(mapping: &Mapping, slot: u32) -> Result<bool, Mismatch> {
    let entry = &mapping.inodes()[slot as usize];
    let at = || format!("inode[{slot}]");
    let is_used = is_live(entry.state.get(), at)?;
    if is_used {
        check_len(&entry.handle, || format!("inode[{slot}].handle_len"))?;
        check_sum(entry.check.get(), entry.sum(slot), at)?;
    }
    Ok(is_used)
}

fn is_live(state: u32, at: impl Fn() -> String) -> Result<bool, Mismatch> {
    match state {
        FREE => Ok(false),
        LIVE => Ok(true),
        other => {
            let expected = format!("FREE ({FREE:#x}) or LIVE ({LIVE:#x})");
            Err(Mismatch::new(format!("{}.state", at()), format!("{other:#x}"), expected))
        }
    }
}

fn check_len(entry: &ShortEntry, field: impl Fn() -> String) -> Result<(), Mismatch> {
    if entry.len() > SHORT_BYTES_MAX as u64 {
        return Err(Mismatch::new(field(), entry.len(), format!("at most {SHORT_BYTES_MAX}")));
    }
    Ok(())
}

fn check_sum(found: u64, expected: u64, at: impl Fn() -> String) -> Result<(), Mismatch> {
    if found != expected {
        return Err(Mismatch::new(format!("{}.check", at()), format!("{found:#x}"), format!("{expected:#x}")));
    }
    Ok(())
}
