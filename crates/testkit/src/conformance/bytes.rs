//! File data, sizes, attributes and syncs.

use slackwater::backend::{AttrChange, NewNode, Node, NodeKind, Removal, SyncScope};
use slackwater::{ErrorKind, NodeId, Timestamp};

use super::volume::{PendingUnit, Volume, is_root};
use crate::pattern;

pub(super) fn bytes_written_are_read_back_at_every_length(volume: &Volume) {
    let root = volume.root();
    for len in [1, 511, 4095, 4096, 4097, 65_535, 65_536, 70_001, (1 << 20) - 1, 1 << 20] {
        let file = volume.file(&root, format!("{len}"));
        let bytes = pattern(len as u64, len);
        assert_eq!(volume.write(&file, 0, &bytes), Ok(len));
        assert_eq!(volume.attr(&file).size_bytes, len as u64);
        assert_eq!(volume.read(&file, 0, len.next_multiple_of(4096)).as_deref(), Ok(&bytes[..]));
        assert_eq!(volume.sync(&file, SyncScope::Data), Ok(()));
        let again = volume.lookup(&root, format!("{len}")).expect("it has a name").node;
        assert_eq!(volume.read(&again, 0, 1 << 20).as_deref(), Ok(&bytes[..]));
    }
}

pub(super) fn a_file_ends_at_its_last_written_byte(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    volume.fill(&file, &pattern(1, 3 << 20));
    let tail = pattern(2, 123_456);
    assert_eq!(volume.write(&file, 3 << 20, &tail), Ok(tail.len()));
    assert_eq!(volume.attr(&file).size_bytes, (3 << 20) + 123_456);
    assert_eq!(volume.sync(&file, SyncScope::All), Ok(()));
    assert_eq!(volume.attr(&file).size_bytes, (3 << 20) + 123_456);
    assert_eq!(volume.read(&file, 3 << 20, 1 << 20), Ok(tail));
}

pub(super) fn an_overwrite_keeps_the_size(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    let mut bytes = pattern(1, 300_000);
    volume.fill(&file, &bytes);
    for (at, len) in [(0, 10), (4096, 100_000), (65_536, 131_072), (299_008, 992)] {
        let new = pattern(at as u64, len);
        assert_eq!(volume.write(&file, at as u64, &new), Ok(len));
        bytes[at..at + len].copy_from_slice(&new);
        assert_eq!(volume.attr(&file).size_bytes, 300_000);
        assert_eq!(volume.read(&file, 0, 1 << 20).as_deref(), Ok(&bytes[..]));
    }
}

pub(super) fn holes_read_as_zero(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    assert_eq!(volume.write(&file, 5 << 20, b"end"), Ok(3));
    assert_eq!(volume.write(&file, 1 << 20, &pattern(1, 70_000)), Ok(70_000));
    assert_eq!(volume.attr(&file).size_bytes, (5 << 20) + 3);
    assert_eq!(volume.read(&file, 0, 1 << 20), Ok(vec![0; 1 << 20]));
    assert_eq!(volume.read(&file, 3 << 20, 4096), Ok(vec![0; 4096]));
    let mut expected = pattern(1, 70_000);
    expected.resize(1 << 20, 0);
    assert_eq!(volume.read(&file, 1 << 20, 1 << 20), Ok(expected));
}

pub(super) fn a_truncated_and_extended_file_reads_zero_past_the_cut(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    let bytes = pattern(3, 200_000);
    volume.fill(&file, &bytes);
    assert_eq!(volume.resize(&file, 70_001).expect("a file can be cut").size_bytes, 70_001);
    assert_eq!(volume.resize(&file, 150_000).expect("a file can be extended").size_bytes, 150_000);
    let mut expected = bytes[..70_001].to_vec();
    expected.resize(150_000, 0);
    assert_eq!(volume.read(&file, 0, 1 << 20), Ok(expected));
}

