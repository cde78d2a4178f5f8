//! Pages of a file that the kernel may hold for shared mappings, and the ranges written around them since.
//!
//! A store to a shared mapping reaches the volume as a whole page that the kernel writes back. A `write` bypasses the
//! kernel's page cache, so such a page may be older than a `write` to it. When the page arrives, bytes that were
//! written around it since the kernel last read it are therefore kept, and only the others are taken from the page.
//!
//! # Invariants
//! W1. Every range that a mapping may have in the kernel's page cache is in the record: a read for the page cache adds
//!     it before it reads the data. Only reads while some handle is open for reading and writing count; creating a
//!     shared mapping drops what the kernel read before that.
//! W2. A `write` and a page from a mapping exclude each other. A `write` records its bytes before a page can arrive.
//! W3. A change in progress while the kernel reads the page is recorded, whether the read saw it or not. That is
//!     correct: the kernel drops the page before the call returns, so a later store follows another read. It does so
//!     for all pages of a `write`, for all pages of the file at O_TRUNC, and for pages that fallocate(2) clears as a
//!     whole. A page that is cleared in part the kernel only clears in place: the volume has it dropped before it
//!     answers. After copy_file_range(2) the kernel drops pages without writing stores to them back, so the volume
//!     copies only whole pages.
//! W4. Nothing waits for the backend while the gate is held exclusively.
//! W5. Once a page has arrived from a file, all leaves of that file may contain stores. Before that, only new leaves
//!     may: those read by the kernel and not flushed since. So a program that only reads through its mapping keeps its
//!     pages.
//! W6. A new size from SETATTR is not recorded. During that request no page arrives, and after it the kernel drops all
//!     pages. It keeps them if its own size stays the same; then a record of the rest of the last page would be wrong.
//!
//! # Memory ordering
//! O1. A `write` changes the file, then checks for the record. A read for the page cache creates the record, then reads
//!     the file. With a fence between the two steps on each side, one of them sees the other.
//!
//! # Lock order
//! The gate comes before the engine's locks. The record's lock comes after the table of nodes.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;

use slackwater::Written;
use slackwater_sync::lock::{Mutex, RwLock};
use slackwater_sync::shim::atomic::{AtomicU32, Ordering};
use slackwater_sync::shim::{OnceLock, smp_mb};

use crate::lock_order::{KERNEL_PAGES, WRITING};

/// Bytes of a file that share a leaf of the record.
const LEAF_BYTES: u64 = 64 << 10;
/// Limit of ranges per file in one flush. The last range is extended to cover the rest.
const RANGES_MAX: usize = 64;

/// The record of one file.
#[derive(Debug)]
pub(super) struct KernelPages {
    /// Shared by `write`, exclusive for pages from mappings (W2).
    gate: RwLock<()>,
    /// Handles through which the file can be mapped writable.
    mappers: AtomicU32,
    /// The record, once the kernel has read a page that a mapping may write to.
    record: OnceLock<Box<Mutex<Record>>>,
}

impl KernelPages {
    pub(super) fn new() -> Self {
        Self { gate: RwLock::new(WRITING, ()), mappers: AtomicU32::new(0), record: OnceLock::new() }
    }

    /// A handle for reading and writing was opened.
    pub(super) fn add_mapper(&self) {
        self.mappers.fetch_add(1, Ordering::AcqRel);
    }

    /// A handle for reading and writing was closed. When the last closes, the kernel has written back every store.
    pub(super) fn remove_mapper(&self) {
        if self.mappers.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(record) = self.record.get()
        {
            let mut record = record.lock();
            // A handle opened from here on reads after this.
            if !self.can_be_mapped() {
                *record = Record::default();
            }
        }
    }

    /// Whether a writable mapping exists or may be created.
    pub(super) fn can_be_mapped(&self) -> bool {
        self.mappers.load(Ordering::Acquire) != 0
    }

    /// Whether the kernel may hold a modified page.
    pub(super) fn is_mapped(&self) -> bool {
        self.record.get().is_some_and(|record| !record.lock().leaves.is_empty())
    }

    /// Whether the kernel may hold the page at `offset_bytes`.
    pub(super) fn has_read(&self, offset_bytes: u64) -> bool {
        self.record.get().is_some_and(|record| record.lock().leaves.contains_key(&(offset_bytes / LEAF_BYTES)))
    }

