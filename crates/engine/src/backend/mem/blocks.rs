//! The bytes of a file, in blocks of one page. A block that was never written is absent.
//!
//! Copies of a file share blocks until one of them is written, so a copy costs only the index.

use std::collections::BTreeMap;

use slackwater_sync::shim::Arc;

use crate::units::PAGE_BYTES;

type Block = [u8; PAGE_BYTES as usize];

/// A sparse run of bytes. Bytes of a block beyond the size are zero.
#[derive(Clone, Eq, PartialEq, Default)]
pub(super) struct Blocks {
    size_bytes: u64,
    blocks: BTreeMap<u64, Arc<Block>>,
}

impl Blocks {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.blocks.len() as u64 * PAGE_BYTES
    }

    /// Bytes that writing `len_bytes` at `offset_bytes` would allocate.
    pub(super) fn missing_bytes(&self, offset_bytes: u64, len_bytes: u64) -> u64 {
        let (first, end) = (offset_bytes / PAGE_BYTES, (offset_bytes + len_bytes).div_ceil(PAGE_BYTES));
        (end - first - self.blocks.range(first..end).count() as u64) * PAGE_BYTES
    }

    /// Truncates the run to `size_bytes`, or extends it with a hole.
    pub(super) fn resize(&mut self, size_bytes: u64) {
        if size_bytes < self.size_bytes {
            self.blocks.split_off(&size_bytes.div_ceil(PAGE_BYTES));
            if let Some(last) = self.blocks.get_mut(&(size_bytes / PAGE_BYTES)) {
                Arc::make_mut(last)[(size_bytes % PAGE_BYTES) as usize..].fill(0);
            }
        }
        self.size_bytes = size_bytes;
    }

    /// Writes `bytes` at `offset_bytes`, and extends the run if necessary.
    pub(super) fn write(&mut self, mut offset_bytes: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let within = (offset_bytes % PAGE_BYTES) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(PAGE_BYTES as usize - within));
            let block = self.blocks.entry(offset_bytes / PAGE_BYTES).or_insert_with(|| Arc::new([0; _]));
            Arc::make_mut(block)[within..within + now.len()].copy_from_slice(now);
            offset_bytes += now.len() as u64;
            self.size_bytes = self.size_bytes.max(offset_bytes);
            bytes = later;
        }
    }

    /// Fills `bytes` from `offset_bytes` on. Returns how many bytes the run has there.
    pub(super) fn read(&self, offset_bytes: u64, bytes: &mut [u8]) -> usize {
        let present = self.size_bytes.saturating_sub(offset_bytes).min(bytes.len() as u64) as usize;
        let mut filled = 0;
        while filled < present {
            let at = offset_bytes + filled as u64;
            let within = (at % PAGE_BYTES) as usize;
            let now = (present - filled).min(PAGE_BYTES as usize - within);
            let target = &mut bytes[filled..filled + now];
            match self.blocks.get(&(at / PAGE_BYTES)) {
                Some(block) => target.copy_from_slice(&block[within..within + now]),
                None => target.fill(0),
            }
            filled += now;
        }
        present
    }

    /// Allocates all blocks of the range from `start` to `end`. The size stays.
    pub(super) fn allocate(&mut self, start: u64, end: u64) {
        let zeroes: Arc<Block> = Arc::new([0; _]);
        for block in start / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            self.blocks.entry(block).or_insert_with(|| zeroes.clone());
        }
    }

    /// Frees the whole blocks of the range from `start` to `end`, and zeroes its other bytes. The size stays.
    pub(super) fn punch(&mut self, start: u64, end: u64) {
        let (first, last) = (start / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        let touched: Vec<u64> = self.blocks.range(first..last).map(|(block, _)| *block).collect();
        for block in touched {
            let block_start = block * PAGE_BYTES;
            let from = start.saturating_sub(block_start) as usize;
            let to = (end - block_start).min(PAGE_BYTES) as usize;
            if to - from == PAGE_BYTES as usize {
                self.blocks.remove(&block);
            } else if let Some(bytes) = self.blocks.get_mut(&block) {
                Arc::make_mut(bytes)[from..to].fill(0);
            }
        }
    }

    /// The first allocated byte at or after `offset_bytes`.
    pub(super) fn next_data(&self, offset_bytes: u64) -> Option<u64> {
        let (block, _) = self.blocks.range(offset_bytes / PAGE_BYTES..).next()?;
        Some(offset_bytes.max(block * PAGE_BYTES)).filter(|at| *at < self.size_bytes)
    }

    /// The first byte at or after `offset_bytes` that is not allocated; the end counts as one.
    pub(super) fn next_hole(&self, offset_bytes: u64) -> Option<u64> {
        let mut hole = offset_bytes / PAGE_BYTES;
        for (block, _) in self.blocks.range(hole..) {
            if *block != hole {
                break;
            }
            hole += 1;
        }
        let is_within = offset_bytes < self.size_bytes;
        is_within.then(|| offset_bytes.max(hole.saturating_mul(PAGE_BYTES)).min(self.size_bytes))
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size_bytes as usize];
        self.read(0, &mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_and_extended_run_reads_zero_where_it_was_cut() {
        let mut run = Blocks::default();
        run.write(0, &[7; 5000]);
        run.resize(10);
        run.resize(6000);
        assert_eq!(run.to_vec()[..10], [7; 10]);
        assert!(run.to_vec()[10..].iter().all(|&byte| byte == 0));
        assert_eq!(run.allocated_bytes(), PAGE_BYTES);
    }

    #[test]
    fn a_write_behind_the_end_leaves_a_hole() {
        let mut run = Blocks::default();
        run.write(3 * PAGE_BYTES, b"end");
        assert_eq!(run.size_bytes(), 3 * PAGE_BYTES + 3);
        assert_eq!(run.allocated_bytes(), PAGE_BYTES);
        let mut page = [1; PAGE_BYTES as usize];
        assert_eq!(run.read(3 * PAGE_BYTES, &mut page), 3);
        assert_eq!(run.read(PAGE_BYTES, &mut page), page.len());
        assert_eq!(page, [0; PAGE_BYTES as usize]);
        assert_eq!(run.read(u64::MAX, &mut page), 0);
    }

    #[test]
    fn a_punched_range_reads_zero_and_gives_up_whole_blocks() {
        let mut run = Blocks::default();
        run.write(0, &[7; 4 * PAGE_BYTES as usize]);
        run.punch(100, 3 * PAGE_BYTES + 100);
        assert_eq!((run.allocated_bytes(), run.size_bytes()), (2 * PAGE_BYTES, 4 * PAGE_BYTES));
        let bytes = run.to_vec();
        assert!(bytes.iter().enumerate().all(|(at, byte)| (*byte == 0) == (100..3 * 4096 + 100).contains(&at)));
        assert_eq!((run.next_hole(0), run.next_data(PAGE_BYTES)), (Some(PAGE_BYTES), Some(3 * PAGE_BYTES)));
        assert_eq!((run.next_hole(3 * PAGE_BYTES), run.next_hole(4 * PAGE_BYTES)), (Some(4 * PAGE_BYTES), None));
        run.punch(50, 60);
        assert_eq!(run.to_vec()[45..65], [[7; 5].as_slice(), &[0; 10], &[7; 5]].concat());
        run.punch(1 << 30, 1 << 40);
        assert_eq!((run.next_data(1 << 30), run.allocated_bytes()), (None, 2 * PAGE_BYTES));
    }

    #[test]
    fn allocated_space_is_beyond_the_end_until_the_run_grows() {
        let mut run = Blocks::default();
        run.write(0, b"start");
        run.allocate(0, 2 * PAGE_BYTES + 1);
        assert_eq!((run.allocated_bytes(), run.size_bytes()), (3 * PAGE_BYTES, 5));
        assert_eq!(run.next_data(5), None);
        run.resize(PAGE_BYTES);
        assert_eq!(run.to_vec()[..5], *b"start");
        assert!(run.to_vec()[5..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_copy_does_not_see_later_writes() {
        let mut run = Blocks::default();
        run.write(0, b"before");
        let copy = run.clone();
        run.write(0, b"after!");
        assert_eq!(copy.to_vec(), b"before");
    }
}