pub(super) fn a_read_stops_at_the_end_of_the_file(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    assert_eq!(volume.read(&file, 0, 1 << 20), Ok(Vec::new()));
    volume.fill(&file, &pattern(4, 5000));
    assert_eq!(volume.read(&file, 4096, 4096).map(|bytes| bytes.len()), Ok(904));
    assert_eq!(volume.read(&file, 4096, 1 << 20).map(|bytes| bytes.len()), Ok(904));
    assert_eq!(volume.read(&file, 8192, 4096), Ok(Vec::new()));
    assert_eq!(volume.read(&file, 1 << 40, 1 << 20), Ok(Vec::new()));
}

pub(super) fn concurrent_units_on_one_file_do_not_interfere(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    let units = u64::from(volume.backend.limits().units_in_flight.min(8));
    let bytes = |unit: u64| pattern(unit, 1 << 20);
    // From the end, so that all but the first write into a hole.
    let flying: Vec<PendingUnit> =
        (0..units).rev().map(|unit| volume.submit_write(&file, unit << 20, &bytes(unit))).collect();
    assert!(flying.into_iter().all(|unit| unit.wait().0 == Ok(1 << 20)));
    assert_eq!(volume.attr(&file).size_bytes, units << 20);
    assert!((0..units).all(|unit| volume.read(&file, unit << 20, 1 << 20) == Ok(bytes(unit))));
}

pub(super) fn an_unlinked_file_keeps_its_bytes_while_open(volume: &Volume) {
    let root = volume.root();
    let file = volume.file(&root, "file");
    volume.fill(&file, b"before");
    assert_eq!(volume.remove(&root, "file", Removal::File), Ok(()));
    assert_eq!(volume.attr(&file).nlink, 0);
    assert_eq!(volume.write(&file, 4096, b"after"), Ok(5));
    assert_eq!(volume.read(&file, 4096, 4096).as_deref(), Ok(&b"after"[..]));
    assert_eq!(volume.sync(&file, SyncScope::All), Ok(()));
    // The name can be used for another file, which is another node.
    let other = volume.file(&root, "file");
    assert_ne!(other.id(), file.id());
    assert_eq!(volume.read(&other, 0, 4096), Ok(Vec::new()));
    // A node that was never opened for data can still be opened after it lost its name.
    let unopened = volume.lookup(&root, "file").expect("it has a name").node;
    drop(other);
    assert_eq!(volume.remove(&root, "file", Removal::File), Ok(()));
    assert_eq!(volume.write(&unopened, 0, b"late"), Ok(4));
    assert_eq!(volume.read(&unopened, 0, 4096).as_deref(), Ok(&b"late"[..]));
}

pub(super) fn attributes_read_back_as_set(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    volume.fill(&file, &pattern(5, 100_000));
    let (atime, mtime) = (Timestamp(1_000_000_000_123_456_789), Timestamp(-1_500_000_000));
    let (mode, size_bytes) = (Some(0o640), Some(70_000));
    let times = AttrChange { atime: Some(atime), mtime: Some(mtime), ..AttrChange::default() };
    let attr = volume.setattr(&file, AttrChange { mode, size_bytes, ..times }).expect("all can be set");
    for attr in [attr, volume.attr(&file)] {
        assert_eq!((attr.mode, attr.size_bytes), (0o100_640, 70_000));
        assert_eq!((attr.atime, attr.mtime), (atime, mtime));
    }
    assert_eq!(volume.sync(&file, SyncScope::All), Ok(()));
    assert_eq!(volume.attr(&file).mtime, mtime);
    assert_eq!(volume.write(&file, 0, b"new"), Ok(3));
    assert!(volume.attr(&file).mtime > mtime);
    // Setting one time does not change the other.
    volume.setattr(&file, times).expect("times can be set");
    let later = AttrChange { mtime: Some(Timestamp(5)), ..AttrChange::default() };
    let attr = volume.setattr(&file, later).expect("a time can be set");
    assert_eq!((attr.atime, attr.mtime), (atime, Timestamp(5)));
}