    /// The kernel is about to read `range` for its page cache; the read includes everything written there before.
    /// Returns true if the kernel has not read there before.
    pub(super) fn read_for_cache(&self, range: Range<u64>) -> bool {
        let record = self.record.get_or_init(|| Box::new(Mutex::new(KERNEL_PAGES, Record::default())));
        let is_new = record.lock().read(range);
        smp_mb(); // O1
        is_new
    }

    /// The ranges that may contain stores (W5), which the caller is about to flush.
    pub(super) fn take_flush_ranges(&self) -> FlushRanges {
        self.record.get().map(|record| record.lock().take_flush_ranges()).unwrap_or_default()
    }

    /// Changes the file around the page cache from `offset_bytes` on; `bytes` returns the number of bytes that the result
    /// of `write` changed.
    pub(super) fn write<T, E>(
        &self,
        offset_bytes: u64,
        write: impl FnOnce() -> Result<T, E>,
        bytes: impl FnOnce(&T) -> u64,
    ) -> Result<T, E> {
        let _shared = self.gate.read();
        let written = write()?;
        smp_mb(); // O1
        if let Some(record) = self.record.get() {
            record.lock().write(offset_bytes..offset_bytes.saturating_add(bytes(&written)));
        }
        Ok(written)
    }

    /// Takes `bytes` of a mapping at `offset_bytes`, except where they were written around. Returns the number of bytes
    /// done with. `None` while a `write` to the file is in progress. `put` does not wait for the backend (W4).
    pub(super) fn write_back<E>(
        &self,
        offset_bytes: u64,
        bytes: &[u8],
        mut put: impl FnMut(u64, &[u8]) -> Result<Written, E>,
    ) -> Option<(usize, Option<Result<Written, E>>)> {
        let _exclusive = self.gate.try_write()?;
        let range = offset_bytes..offset_bytes + bytes.len() as u64;
        let older = self.record.get().map(|record| record.lock().write_back(&range)).unwrap_or_default();
        let mut at = range.start;
        for kept in older.into_iter().chain(iter::once(range.end..range.end)) {
            while at < kept.start {
                let part = (at - offset_bytes) as usize..(kept.start - offset_bytes) as usize;
                match put(at, &bytes[part]) {
                    Ok(Written::Bytes(taken)) => at += taken as u64,
                    stopped => return Some(((at - offset_bytes) as usize, Some(stopped))),
                }
            }
            at = kept.end;
        }
        Some((bytes.len(), None))
    }
}

/// Number of bytes that a write changed.
pub(super) fn bytes_of(written: &Written) -> u64 {
    if let Written::Bytes(bytes) = written { *bytes as u64 } else { 0 }
}

/// Ranges of a file that may contain stores.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct FlushRanges {
    pub(super) ranges: Vec<Range<u64>>,
    /// New stores may come at any time, so another flush is needed.
    pub(super) repeats: bool,
}

/// The ranges that the kernel has read.
#[derive(Debug, Default)]
struct Record {
    leaves: BTreeMap<u64, Leaf>,
    /// A page has arrived from a mapping.
    has_writeback: bool,
}

#[derive(Debug)]
struct Leaf {
    /// The ranges written around since the read, sorted, which do not touch.
    written: Vec<Range<u64>>,
    /// Whether the leaf was read and not flushed since (W5).
    is_new: bool,
}

impl Record {
    fn read(&mut self, range: Range<u64>) -> bool {
        let before = self.leaves.len();
        for (number, range) in leaves(&range) {
            let Leaf { written, .. } = self.leaves.entry(number).or_insert(Leaf { written: Vec::new(), is_new: true });
            if let Some((first, end)) = overlap(written, &range, false) {
                let before = written[first].start..range.start;
                let after = range.end..written[end - 1].end;
                let left = [before, after].into_iter().filter(|part| !part.is_empty());
                drop(written.splice(first..end, left));
            }
        }
        self.leaves.len() > before
    }

    fn write(&mut self, range: Range<u64>) {
        // The kernel will read the bytes of other leaves after this write.
        for (number, Leaf { written, .. }) in self.leaves.range_mut(numbers(&range)) {
            let range = part_in(*number, &range);
            match overlap(written, &range, true) {
                Some((first, end)) => {
                    let whole = range.start.min(written[first].start)..range.end.max(written[end - 1].end);
                    drop(written.splice(first..end, [whole]));
                }
                None => {
                    let place = written.partition_point(|part| part.end < range.start);
                    written.insert(place, range);
                }
            }
        }
    }

