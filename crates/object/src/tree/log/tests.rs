//! Kills at every byte of a log, and logs that do not belong to the stored state.

use std::path::PathBuf;

use bytes::Bytes;

use super::*;
use crate::format::{FooterEntry, Key};
use crate::tree::tests::rig::Folder;
use crate::tree::transaction::{Changes, Piece, Transaction};

const VOLUME: [u8; 16] = [7; 16];

fn header(base: (u64, u64), commit: (u64, u64)) -> Header {
    Header { volume: VOLUME, base, commit, pack: SegmentId::new(1, 2, 3) }
}

fn stored(commit: u64, writer_epoch: u64) -> Counters {
    Counters { commit, writer_epoch, next_ino: 10, inodes: 5, data_bytes: 100 }
}

/// The effects of call number `n`.
fn call(n: u64) -> Effects {
    let origin =
        FooterEntry { ino: n, file_offset_bytes: n << 40, segment_offset_bytes: 0, len_bytes: 3, crc32c: n as u32 };
    Effects {
        changes: Changes::from([(Key::Inode(n), Some(Bytes::from(format!("inode {n}")))), (Key::Orphan(n), None)]),
        live: vec![(SegmentId::new(n, 1, 1), -5), (SegmentId::new(0, 0, 0), 1)],
        small: vec![Piece { origin, bytes: Bytes::from_static(b"abc") }],
        inodes: -1,
        data_bytes: 3,
        new_inos: n,
    }
}

#[test]
fn a_log_cut_at_any_byte_has_the_calls_before_the_cut() {
    const CALLS: u64 = 6;
    let folder = Folder::new("cut");
    let mut log = Log::create(folder.path(), &header((3, 1), (4, 2))).expect("creates");
    let mut ends = vec![log.len];
    for n in 0..CALLS {
        log.append(&call(n)).expect("appends");
        ends.push(log.len);
    }
    let path = log.path_of(4);
    let whole = std::fs::read(&path).expect("reads");
    assert_eq!(whole.len() as u64, *ends.last().expect("one"));
    for len in 0..=whole.len() {
        std::fs::write(&path, &whole[..len]).expect("writes");
        let recovered = recover(folder.path(), VOLUME, &stored(3, 1)).expect("recovers");
        assert_eq!(recovered.foreign, Vec::<PathBuf>::new(), "cut at {len}");
        let complete = ends.iter().filter(|end| **end <= len as u64).count().saturating_sub(1) as u64;
        let mut expected = Transaction::new(&stored(3, 1), 2, SegmentId::new(1, 2, 3));
        (0..complete).for_each(|n| expected.apply(call(n), 0));
        match recovered.replayed.as_slice() {
            [] => assert_eq!(complete, 0, "cut at {len}"),
            [replayed] => {
                let transaction = &replayed.transaction;
                assert_eq!(transaction.calls, complete, "cut at {len}");
                assert_eq!(transaction.changes, expected.changes);
                assert_eq!(transaction.live, expected.live);
                assert_eq!(transaction.counters, expected.counters);
                assert_eq!(transaction.pack.segment, expected.pack.segment);
                let bytes = |pack: &crate::tree::transaction::Pack| {
                    pack.pieces().map(|piece| (piece.origin, piece.bytes.clone())).collect::<Vec<_>>()
                };
                assert_eq!(bytes(&transaction.pack), bytes(&expected.pack));
                assert_eq!(replayed.log.len, ends[complete as usize]);
                // A call after the cut replaces what is left of the torn record.
                let mut recovered = recovered;
                recovered.replayed[0].log.append(&call(100)).expect("appends");
                let again = recover(folder.path(), VOLUME, &stored(3, 1)).expect("recovers");
                assert_eq!(again.replayed[0].transaction.calls, complete + 1);
            }
            _ => panic!("one log"),
        }
    }
}

#[test]
fn a_log_has_changes_once_it_has_a_record() {
    let folder = Folder::new("changes");
    assert!(!has_changes(folder.path(), VOLUME));
    let mut log = Log::create(folder.path(), &header((3, 1), (4, 2))).expect("creates");
    assert!(!has_changes(folder.path(), VOLUME));
    log.append(&call(0)).expect("appends");
    assert!(has_changes(folder.path(), VOLUME));
    assert!(!has_changes(folder.path(), [8; 16]), "of another volume");
    assert!(has_changes(&folder.path().join("missing"), VOLUME), "it cannot be looked at");
}

#[test]
fn a_damaged_record_ends_the_log_before_it() {
    let folder = Folder::new("damage");
    let mut log = Log::create(folder.path(), &header((3, 1), (4, 2))).expect("creates");
    log.append(&call(0)).expect("appends");
    let end = log.len as usize;
    log.append(&call(1)).expect("appends");
    let path = log.path_of(4);
    let whole = std::fs::read(&path).expect("reads");
    for at in end..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, &damaged).expect("writes");
        let recovered = recover(folder.path(), VOLUME, &stored(3, 1)).expect("recovers");
        assert_eq!(recovered.replayed[0].transaction.calls, 1, "damage at {at}");
    }
}

#[test]
fn a_log_that_is_in_the_store_goes_and_the_next_one_is_replayed() {
    let folder = Folder::new("durable");
    for (base, commit) in [((3, 1), (4, 2)), ((4, 2), (5, 2))] {
        Log::create(folder.path(), &header(base, commit)).expect("creates").append(&call(commit.0)).expect("appends");
    }
    let recovered = recover(folder.path(), VOLUME, &stored(4, 2)).expect("recovers");
    assert_eq!(recovered.foreign, Vec::<PathBuf>::new());
    let replayed: Vec<u64> = recovered.replayed.iter().map(|log| log.transaction.counters.commit).collect();
    assert_eq!(replayed, [5]);
    assert_eq!(std::fs::read_dir(folder.path()).expect("reads").count(), 1);
}

#[test]
fn both_transactions_of_a_process_are_replayed_in_order() {
    let folder = Folder::new("two");
    for (base, commit) in [((3, 1), (4, 2)), ((4, 2), (5, 2))] {
        Log::create(folder.path(), &header(base, commit)).expect("creates").append(&call(commit.0)).expect("appends");
    }
    let recovered = recover(folder.path(), VOLUME, &stored(3, 1)).expect("recovers");
    let replayed: Vec<u64> = recovered.replayed.iter().map(|log| log.transaction.counters.next_ino).collect();
    assert_eq!(replayed, [10 + 4, 10 + 4 + 5]);
}

#[test]
fn a_log_is_set_aside_if_another_writer_has_committed_since() {
    let folder = Folder::new("foreign");
    Log::create(folder.path(), &header((3, 1), (4, 2))).expect("creates").append(&call(1)).expect("appends");
    // The other writer made the same number of commits.
    let recovered = recover(folder.path(), VOLUME, &stored(4, 3)).expect("recovers");
    assert!(recovered.replayed.is_empty());
    let [foreign] = &recovered.foreign[..] else { panic!("one log") };
    assert!(recover::set_aside(foreign).expect("renames").exists());
    // It is out of the way of the next.
    let again = recover(folder.path(), VOLUME, &stored(4, 3)).expect("recovers");
    assert!(again.replayed.is_empty() && again.foreign.is_empty());
    // Logs of other volumes are not looked at.
    Log::create(folder.path(), &Header { volume: [8; 16], ..header((4, 3), (5, 3)) }).expect("creates");
    assert!(recover(folder.path(), VOLUME, &stored(4, 3)).expect("recovers").replayed.is_empty());
}