pub(super) fn setuid_survives_a_change_of_owner_in_the_same_call(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    let owner = if is_root() { (12, 34) } else { (volume.attr(&file).uid, volume.attr(&file).gid) };
    let change = AttrChange { mode: Some(0o6755), uid: Some(owner.0), gid: Some(owner.1), ..AttrChange::default() };
    let attr = volume.setattr(&file, change).expect("owner and mode can be set");
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o106_755, owner.0, owner.1));
}

pub(super) fn a_size_beyond_the_limit_is_refused(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    volume.fill(&file, b"bytes");
    let limit = volume.backend.limits().max_file_bytes;
    if limit < 1 << 60 {
        let attr = volume.resize(&file, limit).expect("the limit is within the limit");
        assert_eq!(attr.size_bytes, limit);
        assert_eq!(volume.resize(&file, limit + 1).err(), Some(ErrorKind::TooLarge));
        assert_eq!(volume.write(&file, limit.next_multiple_of(4096), b"x"), Err(ErrorKind::TooLarge));
        assert_eq!(volume.attr(&file).size_bytes, limit);
    }
}

pub(super) fn data_calls_on_other_node_kinds_are_refused(volume: &Volume) {
    let root = volume.root();
    let link = volume.make(&root, "link", NewNode::Symlink("target".into()), 0).expect("a link can be made").node;
    assert!(volume.write(&root, 0, b"x").is_err());
    assert!(volume.read(&root, 0, 4096).is_err());
    assert!(volume.write(&link, 0, b"x").is_err());
    assert!(volume.read(&link, 0, 4096).is_err());
    assert!(volume.resize(&root, 0).is_err());
    let mode = AttrChange { mode: Some(0o600), ..AttrChange::default() };
    assert_eq!(volume.setattr(&link, mode).err(), Some(ErrorKind::Unsupported));
    let times = AttrChange { mtime: Some(Timestamp(7)), ..AttrChange::default() };
    assert_eq!(volume.setattr(&link, times).expect("a link has times").mtime, Timestamp(7));
}

pub(super) fn every_kind_of_node_can_be_synced(volume: &Volume) {
    let root = volume.root();
    let dir = volume.directory(&root, "dir");
    let link = volume.make(&dir, "link", NewNode::Symlink("target".into()), 0).expect("a link can be made").node;
    volume.file(&dir, "unopened");
    let file = volume.lookup(&dir, "unopened").expect("it has a name").node;
    for node in [&root, &dir, &link, &file] {
        for scope in [SyncScope::Data, SyncScope::All] {
            assert_eq!(volume.sync(node, scope), Ok(()));
        }
    }
    assert_eq!(volume.sync_volume(), Ok(()));
    let statfs = volume.statfs();
    assert!(statfs.block_bytes > 0 && statfs.blocks >= statfs.blocks_free && statfs.name_max == 255);
    assert!(statfs.blocks_free >= statfs.blocks_available && statfs.files >= statfs.files_free);
}

pub(super) fn a_node_of_another_backend_is_refused(volume: &Volume) {
    let root = volume.root();
    assert_eq!(volume.attr(&root).kind, NodeKind::Directory);
    let stranger = Node::new(NodeId { dev: 1, ino: 2, generation: 3 }, "of another backend");
    let node = stranger.clone();
    let attr = volume.ask(|done| slackwater::backend::Call::Getattr { node, done });
    assert_eq!(attr.err(), Some(ErrorKind::Invalid));
    assert_eq!(volume.lookup(&stranger, "name").err(), Some(ErrorKind::Invalid));
    assert_eq!(volume.link(&stranger, &root, "name").err(), Some(ErrorKind::Invalid));
    assert_eq!(volume.write(&stranger, 0, b"x"), Err(ErrorKind::Invalid));
    assert_eq!(volume.read(&stranger, 0, 4096), Err(ErrorKind::Invalid));
}
