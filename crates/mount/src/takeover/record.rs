//! The record of a mount in shared memory.
//!
//! # Layout
//! 64-bit words: a header, then [`HANDLES_MAX`] entries for handles and [`CHANGES_MAX`] for changes in progress, each of
//! four words, then the table of errors ([`errors`](super::errors)). Memory is allocated as entries are used.
//!
//! # Invariants
//! M1. An entry is valid if its first word says so. That word is stored last when an entry is made, and first when it
//!     ends. A kill stops each thread between two instructions, so the next process finds an entry as a whole or not at
//!     all.
//! M2. A number of a handle consists of the entry's index and a generation, which grows with each use of the entry. A
//!     RELEASE that is repeated after the entry was used again therefore closes nothing.
//! M3. The cursor of a handle, which says which errors it has reported, is in the first word of its entry. So it ends
//!     with the entry, and one that comes later than the end changes nothing.
//! M4. A change has an entry from before it is carried out until the kernel has the reply. Its outcome is stored before
//!     the reply is sent.
//!
//! # Memory ordering
//! That of [`Word`].

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use slackwater::ErrCursor;
use slackwater_fuse::Negotiated;
use slackwater_fuse::abi::UNIQUE_RESEND;

use crate::sys::SharedWords;
use crate::takeover::entries::{ChangeRecord, HandleRecord, Outcome};
use crate::takeover::errors::ERRORS_WORDS;
use crate::takeover::word::Word;

/// "slackwat" as a number.
const MAGIC: u64 = u64::from_le_bytes(*b"slackwat");
/// Words of the header.
const HEADER_WORDS: usize = 512;
/// Words of an entry.
const ENTRY_WORDS: usize = 4;
/// Entries for open files and directories.
pub(crate) const HANDLES_MAX: usize = 1 << 20;
/// Entries for changes in progress.
const CHANGES_MAX: usize = 1 << 14;
/// Entries that are looked at for one change.
const PROBES: usize = 32;
const CHANGES_AT: usize = HEADER_WORDS + HANDLES_MAX * ENTRY_WORDS;
pub(super) const ERRORS_AT: usize = CHANGES_AT + CHANGES_MAX * ENTRY_WORDS;
const WORDS: usize = ERRORS_AT + ERRORS_WORDS;
const BYTES: u64 = (WORDS * size_of::<u64>()) as u64;

/// The first word of a handle is its generation (32 bits), its cursor (30) and its kind (2).
const KIND_BITS: u32 = 2;
/// Kinds of a handle.
const CLOSED: u64 = 0;
const OPEN_FILE: u64 = 1;
const OPEN_DIRECTORY: u64 = 2;