    /// A page with `range` arrives from a mapping: returns the parts that were written around, in order.
    fn write_back(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.has_writeback = true;
        let of_leaf = |(number, range): (u64, Range<u64>)| {
            let written = &self.leaves.get(&number)?.written;
            let (first, end) = overlap(written, &range, false)?;
            let clip = |part: &Range<u64>| part.start.max(range.start)..part.end.min(range.end);
            Some(written[first..end].iter().map(clip).collect::<Vec<_>>())
        };
        leaves(range).filter_map(of_leaf).flatten().collect()
    }

    fn take_flush_ranges(&mut self) -> FlushRanges {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let repeats = self.has_writeback;
        for (number, leaf) in self.leaves.iter_mut().filter(|(_, leaf)| leaf.is_new || repeats) {
            leaf.is_new = false;
            let (start, end) = (number * LEAF_BYTES, (number + 1) * LEAF_BYTES);
            let count = ranges.len();
            match ranges.last_mut() {
                Some(last) if last.end == start || count == RANGES_MAX => last.end = end,
                Some(_) | None => ranges.push(start..end),
            }
        }
        FlushRanges { ranges, repeats: repeats && !self.leaves.is_empty() }
    }
}

/// Numbers of the leaves that a range overlaps.
fn numbers(range: &Range<u64>) -> Range<u64> {
    let first = range.start / LEAF_BYTES;
    first..if range.is_empty() { first } else { (range.end - 1) / LEAF_BYTES + 1 }
}

/// The part of a range that lies in a leaf.
fn part_in(number: u64, range: &Range<u64>) -> Range<u64> {
    range.start.max(number * LEAF_BYTES)..range.end.min((number + 1).saturating_mul(LEAF_BYTES))
}

/// The leaves of a range, each with its part of the range.
fn leaves(range: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    numbers(range).map(|number| (number, part_in(number, range)))
}

