//! A file against a plain array of bytes, and calls that take several steps.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use slackwater::backend::SeekWhence;
use slackwater::{BackendError, ErrorKind, Timestamp};

use super::*;
use crate::format::{
    CHECKSUM_BLOCK_BYTES, CHUNK_BYTES, Chunk, Decode, Encode, FILE_BYTES_MAX, Inode, Key, SegmentId, Source, Stored,
};
use crate::tree::{Stop, Tree, View};

const INO: u64 = 5;
const MODEL_BYTES: u64 = 3 * CHUNK_BYTES - 4321;

/// A byte of the model.
const HOLE: u16 = 0x100;
const ZERO: u16 = 0x200;

#[derive(Clone, Debug)]
enum Operation {
    Write(u64, u64),
    Truncate(u64),
    Punch(u64, u64),
    Allocate(u64, u64, Size),
    Zero(u64, u64, Size),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let offset = || prop_oneof![(0..MODEL_BYTES), (0..MODEL_BYTES / 4096).prop_map(|page| page * 4096)];
    let len = || prop_oneof![1..20_000_u64, Just(4096), 1..=CHUNK_BYTES];
    let range = move || (offset(), len()).prop_map(|(at, len)| (at, len.min(MODEL_BYTES - at).max(1)));
    let size = || prop_oneof![Just(Size::Keep), Just(Size::Extend)];
    let operation = prop_oneof![
        4 => range().prop_map(|(at, len)| Operation::Write(at, len)),
        1 => (0..MODEL_BYTES).prop_map(Operation::Truncate),
        1 => range().prop_map(|(at, len)| Operation::Punch(at, len)),
        1 => (range(), size()).prop_map(|((at, len), size)| Operation::Allocate(at, len, size)),
        1 => (range(), size()).prop_map(|((at, len), size)| Operation::Zero(at, len, size)),
    ];
    proptest::collection::vec(operation, 1..40)
}

/// A file in a tree, the segments that it refers to, and the model of both.
struct Rig {
    tree: Tree,
    segments: BTreeMap<SegmentId, Vec<u8>>,
    cells: Vec<u16>,
    size: u64,
}

impl Rig {
    fn new() -> Self {
        let tree = Tree::in_memory();
        make(&tree, INO);
        Self { tree, segments: BTreeMap::new(), cells: vec![HOLE; MODEL_BYTES as usize], size: 0 }
    }

