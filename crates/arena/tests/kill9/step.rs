//! The steps of a writer, and its reports.

use std::io::{Read, Write};

use slackwater_arena::FRAME_BYTES;

/// Threads of a writer process. The inode number shows which thread an inode belongs to.
pub(crate) const WRITERS: u64 = 2;

/// A change of the arena.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    NewInode {
        ino: u64,
    },
    FreeInode {
        ino: u64,
    },
    SetSize {
        ino: u64,
        size_bytes: u64,
    },
    SetMtime {
        ino: u64,
        mtime_ns: u64,
    },
    /// Fill a frame, then publish it: a new page, or a new version while the old frame stays dirty.
    WriteFrame(Write4K),
    /// Change bytes of a dirty page where they are.
    WriteInPlace(Write4K),
    /// Free the page's older frames, then mark it clean.
    Clean {
        ino: u64,
        index: u64,
    },
}

/// Bytes `from..to` of a page become `byte`; all others stay, or are those of [`blank`].
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct Write4K {
    pub(crate) ino: u64,
    pub(crate) index: u64,
    pub(crate) version: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) byte: u64,
}

impl Write4K {
    pub(crate) fn apply(&self, bytes: &mut [u8; FRAME_BYTES]) {
        bytes[self.from as usize..self.to as usize].fill(self.byte as u8);
    }
}

/// A page that was never written. Its bytes show its place.
pub(crate) fn blank(ino: u64, index: u64) -> [u8; FRAME_BYTES] {
    let mut bytes = [0; FRAME_BYTES];
    bytes[FRAME_BYTES - 16..FRAME_BYTES - 8].copy_from_slice(&ino.to_le_bytes());
    bytes[FRAME_BYTES - 8..].copy_from_slice(&index.to_le_bytes());
    bytes
}

/// A step that begins, or is done.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Report {
    pub(crate) step: Step,
    pub(crate) is_done: bool,
}

impl Report {
    /// Writes less than `PIPE_BUF` bytes at once: whole or not at all.
    pub(crate) fn send(self) {
        let words: [u64; 8] = match self.step {
            Step::NewInode { ino } => [0, ino, 0, 0, 0, 0, 0, 0],
            Step::FreeInode { ino } => [1, ino, 0, 0, 0, 0, 0, 0],
            Step::SetSize { ino, size_bytes } => [2, ino, size_bytes, 0, 0, 0, 0, 0],
            Step::SetMtime { ino, mtime_ns } => [3, ino, mtime_ns, 0, 0, 0, 0, 0],
            Step::WriteFrame(w) => [4, w.ino, w.index, w.version, w.from, w.to, w.byte, 0],
            Step::WriteInPlace(w) => [5, w.ino, w.index, w.version, w.from, w.to, w.byte, 0],
            Step::Clean { ino, index } => [6, ino, index, 0, 0, 0, 0, 0],
        };
        let mut bytes = [0; 64];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes[63] = u8::from(self.is_done);
        std::io::stderr().write_all(&bytes).expect("the parent reads until we are gone");
    }

    pub(crate) fn read_all(mut pipe: impl Read) -> Vec<Self> {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        let reports = bytes.as_chunks::<64>();
        let text = String::from_utf8_lossy(&bytes);
        assert!(reports.1.is_empty(), "the child printed: {text}");
        reports.0.iter().map(Self::parse).collect()
    }

    fn parse(bytes: &[u8; 64]) -> Self {
        let mut words = [0; 8];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        let [kind, ino, a, b, from, to, byte, _] = words;
        let write = Write4K { ino, index: a, version: b, from, to, byte };
        let step = match kind {
            0 => Step::NewInode { ino },
            1 => Step::FreeInode { ino },
            2 => Step::SetSize { ino, size_bytes: a },
            3 => Step::SetMtime { ino, mtime_ns: a },
            4 => Step::WriteFrame(write),
            5 => Step::WriteInPlace(write),
            6 => Step::Clean { ino, index: a },
            _ => panic!("the child printed: {}", String::from_utf8_lossy(bytes)),
        };
        Self { step, is_done: bytes[63] == 1 }
    }
}

/// A small generator: a seed repeats a run as far as the scheduler lets it.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
