//! What is written: bytes at a page boundary, as direct writes want them.

use std::ops::Deref;

const PAGE: usize = 4096;

pub(super) struct Block {
    memory: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Block {
    pub(super) fn new(len: usize) -> Self {
        let memory = vec![0x5a; len + PAGE];
        let skip = memory.as_ptr().align_offset(PAGE);
        Self { memory, skip, len }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.skip..self.skip + self.len]
    }
}