/// Words of the header.
mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const FORMAT: usize = 1;
    pub(super) const IS_AGREED: usize = 2;
    pub(super) const MINOR: usize = 3;
    pub(super) const FLAGS: usize = 4;
    pub(super) const MAX_WRITE: usize = 5;
    pub(super) const MAX_READAHEAD: usize = 6;
    pub(super) const MAX_BACKGROUND: usize = 7;
    pub(super) const IS_COHERENT: usize = 8;
    pub(super) const DEV: usize = 9;
    pub(super) const NODES_KEPT: usize = 10;
    pub(super) const NODES_COUNTED: usize = 11;
    pub(super) const GENERATION: usize = 12;
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The kernel refuses.
    #[error("cannot use the shared record of a mount: {0}")]
    Os(#[from] Errno),
    /// Another version of the program made it.
    #[error("the record of the mount has format {found}, and this program reads format {}", MountRecord::FORMAT)]
    Format {
        /// The format of the record.
        found: u64,
    },
    /// The file is not a record, or not a whole one.
    #[error("the record of the mount is damaged: {0}")]
    Damaged(&'static str),
}

/// The notes of a mount's process for its successor, in shared memory.
pub struct MountRecord {
    file: OwnedFd,
    words: SharedWords,
}

impl MountRecord {
    /// Number of the format, which changes when an earlier program could not read it.
    pub const FORMAT: u32 = 3;

    /// An empty record.
    ///
    /// # Errors
    /// The process has no memory or descriptors left.
    pub fn create() -> Result<Self, RecordError> {
        let file = memfd_create("slackwater-mount", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, BYTES)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let record = Self { words: SharedWords::map(file.as_fd(), WORDS)?, file };
        record.set(header::FORMAT, Self::FORMAT.into());
        record.set(header::MAGIC, MAGIC);
        Ok(record)
    }

    /// The record of an earlier process.
    ///
    /// # Errors
    /// It has another format, or is none.
    pub fn open(file: OwnedFd) -> Result<Self, RecordError> {
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(RecordError::Damaged("it is not sealed"));
        }
        // Read rather than mapped, because another format may be shorter.
        let file = File::from(file);
        let mut start = [0; 16];
        file.read_exact_at(&mut start, 0).map_err(|_| RecordError::Damaged("it is too short"))?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| start[at * 8 + byte]));
        if word(header::MAGIC) != MAGIC {
            return Err(RecordError::Damaged("it does not begin like one"));
        }
        match word(header::FORMAT) {
            found if found != u64::from(Self::FORMAT) => return Err(RecordError::Format { found }),
            _ if fstat(&file)?.st_size.cast_unsigned() != BYTES => return Err(RecordError::Damaged("its length")),
            _ => {}
        }
        let file = OwnedFd::from(file);
        Ok(Self { words: SharedWords::map(file.as_fd(), WORDS)?, file })
    }

    /// The file of the record, for the keeper.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn word(&self, at: usize) -> &Word {
        &self.words.words()[at]
    }

    pub(super) fn get(&self, at: usize) -> u64 {
        self.word(at).get()
    }

    pub(super) fn set(&self, at: usize, value: u64) {
        self.word(at).set(value);
    }

    /// Records what kernel and session agreed, the `st_dev` of the mount's files, and whether the kernel's page cache
    /// follows writes around it.
    pub(crate) fn agree(&self, negotiated: &Negotiated, dev: u64, is_coherent: bool) {
        self.set(header::MINOR, negotiated.minor.into());
        self.set(header::FLAGS, negotiated.flags);
        self.set(header::MAX_WRITE, negotiated.max_write.into());
        self.set(header::MAX_READAHEAD, negotiated.max_readahead.into());
        self.set(header::MAX_BACKGROUND, negotiated.max_background.into());
        self.set(header::IS_COHERENT, is_coherent.into());
        self.set(header::DEV, dev);
        self.set(header::IS_AGREED, 1);
    }

    /// The agreement that an earlier process [recorded](Self::agree).
    pub(crate) fn agreed(&self) -> Result<(Negotiated, u64, bool), RecordError> {
        let narrow = |at: usize| u32::try_from(self.get(at)).map_err(|_| RecordError::Damaged("a number is too large"));
        if self.get(header::IS_AGREED) == 0 {
            return Err(RecordError::Damaged("the mount was never complete"));
        }
        let background = u16::try_from(self.get(header::MAX_BACKGROUND));
        let negotiated = Negotiated::again(
            (narrow(header::MINOR)?, self.get(header::FLAGS)),
            narrow(header::MAX_WRITE)?,
            narrow(header::MAX_READAHEAD)?,
            background.map_err(|_| RecordError::Damaged("a number is too large"))?,
        );
        Ok((negotiated, self.get(header::DEV), self.get(header::IS_COHERENT) != 0))
    }

    /// Whether the keeper has a descriptor of each node. Otherwise nodes are found by their numbers.
    pub(crate) fn keeps_nodes(&self) -> bool {
        self.get(header::NODES_KEPT) != 0
    }

    /// Records that the keeper gets a descriptor of each node.
    pub(crate) fn keep_nodes(&self) {
        self.set(header::NODES_KEPT, 1);
    }

    /// Another number for a node, from 1 on. No other process of the mount gets the same.
    pub(crate) fn count_node(&self) -> u64 {
        self.word(header::NODES_COUNTED).count() + 1
    }

    /// The generation of counted nodes: `random`, or that of the first process of the mount.
    pub(crate) fn generation(&self, random: u32) -> u32 {
        self.word(header::GENERATION).take(random.into());
        self.get(header::GENERATION) as u32
    }

    /// Records an open handle under its number.
    pub(crate) fn open_handle(&self, number: u64, handle: &HandleRecord) {
        let Some((at, generation)) = entry_of(number) else { return };
        self.set(at + 1, handle.node);
        self.set(at + 2, u64::from(handle.open_flags) << 32 | u64::from(handle.flags));
        self.set(at + 3, handle.unique & !UNIQUE_RESEND);
        let kind = if handle.is_directory { OPEN_DIRECTORY } else { OPEN_FILE };
        self.set(at, generation << 32 | u64::from(handle.cursor.to_bits()) << KIND_BITS | kind);
    }

    /// Records that an open file has reported errors (M3).
    pub(crate) fn move_cursor(&self, number: u64, cursor: ErrCursor) {
        let Some((at, generation)) = entry_of(number) else { return };
        let new = generation << 32 | u64::from(cursor.to_bits()) << KIND_BITS | OPEN_FILE;
        self.word(at).change(|word| (word >> 32 == generation && kind_of(word) == OPEN_FILE).then_some(new));
    }

    /// Records that a handle is closed.
    pub(crate) fn close_handle(&self, number: u64) {
        if let Some((at, generation)) = entry_of(number) {
            self.set(at, generation << 32 | CLOSED);
        }
    }

    /// The handles that an earlier process had open, by their numbers.
    pub(crate) fn handles(&self) -> impl Iterator<Item = (u64, HandleRecord)> {
        self.used().filter_map(|(index, generation, state)| {
            let at = HEADER_WORDS + index * ENTRY_WORDS;
            let flags = self.get(at + 2);
            let handle = HandleRecord {
                is_directory: kind_of(state) == OPEN_DIRECTORY,
                node: self.get(at + 1),
                flags: flags as u32,
                open_flags: (flags >> 32) as u32,
                unique: self.get(at + 3),
                cursor: ErrCursor::from_bits((state >> KIND_BITS) as u32),
            };
            (kind_of(state) != CLOSED).then_some((u64::from(generation) << 32 | index as u64, handle))
        })
    }

    /// Index and last generation of each entry that was ever used, and whether its handle is open. The search ends at the
    /// first row of [`HANDLE_ROW`] never used entries: the table of handles takes the lowest free index of its shard.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, u32, bool)> {
        self.used().map(|(index, generation, state)| (index, generation, kind_of(state) != CLOSED))
    }

    fn used(&self) -> impl Iterator<Item = (usize, u32, u64)> {
        let rows = (0..HANDLES_MAX).step_by(HANDLE_ROW).map(|first| {
            let words = (first..first + HANDLE_ROW).map(|index| (index, self.get(HEADER_WORDS + index * ENTRY_WORDS)));
            words.filter(|(_, word)| *word != 0).collect::<Vec<_>>()
        });
        let used = rows.take_while(|row| !row.is_empty()).flatten();
        used.map(|(index, word)| (index, (word >> 32) as u32, word & 0xffff_ffff))
    }

    /// Records that a change is about to be carried out. A change that is recorded already stays as it is.
    pub(crate) fn begin_change(&self, unique: u64, now_ns: u64) {
        let unique = unique & !UNIQUE_RESEND;
        let mut oldest = None;
        for at in probes(unique) {
            match self.get(at) {
                found if found == unique => return,
                0 if self.take_change(at, unique, now_ns) => return,
                // Taken by another thread just now.
                0 => {}
                _ => {
                    let this = (self.get(at + 1), at);
                    oldest = Some(oldest.map_or(this, |oldest: (u64, usize)| oldest.min(this)));
                }
            }
        }
        // Entries of dead processes whose replies the kernel has are never ended.
        if let Some((_, at)) = oldest {
            self.set(at, 0);
            self.take_change(at, unique, now_ns);
        }
    }

    fn take_change(&self, at: usize, unique: u64, now_ns: u64) -> bool {
        // The other words are those of an ended change, and `TAKEN` matches no request.
        if !self.word(at).take(TAKEN) {
            return false;
        }
        self.set(at + 1, now_ns);
        self.set(at + 2, 0);
        self.set(at + 3, 0);
        self.set(at, unique);
        true
    }

    /// Records what a change begins from. Of a change that is begun again, the first record stays: nothing has changed since.
    pub(crate) fn note_before(&self, unique: u64, before: u64) {
        if let Some(at) = self.change_at(unique) {
            self.word(at + 3).take(before);
        }
    }

    /// Records the outcome of a change.
    pub(crate) fn complete_change(&self, unique: u64, outcome: Outcome) {
        if let Some(at) = self.change_at(unique) {
            self.set(at + 2, outcome.to_word());
            // Later: until the outcome is there, the word says what the change began from.
            if let Outcome::Entry(node) = outcome {
                self.set(at + 3, node);
            }
        }
    }

    /// The kernel has the reply.
    pub(crate) fn end_change(&self, unique: u64) {
        if let Some(at) = self.change_at(unique) {
            self.set(at, 0);
        }
    }

    /// The entry of a change that an earlier process began.
    pub(crate) fn change(&self, unique: u64) -> Option<ChangeRecord> {
        let at = self.change_at(unique)?;
        let outcome = Outcome::of_words(self.get(at + 2), self.get(at + 3));
        Some(ChangeRecord { before: self.get(at + 3), outcome })
    }

    fn change_at(&self, unique: u64) -> Option<usize> {
        let unique = unique & !UNIQUE_RESEND;
        probes(unique).find(|at| self.get(*at) == unique)
    }
}

