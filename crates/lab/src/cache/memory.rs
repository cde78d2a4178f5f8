//! Copying in memory, which the others cannot beat.
//!
//! The memory and the instruction are those of the engine's frames: huge pages, through which the kernel also accesses its
//! page cache, and `copy_bytes`. So the difference is what an engine adds to the copy, and with two threads both meet the
//! same limit of the machine. (The C library's `memcpy` on a program's ordinary memory takes a quarter longer, which would
//! flatter whatever is compared with it.)

use std::hint::black_box;

use anyhow::Result;
use slackwater_arena::copy_bytes;

use super::pattern::PAGE;
use super::subject::{Lane, Operation, Sharing, Subject};
use super::sys;

/// Buffers for `memcpy`. A shared buffer is divided among the lanes: to memory it makes no difference which thread copies
/// which page.
pub(crate) struct Memory {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Memory {
    pub(crate) fn new(files: usize, bytes: u64) -> Self {
        let bytes = bytes as usize;
        Self { buffers: (0..files).map(|_| sys::huge_buffer(bytes)).collect(), bytes }
    }
}

impl Subject for Memory {
    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn lanes(&mut self, threads: usize, sharing: Sharing) -> Vec<Lane<'_>> {
        match sharing {
            Sharing::Own => self.buffers.iter_mut().take(threads).map(|buffer| memory_lane(buffer, false)).collect(),
            Sharing::Shared => {
                self.buffers[0].chunks_exact_mut(self.bytes / threads).map(|bytes| memory_lane(bytes, true)).collect()
            }
        }
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn empty(&mut self) -> Result<()> {
        // Freed first, so that the next use finds fresh pages, of the size that programs get by default.
        self.buffers[0] = Vec::new();
        self.buffers[0] = vec![0; self.bytes];
        Ok(())
    }
}

fn memory_lane(bytes: &mut [u8], is_slice: bool) -> Lane<'_> {
    let pages = (bytes.len() / PAGE) as u64;
    let mut lane = Lane::new(pages, move |operation, number, page| {
        let bytes = &mut bytes[number as usize * PAGE..][..PAGE];
        match operation {
            Operation::Write => copy_bytes(bytes, black_box(&page[..])),
            Operation::Read => copy_bytes(black_box(&mut page[..]), bytes),
        }
        Ok(())
    });
    lane.is_slice = is_slice;
    lane
}
