//! Allocating space, punching holes, and finding both.

use slackwater::ErrorKind;
use slackwater::backend::{FallocateMode, NewNode, Node, SeekWhence};

use super::volume::Volume;
use crate::pattern;

const MIB: u64 = 1 << 20;
const MODES: [FallocateMode; 5] = [
    FallocateMode::Allocate,
    FallocateMode::AllocateKeepSize,
    FallocateMode::PunchHole,
    FallocateMode::Zero,
    FallocateMode::ZeroKeepSize,
];

pub(super) fn allocated_space_reads_zero_and_may_lie_beyond_the_end(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    volume.fill(&file, &pattern(1, 5000));
    let attr = volume.fallocate(&file, FallocateMode::AllocateKeepSize, 0, MIB).expect("there is space");
    assert_eq!(attr.size_bytes, 5000);
    assert!(attr.allocated_bytes >= MIB);
    let attr = volume.fallocate(&file, FallocateMode::Allocate, 3, 2 * MIB).expect("there is space");
    assert_eq!((attr.size_bytes, attr.allocated_bytes >= 2 * MIB), (2 * MIB + 3, true));
    assert_eq!(attr, volume.attr(&file));
    let mut expected = pattern(1, 5000);
    expected.resize(MIB as usize, 0);
    assert_eq!(volume.read(&file, 0, MIB as usize), Ok(expected));
    assert_eq!(volume.read(&file, 2 * MIB, 4096), Ok(vec![0; 3]));
    let attr = volume.fallocate(&file, FallocateMode::Allocate, 0, 10).expect("it has space already");
    assert_eq!(attr.size_bytes, 2 * MIB + 3);
}

pub(super) fn a_punched_range_reads_zero_and_frees_its_space(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    let mut bytes = pattern(2, MIB as usize);
    volume.fill(&file, &bytes);
    assert_eq!(volume.sync(&file, slackwater::backend::SyncScope::All), Ok(()));
    let before = volume.attr(&file);
    let attr = volume.fallocate(&file, FallocateMode::PunchHole, 1000, 600_000).expect("a hole can be punched");
    assert_eq!(attr.size_bytes, MIB);
    assert!(attr.allocated_bytes < before.allocated_bytes, "{attr:?}");
    bytes[1000..601_000].fill(0);
    assert_eq!(volume.read(&file, 0, MIB as usize).as_deref(), Ok(&bytes[..]));
    // A hole up to the end and beyond it does not change the size either.
    let attr = volume.fallocate(&file, FallocateMode::PunchHole, 900_000, 4 * MIB).expect("a hole can be punched");
    assert_eq!(attr.size_bytes, MIB);
    bytes[900_000..].fill(0);
    assert_eq!(volume.read(&file, 0, MIB as usize), Ok(bytes));
}

pub(super) fn a_zeroed_range_reads_zero(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    let mut bytes = pattern(3, 300_000);
    volume.fill(&file, &bytes);
    let attr = match volume.fallocate(&file, FallocateMode::ZeroKeepSize, 100_001, 1_000_000) {
        Err(ErrorKind::Unsupported) => return println!("skipped: ranges cannot be zeroed here"),
        zeroed => zeroed.expect("a range can be zeroed"),
    };
    assert_eq!(attr.size_bytes, 300_000);
    bytes[100_001..].fill(0);
    assert_eq!(volume.read(&file, 0, MIB as usize).as_deref(), Ok(&bytes[..]));
    let attr = volume.fallocate(&file, FallocateMode::Zero, 10, 400_000).expect("a range can be zeroed");
    assert_eq!(attr.size_bytes, 400_010);
    bytes[10..].fill(0);
    bytes.resize(400_010, 0);
    assert_eq!(volume.read(&file, 0, MIB as usize), Ok(bytes));
}

pub(super) fn an_invalid_range_is_refused(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    volume.fill(&file, b"bytes");
    let limit = volume.backend.limits().max_file_bytes;
    for mode in MODES {
        assert_eq!(volume.fallocate(&file, mode, 0, 0).err(), Some(ErrorKind::Invalid), "{mode:?}");
        for (offset, len) in [(limit, 1), (0, limit + 1), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
            assert_eq!(volume.fallocate(&file, mode, offset, len).err(), Some(ErrorKind::TooLarge), "{mode:?}");
        }
    }
    assert_eq!(volume.attr(&file).size_bytes, 5);
    assert_eq!(volume.read(&file, 0, 4096).as_deref(), Ok(&b"bytes"[..]));
}

pub(super) fn data_and_holes_are_found(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    let data = |at| volume.seek(&file, at, SeekWhence::Data).expect("a file can be searched");
    let hole = |at| volume.seek(&file, at, SeekWhence::Hole).expect("a file can be searched");
    assert_eq!((data(0), hole(0)), (None, None), "an empty file");
    assert_eq!(volume.write(&file, MIB, &pattern(4, 65_536)), Ok(65_536));
    volume.resize(&file, 3 * MIB).expect("a file can be extended");
    let end = MIB + 65_536;
    assert_eq!((data(0), data(MIB), data(MIB + 5)), (Some(MIB), Some(MIB), Some(MIB + 5)));
    assert_eq!((hole(0), hole(7), hole(MIB), hole(MIB + 5)), (Some(0), Some(7), Some(end), Some(end)));
    assert_eq!((data(end), hole(end), hole(2 * MIB + 9)), (None, Some(end), Some(2 * MIB + 9)));
    for beyond in [3 * MIB, 3 * MIB + 1, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX] {
        assert_eq!((data(beyond), hole(beyond)), (None, None), "{beyond}");
    }
    // Data that reaches the end is followed by a hole.
    assert_eq!(volume.write(&file, 2 * MIB, &pattern(5, MIB as usize)), Ok(MIB as usize));
    assert_eq!((data(end), hole(2 * MIB)), (Some(2 * MIB), Some(3 * MIB)));
    volume.fallocate(&file, FallocateMode::PunchHole, MIB, 65_536).expect("a hole can be punched");
    assert_eq!((data(0), hole(MIB)), (Some(2 * MIB), Some(MIB)));
}

pub(super) fn range_calls_on_other_node_kinds_are_refused(volume: &Volume) {
    let root = volume.root();
    let link = volume.make(&root, "link", NewNode::Symlink("target".into()), 0).expect("it can be made").node;
    let fifo = NewNode::Special { type_bits: 0o010_000, rdev: 0 };
    let fifo = volume.make(&root, "fifo", fifo, 0o600).expect("it can be made").node;
    let refuses = |node: &Node, kind| {
        for mode in MODES {
            assert_eq!(volume.fallocate(node, mode, 0, 4096).err(), Some(kind));
        }
        for whence in [SeekWhence::Data, SeekWhence::Hole] {
            assert_eq!(volume.seek(node, 0, whence), Err(kind));
        }
    };
    refuses(&root, ErrorKind::IsDirectory);
    refuses(&link, ErrorKind::Invalid);
    refuses(&fifo, ErrorKind::Invalid);
}