impl std::fmt::Debug for MountRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountRecord").field("file", &self.file).finish_non_exhaustive()
    }
}

fn kind_of(word: u64) -> u64 {
    word & ((1 << KIND_BITS) - 1)
}

/// Entries of handles that are searched at once.
const HANDLE_ROW: usize = 1 << 10;
/// The first word of an entry that is being made.
const TAKEN: u64 = u64::MAX;

/// Where the entry of a handle is, and the generation in its number. `None` beyond the table.
fn entry_of(number: u64) -> Option<(usize, u64)> {
    let index = (number as u32) as usize;
    (index < HANDLES_MAX).then_some((HEADER_WORDS + index * ENTRY_WORDS, number >> 32))
}

/// Where the entry of a change may be. The kernel counts requests by twos.
fn probes(unique: u64) -> impl Iterator<Item = usize> {
    let first = (unique >> 1) as usize;
    (first..first + PROBES).map(|index| CHANGES_AT + index % CHANGES_MAX * ENTRY_WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reopened(record: &MountRecord) -> MountRecord {
        MountRecord::open(record.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn the_next_process_finds_open_handles_and_not_closed_ones() {
        let record = MountRecord::create().unwrap();
        let cursor = ErrCursor::from_bits((1 << 30) - 1);
        let handle = |node| {
            let (is_directory, unique) = (node == 7, 40 + node);
            HandleRecord { is_directory, node, flags: 2, open_flags: 5, unique, cursor: ErrCursor::default() }
        };
        let number = |index: u64, generation: u64| generation << 32 | index;
        record.open_handle(number(0, 1), &handle(6));
        record.open_handle(number(3, 4), &handle(7));
        record.open_handle(number(5, 1), &handle(8));
        record.close_handle(number(5, 1));
        // A handle that is closed, or whose entry has another one now, gets no cursor.
        [number(0, 1), number(0, 0), number(5, 1)].iter().for_each(|number| record.move_cursor(*number, cursor));
        let next = reopened(&record);
        let file = HandleRecord { cursor, ..handle(6) };
        assert_eq!(next.handles().collect::<Vec<_>>(), [(number(0, 1), file), (number(3, 4), handle(7))]);
        assert_eq!(next.entries().collect::<Vec<_>>(), [(0, 1, true), (3, 4, true), (5, 1, false)]);
    }

    #[test]
    fn a_change_is_found_until_its_reply_is_sent_whatever_else_goes_on() {
        let record = MountRecord::create().unwrap();
        for unique in (2..4 * CHANGES_MAX as u64).step_by(2) {
            record.begin_change(unique, 1);
            record.end_change(unique);
        }
        record.begin_change(10, 77);
        record.note_before(10, 5);
        record.begin_change(10 + 2 * CHANGES_MAX as u64, 78); // the same place
        let next = reopened(&record);
        let known = |unique| next.change(unique).map(|change| (change.before, change.outcome));
        next.begin_change(10, 99);
        next.note_before(10, 6);
        assert_eq!(known(10), Some((5, None)), "it keeps what is known");
        record.complete_change(10 | UNIQUE_RESEND, Outcome::Entry(9));
        assert_eq!(known(10).unwrap().1, Some(Outcome::Entry(9)));
        assert_eq!(known(10 + 2 * CHANGES_MAX as u64), Some((0, None)));
        next.end_change(10);
        assert_eq!(known(10), None);
    }

    #[test]
    fn numbers_of_nodes_are_never_given_twice() {
        let record = MountRecord::create().unwrap();
        assert_eq!((record.count_node(), record.count_node(), record.generation(7)), (1, 2, 7));
        let next = reopened(&record);
        assert_eq!((next.count_node(), next.generation(8), next.keeps_nodes()), (3, 7, false));
        next.keep_nodes();
        assert!(reopened(&next).keeps_nodes());
    }

    #[test]
    fn every_outcome_survives() {
        let outcomes = [
            Outcome::Failed(Errno::NOSPC),
            Outcome::Done,
            Outcome::Entry(u64::MAX - 1),
            Outcome::Attr,
            Outcome::Written(1 << 20),
            Outcome::Reported(Errno::IO),
        ];
        let record = MountRecord::create().unwrap();
        for (unique, outcome) in (2..).step_by(2).zip(outcomes) {
            record.begin_change(unique, 5);
            record.complete_change(unique, outcome);
            assert_eq!(reopened(&record).change(unique).unwrap().outcome, Some(outcome));
        }
    }

    #[test]
    fn entries_of_dead_processes_give_way() {
        let record = MountRecord::create().unwrap();
        let first = 2 * CHANGES_MAX as u64;
        for nth in 0..2 * PROBES as u64 {
            record.begin_change(2 * (1 + nth * CHANGES_MAX as u64), nth);
        }
        record.begin_change(first + 2, 1 << 20);
        assert!(record.change(first + 2).is_some(), "the last one always finds a place");
    }

    #[test]
    fn another_format_is_refused_by_name() {
        let record = MountRecord::create().unwrap();
        record.set(header::FORMAT, 9);
        let refused = MountRecord::open(record.fd().try_clone_to_owned().unwrap()).unwrap_err();
        assert!(matches!(refused, RecordError::Format { found: 9 }), "{refused}");
        let empty = memfd_create("empty", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(matches!(MountRecord::open(empty), Err(RecordError::Damaged(_))));
    }
}