    fn run<T>(&self, operation: impl FnMut(&mut View<'_>) -> Result<T, Stop>) -> T {
        run(&self.tree, operation)
    }

    /// Stores bytes behind others in a new segment.
    fn store(&mut self, len: u64) -> Stored {
        let number = self.segments.len() as u64 + 1;
        let segment = SegmentId::new(number, 1, number);
        let offset = (number % 3 * 777) as usize;
        let mut bytes = vec![0xee; offset];
        bytes.extend((0..len).map(|at| (at * 31 + at / 4096 * 7 + number * 13) as u8));
        let crc32c = bytes[offset..].chunks(CHECKSUM_BLOCK_BYTES as usize).map(crc32c::crc32c).collect();
        self.segments.insert(segment, bytes);
        Stored { segment, offset: offset as u32, stored_len: len as u32, skip: 0, crc32c }
    }

    fn set(&mut self, at: u64, len: u64, cell: impl Fn(u16) -> u16) {
        let range = &mut self.cells[at as usize..(at + len) as usize];
        range.iter_mut().for_each(|old| *old = cell(*old));
    }

    fn apply(&mut self, operation: &Operation) {
        let grow = |size: Size, at: u64, len: u64| if size == Size::Extend { at + len } else { 0 };
        match *operation {
            Operation::Write(at, len) => {
                let stored = self.store(len);
                self.run(|view| write(view, INO, at, &stored));
                let bytes = &self.segments[&stored.segment][stored.offset as usize..];
                for (cell, byte) in self.cells[at as usize..].iter_mut().zip(bytes) {
                    *cell = u16::from(*byte);
                }
                self.size = self.size.max(at + len);
            }
            Operation::Truncate(size) => {
                assert_eq!(self.run(|view| truncate(view, INO, size)), Step::Done);
                self.set(size, MODEL_BYTES - size, |_| HOLE);
                self.size = size;
            }
            Operation::Punch(at, len) => {
                assert_eq!(self.run(|view| punch(view, INO, at, len)), Step::Done);
                self.set(at, len, |_| HOLE);
            }
            Operation::Allocate(at, len, size) => {
                assert_eq!(self.run(|view| allocate(view, INO, at, len, size)), Step::Done);
                self.set(at, len, |old| if old == HOLE { ZERO } else { old });
                self.size = self.size.max(grow(size, at, len));
            }
            Operation::Zero(at, len, size) => {
                assert_eq!(self.run(|view| zero(view, INO, at, len, size)), Step::Done);
                self.set(at, len, |_| ZERO);
                self.size = self.size.max(grow(size, at, len));
            }
        }
    }

    /// The file as its extents say, with the checksums of all blocks verified.
    fn read(&self) -> (u64, Vec<u16>) {
        let mut cells = vec![HOLE; MODEL_BYTES as usize];
        let mut allocated = 0;
        for index in 0..MODEL_BYTES.div_ceil(CHUNK_BYTES) {
            let Some(value) = self.run(|view| view.get(Key::Chunk { ino: INO, index })) else { continue };
            let chunk = Chunk::decode(&value).expect("a chunk is stored");
            assert_ne!(chunk.extents, [], "M1");
            for extent in chunk.extents {
                allocated += u64::from(extent.len);
                let at = (index * CHUNK_BYTES) as usize + extent.at as usize;
                let target = &mut cells[at..at + extent.len as usize];
                match &extent.source {
                    Source::Zero => target.fill(ZERO),
                    Source::Segment(stored) => {
                        let bytes =
                            &self.segments[&stored.segment][stored.offset as usize..][..stored.stored_len as usize];
                        let blocks = bytes.chunks(CHECKSUM_BLOCK_BYTES as usize).map(crc32c::crc32c);
                        assert_eq!(blocks.collect::<Vec<u32>>(), stored.crc32c);
                        let bytes = &bytes[stored.skip as usize..][..extent.len as usize];
                        target.iter_mut().zip(bytes).for_each(|(cell, byte)| *cell = u16::from(*byte));
                    }
                }
            }
        }
        (allocated, cells)
    }

    fn check(&self) {
        let inode = inode(&self.tree, INO);
        let (allocated, cells) = self.read();
        assert!(cells == self.cells, "the bytes of the file differ from the model");
        assert_eq!(inode.size_bytes, self.size);
        assert_eq!((inode.allocated_bytes, self.tree.counters().data_bytes), (allocated, allocated), "M2");
        assert_eq!(live_by_extents(&self.tree), live_by_counts(&self.tree), "M3");
        self.check_extents();
        self.check_seek();
    }

    fn check_extents(&self) {
        for at in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, self.size.saturating_sub(1), self.size] {
            let (len, found) = self.run(|view| extents(view, INO, at..at + CHUNK_BYTES));
            assert_eq!(len, self.size.saturating_sub(at).min(CHUNK_BYTES));
            let covered: u64 = found.iter().map(|(_, extent)| u64::from(extent.len)).sum();
            let cells = &self.cells[at.min(MODEL_BYTES) as usize..][..len as usize];
            assert_eq!(covered, cells.iter().filter(|cell| **cell != HOLE).count() as u64);
        }
    }

