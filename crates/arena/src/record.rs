//! The records of the arena file, as they lie in the mapping.
//!
//! Records consist of little-endian words, zero where unused. A zeroed record is a free one, so a new file needs no
//! initialisation. State values are far apart, so that no single flipped bit turns one into another. A check word
//! covers the fields that never change while the record is in use.
//!
//! # Invariants
//! R1. Every field is an atomic integer: any bytes are a valid record, and a reference to one may exist
//!     while another thread writes it.
//! R2. Fields are written while the state is FREE (or CLEAN), and the state is stored last. A reader that finds a used
//!     state reads complete fields, in this process or in the next one.
//!     The exception is the check word of a frame that is set aside ([`crate::survivors`]): a single store, too.
//! R3. Fields not covered by the check word change by single stores.
//! R4. The tenant of an inode has a check word of its own, which also covers that of the record. If it is wrong, the
//!     inode has no tenant. So a kill between the two stores does no harm, and neither does a program that does not
//!     know the field: it leaves zeroes, or the tenant of an earlier record in the slot.
//! R5. The time at which an inode became dirty is in the upper bits of its flags, since the record has no other place. A
//!     program that does not know it leaves zeroes there, or what it found: it sets flags when it makes the record, and
//!     changes single ones after that. 0 therefore means that the time is unknown.
//! R6. A program that does not know since when the attempts of a volume fail leaves zeroes there, or what it found.
//!
//! # Memory ordering
//! That of the state word: [`crate::word`] O1.

use crate::checksum::Checksum;
use crate::ids::{SHORT_BYTES_MAX, ShortBytes};
use crate::word::{StateWord, Word32, Word64};

/// State of an unused record.
pub(crate) const FREE: u32 = 0;
/// State of a used inode or volume record.
pub(crate) const LIVE: u32 = u32::from_le_bytes(*b"LIVE");
/// State of a frame whose bytes the backend also has.
pub(crate) const CLEAN: u32 = u32::from_le_bytes(*b"CLEA");
/// State of a frame whose bytes only the arena has.
pub(crate) const DIRTY: u32 = u32::from_le_bytes(*b"dirt");

const _: () = assert!((CLEAN ^ DIRTY).count_ones() >= 4 && CLEAN.count_ones() >= 4);
const _: () = assert!(DIRTY.count_ones() >= 4 && LIVE.count_ones() >= 4);

/// Seeds of the check words.
const VOLUME_KIND: u32 = 1;
const INODE_KIND: u32 = 2;
const FRAME_KIND: u32 = 3;
const TENANT_KIND: u32 = 4;

/// Bits of the engine's flags in the word that they share with the time (R5).
pub(crate) const FLAG_BITS: u32 = 8;
const FLAGS_MASK: u32 = (1 << FLAG_BITS) - 1;

/// Words of the header; [`crate::header`] names them.
pub(crate) const HEADER_WORDS: usize = 17;

/// The header: one word per field.
#[repr(C)]
pub(crate) struct HeaderEntry {
    words: [Word64; HEADER_WORDS],
}

/// A byte string of up to [`SHORT_BYTES_MAX`] bytes.
#[repr(C)]
pub(crate) struct ShortEntry {
    len: Word64,
    bytes: [Word64; SHORT_BYTES_MAX / 8],
}

/// The record of a volume.
#[repr(C)]
pub(crate) struct VolumeEntry {
    pub(crate) state: StateWord,
    _unused: Word32,
    pub(crate) id: ShortEntry,
    pub(crate) check: Word64,
    pub(crate) failing_since_ns: Word64,
    _unused_too: [Word64; 4],
}

/// The record of an inode: its identity first, then the fields that change, on a cache line of their own.
#[repr(C)]
pub(crate) struct InodeEntry {
    pub(crate) state: StateWord,
    pub(crate) volume: Word32,
    pub(crate) dev: Word64,
    pub(crate) ino: Word64,
    pub(crate) generation: Word64,
    pub(crate) handle: ShortEntry,
    pub(crate) check: Word64,
    /// Valid only with its check word.
    tenant: Word64,
    tenant_check: Word64,
    pub(crate) size_bytes: Word64,
    /// Nanoseconds since 1970 in two's complement.
    pub(crate) mtime_ns: Word64,
    pub(crate) source_changing_until_ns: Word64,
    /// User in the low half, group in the high half.
    pub(crate) owner: Word64,
    pub(crate) mode: Word32,
    /// Flags of the engine in the low bits, and when the inode became dirty in the others (R5).
    flags: Word32,
    pub(crate) source_size_bytes: Word64,
    pub(crate) source_mtime_ns: Word64,
    pub(crate) source_changing_since_ns: Word64,
}

/// The page and file whose bytes a frame holds.
#[repr(C)]
pub(crate) struct FrameEntry {
    state: StateWord,
    inode: Word32,
    index: Word64,
    version: Word64,
    check: Word64,
}

const _: () = assert!(size_of::<VolumeEntry>() == 192);
const _: () = assert!(size_of::<InodeEntry>() == 256);
const _: () = assert!(core::mem::offset_of!(InodeEntry, size_bytes) == 192);
const _: () = assert!(size_of::<FrameEntry>() == 32);

