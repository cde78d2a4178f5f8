//! Random requests, and mutations of them.

use slackwater_fuse::abi::Opcode;

use super::layout::{Part, parts};

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Numbers that often break programs, and random ones.
    fn number(&mut self, near: usize) -> u32 {
        let edges = [0, 1, 2, 16, 255, 4096, 1 << 20, 1 << 28, i32::MAX as u32, u32::MAX - 39, u32::MAX, near as u32];
        match self.below(4) {
            0 => self.next() as u32,
            1 => (near as u32).wrapping_add(self.below(3) as u32).wrapping_sub(1),
            _ => edges[self.below(edges.len())],
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A valid request: its opcode and the bytes after the header.
pub(crate) fn valid(random: &mut Random) -> (Opcode, Vec<u8>) {
    let opcode = Opcode::ALL[random.below(Opcode::ALL.len())];
    let (mut body, mut record) = (Vec::new(), 0..0);
    for part in parts(opcode).unwrap_or_default() {
        match part {
            Part::Record(len) => {
                record = body.len()..body.len() + len;
                // Most fields are small numbers, many of them 0.
                body.extend((0..*len).map(|at| if at % 8 < 2 && random.one_in(2) { random.next() as u8 } else { 0 }));
            }
            Part::Name | Part::Text => {
                let len = [1, 1 + random.below(20), 255, 1 + random.below(4095)][random.below(4)];
                let is_name = matches!(part, Part::Name);
                let letters = (0..len).map(|_| match random.next() as u8 {
                    0 => b'0',
                    b'/' if is_name => b'.',
                    letter => letter,
                });
                body.extend(letters);
                body.push(0);
            }
            Part::Bytes { size_at } => {
                let len = random.below(200);
                body[record.start + size_at..][..4].copy_from_slice(&(len as u32).to_ne_bytes());
                body.extend(random.bytes(len));
            }
            Part::Forgets => {
                let count = random.below(20);
                body[record.start..][..4].copy_from_slice(&(count as u32).to_ne_bytes());
                body.extend(random.bytes(count * 16));
            }
            Part::MoreOfInit => {
                let flags = body.len() - 4;
                body[flags..].fill(if random.one_in(2) { 0xff } else { 0 });
                body.extend(random.bytes(48));
            }
        }
    }
    (opcode, body)
}

/// Applies one mutation to a body; `other` is another body to copy from.
pub(crate) fn mutate(random: &mut Random, body: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(body.len() + 1);
    match random.below(9) {
        0 => body.truncate(at),
        1 => {
            let more = random.below(100);
            body.extend(random.bytes(more));
        }
        2 if at < body.len() => body[at] ^= 1 << random.below(8),
        3 if at < body.len() => body[at] = [0, b'/', b'.', 0xff][random.below(4)],
        4 => {
            let left = body.len();
            let number = random.number(left).to_ne_bytes();
            // At the offsets of numbers.
            if let Some(place) = body.get_mut(at / 4 * 4..at / 4 * 4 + 4) {
                place.copy_from_slice(&number);
            }
        }
        5 => drop(body.drain(at..(at + random.below(40)).min(body.len()))),
        6 => {
            let copied = body[at..(at + random.below(40)).min(body.len())].to_vec();
            body.splice(at..at, copied);
        }
        7 => {
            let from = random.below(other.len() + 1);
            body.splice(at.., other[from..].iter().copied());
        }
        _ => body.insert(at, 0),
    }
}