    fn check_seek(&self) {
        let is_data = |cell: &u16| *cell < HOLE;
        for at in [0, 4096, CHUNK_BYTES, CHUNK_BYTES + 5, self.size.saturating_sub(1), self.size, self.size + 1] {
            let find = |whence| self.run(|view| seek(view, INO, at, whence));
            let (mut data, mut hole) = (None, None);
            if at < self.size {
                let cells = &self.cells[at as usize..self.size as usize];
                data = cells.iter().position(is_data).map(|found| at + found as u64);
                let end = cells.iter().position(|cell| !is_data(cell)).unwrap_or(cells.len());
                hole = Some(at + end as u64);
            }
            assert_eq!(find(SeekWhence::Data), Sought::Found(data), "data from {at} on");
            assert_eq!(find(SeekWhence::Hole), Sought::Found(hole), "a hole from {at} on");
        }
    }
}

fn run<T>(tree: &Tree, operation: impl FnMut(&mut View<'_>) -> Result<T, Stop>) -> T {
    tree.run_in_memory(operation).expect("all is in memory")
}

fn make(tree: &Tree, ino: u64) {
    let inode = Inode { nlink: 1, ..Inode::new(0o100_644, Timestamp(0)) };
    tree.run_in_memory(|view| {
        view.put(Key::Inode(ino), inode.encode());
        Ok(())
    })
    .expect("all is in memory");
}

fn inode(tree: &Tree, ino: u64) -> Inode {
    let value = tree.run_in_memory(|view| view.get(Key::Inode(ino))).expect("all is in memory");
    Inode::decode(&value.expect("it was made")).expect("an inode is stored")
}

fn chunks(tree: &Tree) -> Vec<(Key, Chunk)> {
    let (first, last) = (Key::Chunk { ino: 0, index: 0 }, Key::Chunk { ino: u64::MAX, index: u64::MAX });
    let found = tree.run_in_memory(|view| view.scan(first, last, usize::MAX)).expect("all is in memory");
    found.into_iter().map(|(key, value)| (key, Chunk::decode(&value).expect("a chunk is stored"))).collect()
}

fn live_by_extents(tree: &Tree) -> HashMap<SegmentId, i64> {
    let mut live = HashMap::new();
    for extent in chunks(tree).into_iter().flat_map(|(_, chunk)| chunk.extents) {
        if let Source::Segment(stored) = extent.source {
            *live.entry(stored.segment).or_default() += i64::from(extent.len);
        }
    }
    live
}

fn live_by_counts(tree: &Tree) -> HashMap<SegmentId, i64> {
    tree.live_changes().into_iter().filter(|(_, bytes)| *bytes != 0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_file_is_what_its_operations_made_of_it(operations in operations()) {
        let mut rig = Rig::new();
        for operation in &operations {
            rig.apply(operation);
        }
        rig.check();
        while rig.run(|view| free(view, INO)) != Step::Done {}
        assert_eq!(chunks(&rig.tree), []);
        assert_eq!(live_by_counts(&rig.tree), HashMap::new());
        assert_eq!((inode(&rig.tree, INO).allocated_bytes, rig.tree.counters().data_bytes), (0, 0));
    }
}

/// Makes a byte of data in each of these chunks.
fn sparse(tree: &Tree, indexes: impl Iterator<Item = u64>) {
    let segment = SegmentId::new(1, 1, 1);
    let stored = Stored { segment, offset: 0, stored_len: 1, skip: 0, crc32c: vec![0] };
    for index in indexes {
        tree.run_in_memory(|view| write(view, INO, index * CHUNK_BYTES, &stored)).expect("all is in memory");
    }
}

#[test]
fn a_large_file_is_cut_from_its_end_in_steps() {
    let tree = Tree::in_memory();
    make(&tree, INO);
    let far = (FILE_BYTES_MAX - 1) / CHUNK_BYTES;
    sparse(&tree, (0..6000).chain(1 << 30..(1 << 30) + 5000).chain([far]));
    assert_eq!(run(&tree, |view| allocate(view, INO, FILE_BYTES_MAX - 1, 1, Size::Extend)), Step::Done);
    let mut sizes = vec![inode(&tree, INO).size_bytes];
    while tree.run_in_memory(|view| truncate(view, INO, 10 * CHUNK_BYTES)).expect("all is in memory") != Step::Done {
        let size = inode(&tree, INO).size_bytes;
        assert!(size < *sizes.last().expect("it has one"), "each step comes closer");
        assert!(
            chunks(&tree).iter().all(|(key, _)| matches!(key, Key::Chunk { index, .. } if *index < size / CHUNK_BYTES))
        );
        sizes.push(size);
    }
    assert!(sizes.len() < 10, "{sizes:?}");
    assert_eq!(inode(&tree, INO).size_bytes, 10 * CHUNK_BYTES);
    assert_eq!(chunks(&tree).len(), 10);
    assert_eq!(live_by_counts(&tree), live_by_extents(&tree));
}

#[test]
fn space_behind_the_end_goes_with_a_truncation() {
    let tree = Tree::in_memory();
    make(&tree, INO);
    let len = 9000 * CHUNK_BYTES;
    let mut at = 0;
    while let Step::Rest(next) =
        tree.run_in_memory(|view| allocate(view, INO, at, len - at, Size::Keep)).expect("all is in memory")
    {
        at = next;
    }
    assert_eq!((inode(&tree, INO).size_bytes, inode(&tree, INO).allocated_bytes), (0, len));
    let mut steps = 1;
    while tree.run_in_memory(|view| truncate(view, INO, CHUNK_BYTES)).expect("all is in memory") != Step::Done {
        assert_eq!(inode(&tree, INO).size_bytes, 0);
        steps += 1;
    }
    assert_eq!(steps, 3);
    assert_eq!((inode(&tree, INO).size_bytes, inode(&tree, INO).allocated_bytes), (CHUNK_BYTES, CHUNK_BYTES));
}

#[test]
fn data_behind_many_chunks_of_holes_and_zeroes_is_found_in_steps() {
    let tree = Tree::in_memory();
    make(&tree, INO);
    let len = 5000 * CHUNK_BYTES;
    let Step::Rest(at) = run(&tree, |view| allocate(view, INO, 0, len, Size::Extend)) else {
        panic!("it takes two steps")
    };
    assert_eq!(run(&tree, |view| allocate(view, INO, at, len - at, Size::Extend)), Step::Done);
    sparse(&tree, [4999].into_iter());
    let find = |at, whence| tree.run_in_memory(|view| seek(view, INO, at, whence)).expect("all is in memory");
    let Sought::Rest(next) = find(0, SeekWhence::Data) else { panic!("it takes two steps") };
    assert_eq!(find(next, SeekWhence::Data), Sought::Found(Some(4999 * CHUNK_BYTES)));
    assert_eq!(find(0, SeekWhence::Hole), Sought::Found(Some(0)));
}

#[test]
fn bad_ranges_and_files_are_refused() {
    let tree = Tree::in_memory();
    make(&tree, INO);
    let kind = |answer: Result<Step, BackendError>| answer.map_err(|error| error.kind());
    for (offset, len, error) in [
        (0, 0, ErrorKind::Invalid),
        (FILE_BYTES_MAX, 1, ErrorKind::TooLarge),
        (u64::MAX, u64::MAX, ErrorKind::TooLarge),
    ] {
        assert_eq!(kind(tree.run_in_memory(|view| punch(view, INO, offset, len))), Err(error));
        assert_eq!(kind(tree.run_in_memory(|view| zero(view, INO, offset, len, Size::Keep))), Err(error));
        assert_eq!(kind(tree.run_in_memory(|view| allocate(view, INO, offset, len, Size::Keep))), Err(error));
    }
    let large = tree.run_in_memory(|view| allocate(view, INO, 0, ALLOCATE_BYTES_MAX + 1, Size::Keep));
    assert_eq!(kind(large), Err(ErrorKind::NoSpace));
    assert_eq!(kind(tree.run_in_memory(|view| truncate(view, INO, FILE_BYTES_MAX + 1))), Err(ErrorKind::TooLarge));
    assert_eq!(kind(tree.run_in_memory(|view| truncate(view, INO + 1, 0))), Err(ErrorKind::Stale));
}