/// The page that a frame holds, and the version of that page.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct PageKey {
    pub(crate) inode: u32,
    pub(crate) index: u64,
    pub(crate) version: u64,
}

impl HeaderEntry {
    /// Stores all words.
    pub(crate) fn set(&self, words: &[u64; HEADER_WORDS]) {
        for (cell, word) in self.words.iter().zip(words) {
            cell.set(*word);
        }
    }
}

impl ShortEntry {
    /// The stored length, which can be any number after damage.
    pub(crate) fn len(&self) -> u64 {
        self.len.get()
    }

    pub(crate) fn set(&self, value: &ShortBytes) {
        self.len.set(value.as_slice().len() as u64);
        let mut chunks = value.as_slice().chunks(8);
        for word in &self.bytes {
            let mut bytes = [0; 8];
            if let Some(chunk) = chunks.next() {
                bytes[..chunk.len()].copy_from_slice(chunk);
            }
            word.set(u64::from_le_bytes(bytes));
        }
    }

    /// The bytes, truncated at the limit if the length is damaged.
    pub(crate) fn get(&self) -> ShortBytes {
        let mut bytes = [0; SHORT_BYTES_MAX];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&self.bytes) {
            chunk.copy_from_slice(&word.get().to_le_bytes());
        }
        let len = usize::try_from(self.len()).unwrap_or(SHORT_BYTES_MAX).min(SHORT_BYTES_MAX);
        ShortBytes::new(&bytes[..len]).unwrap_or_default()
    }

    fn add_to(&self, sum: Checksum) -> Checksum {
        self.bytes.iter().fold(sum.word(self.len()), |sum, word| sum.word(word.get()))
    }
}

impl VolumeEntry {
    /// The correct check word.
    pub(crate) fn sum(&self, slot: u32) -> u64 {
        self.id.add_to(Checksum::of_record(VOLUME_KIND, slot)).finish()
    }
}

impl InodeEntry {
    /// The correct check word.
    pub(crate) fn sum(&self, slot: u32) -> u64 {
        let sum = Checksum::of_record(INODE_KIND, slot)
            .word(self.volume.get().into())
            .word(self.dev.get())
            .word(self.ino.get())
            .word(self.generation.get());
        self.handle.add_to(sum).finish()
    }

    /// The flags of the engine.
    pub(crate) fn flags(&self) -> u32 {
        self.flags.get() & FLAGS_MASK
    }

    pub(crate) fn set_flags(&self, flags: u32) {
        self.flags.set_bits(FLAGS_MASK, flags);
    }

    /// When the inode became dirty; 0 if that is unknown (R5).
    pub(crate) fn dirtied(&self) -> u32 {
        self.flags.get() >> FLAG_BITS
    }

    pub(crate) fn set_dirtied(&self, dirtied: u32) {
        self.flags.set_bits(!FLAGS_MASK, dirtied << FLAG_BITS);
    }

    /// The tenant; 0 if there is none (R4).
    pub(crate) fn tenant(&self, slot: u32) -> u64 {
        let tenant = self.tenant.get();
        if self.tenant_check.get() == self.tenant_sum(slot, tenant) { tenant } else { 0 }
    }

    /// Sets the tenant. The check word of the record is correct already.
    pub(crate) fn set_tenant(&self, slot: u32, tenant: u64) {
        self.tenant.set(tenant);
        self.tenant_check.set(if tenant == 0 { 0 } else { self.tenant_sum(slot, tenant) });
    }

    fn tenant_sum(&self, slot: u32, tenant: u64) -> u64 {
        Checksum::of_record(TENANT_KIND, slot).words(&[self.check.get(), tenant]).finish()
    }
}

impl FrameEntry {
    pub(crate) fn state(&self) -> u32 {
        self.state.get()
    }

    /// R2: the record must not be DIRTY, or its fields would be torn for a moment.
    pub(crate) fn publish_dirty(&self, frame: u32, key: PageKey) {
        self.inode.set(key.inode);
        self.index.set(key.index);
        self.version.set(key.version);
        self.check.set(frame_sum(frame, key));
        self.state.set(DIRTY);
    }

    pub(crate) fn mark_clean(&self) {
        self.state.set(CLEAN);
    }

    pub(crate) fn clear(&self) {
        self.state.set(FREE);
    }

    /// Makes the check word wrong, for as long as the record is not published again.
    pub(crate) fn invalidate(&self, frame: u32) {
        self.check.set(!self.sum(frame));
    }

    pub(crate) fn key(&self) -> PageKey {
        PageKey { inode: self.inode.get(), index: self.index.get(), version: self.version.get() }
    }

    pub(crate) fn check(&self) -> u64 {
        self.check.get()
    }

    /// The correct check word.
    pub(crate) fn sum(&self, frame: u32) -> u64 {
        frame_sum(frame, self.key())
    }
}

fn frame_sum(frame: u32, key: PageKey) -> u64 {
    Checksum::of_record(FRAME_KIND, frame).words(&[key.inode.into(), key.index, key.version]).finish()
}