/// First and end index of the `parts` that overlap `range`, or that touch it with `touching`.
fn overlap(parts: &[Range<u64>], range: &Range<u64>, touching: bool) -> Option<(usize, usize)> {
    let by = u64::from(touching);
    let first = parts.partition_point(|part| part.end + by <= range.start);
    let end = parts.partition_point(|part| part.start < range.end + by);
    (first < end).then_some((first, end))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "what is taken is a list of ranges")]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// The parts of `range` that are taken when it arrives from a mapping.
    fn taken(pages: &KernelPages, range: Range<u64>) -> Vec<Range<u64>> {
        let mut taken = Vec::new();
        let bytes = vec![0; (range.end - range.start) as usize];
        let put = |at: u64, bytes: &[u8]| {
            taken.push(at..at + bytes.len() as u64);
            Ok::<_, ()>(Written::Bytes(bytes.len()))
        };
        assert_eq!(pages.write_back(range.start, &bytes, put), Some((bytes.len(), None)));
        taken
    }

    fn write(pages: &KernelPages, range: Range<u64>) {
        let bytes = |bytes: &u64| *bytes;
        assert_eq!(
            pages.write(range.start, || Ok::<_, ()>(range.end - range.start), bytes),
            Ok(range.end - range.start)
        );
    }

    #[test]
    fn bytes_written_since_the_kernel_read_are_kept() {
        let pages = KernelPages::new();
        write(&pages, 0..8);
        assert_eq!(taken(&pages, 0..PAGE), [0..PAGE], "the kernel had not read it");
        pages.read_for_cache(0..2 * PAGE);
        write(&pages, 100..108);
        write(&pages, 108..120);
        write(&pages, 90..100);
        write(&pages, 4000..5000);
        write(&pages, PAGE * 2 + 7..PAGE * 2 + 9);
        assert_eq!(taken(&pages, 0..2 * PAGE), [0..90, 120..4000, 5000..2 * PAGE]);
        assert_eq!(taken(&pages, 100..110), []);
        pages.read_for_cache(PAGE..2 * PAGE);
        assert_eq!(taken(&pages, 0..2 * PAGE), [0..90, 120..4000, PAGE..2 * PAGE]);
        pages.read_for_cache(0..100);
        assert_eq!(taken(&pages, 0..PAGE), [0..100, 120..4000]);
        pages.read_for_cache(105..110);
        assert_eq!(taken(&pages, 0..PAGE), [0..100, 105..110, 120..4000]);
    }

    #[test]
    fn ranges_may_span_leaves() {
        let pages = KernelPages::new();
        let end = 3 * LEAF_BYTES;
        pages.read_for_cache(PAGE..end);
        write(&pages, LEAF_BYTES - 10..2 * LEAF_BYTES + 10);
        assert_eq!(taken(&pages, 0..end), [0..LEAF_BYTES - 10, 2 * LEAF_BYTES + 10..end]);
        let last = i64::MAX as u64 - PAGE;
        pages.read_for_cache(last..last + PAGE);
        write(&pages, last + 1..last + PAGE);
        write(&pages, LEAF_BYTES * 2..LEAF_BYTES * 2);
        write(&pages, last + PAGE..u64::MAX); // a hole of any length
        assert_eq!(taken(&pages, last..last + 3), [last..last + 1]);
    }

    #[test]
    fn a_page_that_is_taken_in_parts_continues_where_it_stopped() {
        let pages = KernelPages::new();
        pages.read_for_cache(0..PAGE);
        write(&pages, 10..20);
        let stop_at = |most: u64| {
            move |at: u64, bytes: &[u8]| {
                let left = most.saturating_sub(at).min(bytes.len() as u64);
                Ok::<_, ()>(if left == 0 { Written::NoFrames } else { Written::Bytes(left as usize) })
            }
        };
        let bytes = [0; PAGE as usize];
        assert_eq!(pages.write_back(0, &bytes, stop_at(5)), Some((5, Some(Ok(Written::NoFrames)))));
        assert_eq!(pages.write_back(5, &bytes[5..], stop_at(10)), Some((15, Some(Ok(Written::NoFrames)))));
        assert_eq!(pages.write_back(20, &bytes[20..], stop_at(PAGE)), Some((4076, None)));
    }

    #[test]
    fn the_record_ends_with_the_last_handle_that_can_map() {
        let pages = KernelPages::new();
        pages.add_mapper();
        pages.add_mapper();
        pages.read_for_cache(0..PAGE);
        pages.remove_mapper();
        assert!(pages.can_be_mapped() && pages.is_mapped());
        pages.remove_mapper();
        assert!(!pages.can_be_mapped() && !pages.is_mapped());
    }

    #[test]
    fn new_leaves_are_flushed_once_and_all_leaves_after_a_page_has_arrived() {
        let pages = KernelPages::new();
        let stored = |ranges: &[Range<u64>], repeats| {
            assert_eq!(pages.take_flush_ranges(), FlushRanges { ranges: ranges.to_vec(), repeats });
        };
        assert!(pages.read_for_cache(0..2 * LEAF_BYTES) && pages.read_for_cache(4 * LEAF_BYTES..5 * LEAF_BYTES));
        stored(&[0..2 * LEAF_BYTES, 4 * LEAF_BYTES..5 * LEAF_BYTES], false);
        assert!(!pages.read_for_cache(0..LEAF_BYTES));
        stored(&[], false);
        taken(&pages, LEAF_BYTES..LEAF_BYTES + PAGE);
        (0..2).for_each(|_| stored(&[0..2 * LEAF_BYTES, 4 * LEAF_BYTES..5 * LEAF_BYTES], true));
        let leaf = |number: u64| 2 * number * LEAF_BYTES..(2 * number + 1) * LEAF_BYTES;
        (10..100).for_each(|number| assert!(pages.read_for_cache(leaf(number))));
        let all = pages.take_flush_ranges().ranges;
        assert_eq!((all.len(), all[RANGES_MAX - 1].end), (RANGES_MAX, leaf(99).end));
    }

    #[test]
    fn a_page_is_refused_during_a_write() {
        let pages = KernelPages::new();
        pages.read_for_cache(0..PAGE);
        let during = || {
            let put = |_, _: &[u8]| Ok::<_, ()>(Written::NoFrames);
            assert_eq!(pages.write_back(0, &[0; 8], put), None);
            Ok::<_, ()>(8)
        };
        assert_eq!(pages.write(0, during, |bytes| *bytes), Ok(8));
    }
}
