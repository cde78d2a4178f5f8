//! Written data is read back, from wherever it is.

use futures::TryStreamExt;
use proptest::prelude::*;

use crate::layers::{Failure, Operation, Rule};

use super::rig::{How, Rig, Volume, block_on, bytes, rounds};

const INO: u64 = 5;
const FILE_BYTES: usize = 5 << 20;
const PAGE: usize = 4096;

/// A unit: its page, its length, and how it is written.
type Write = (usize, usize, bool, bool);

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let len = prop_oneof![1..20_000_usize, 60_000..70_000_usize, Just(1_usize << 20), 1..=1_usize << 20];
    let write = (0..FILE_BYTES / PAGE, len, any::<bool>(), any::<bool>())
        .prop_map(|(page, len, sync, scattered)| (page, len.min(FILE_BYTES - page * PAGE), sync, scattered));
    proptest::collection::vec(write, 1..12)
}

async fn assert_reads(volume: &Volume, model: &[u8], state: &str) {
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        let expected = &model[at.min(model.len())..model.len().min(at + (1 << 20))];
        let read = volume.read(INO, at as u64, 1 << 20).await.expect("the store works");
        assert!(read == expected, "the bytes from {at} on are wrong {state}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(8, 24)))]

    #[test]
    fn a_file_reads_as_it_was_written(writes in writes()) {
        block_on(async {
            let rig = Rig::new();
            let volume = rig.open().await;
            volume.make(INO).await;
            let mut model = Vec::new();
            for (seed, (page, len, is_for_sync, is_scattered)) in writes.iter().copied().enumerate() {
                let (at, new) = (page * PAGE, bytes(seed, len));
                let unit = volume.submit_write(INO, at as u64, &new, How { is_for_sync, is_scattered });
                assert_eq!(unit.wait().await.0.expect("the store works"), len);
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&new);
            }
            assert_reads(&volume, &model, "before the commit").await;
            volume.commit().await;
            assert_reads(&volume, &model, "after the commit").await;
            drop(volume);
            assert_reads(&rig.open().await, &model, "in the next process").await;
        });
    }
}

#[test]
fn small_files_that_were_written_together_are_read_with_one_request() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        for ino in 10..110 {
            volume.make(ino).await;
            volume.write(ino, 0, &bytes(ino as usize, 5000)).await;
        }
        // SlateDB makes requests of its own from time to time, so the objects are counted.
        let objects = async |folder: &str| {
            let all: Vec<_> = rig.store.list(None).try_collect().await.expect("the store works");
            all.iter().filter(|object| object.location.as_ref().contains(folder)).count()
        };
        let before = objects("/wal/").await;
        volume.commit().await;
        assert_eq!((objects("seg/").await, objects("/wal/").await - before), (1, 1), "a segment and a commit");
        drop(volume);
        let volume = rig.open().await;
        // Each segment is read once: a second read of one fails.
        rig.fault.add(Rule::fail(Failure::Server).on(Operation::Get).under("seg/").nth(2));
        let pending: Vec<_> = (10..110).map(|ino| (ino, volume.submit_read(ino, 0, 8192))).collect();
        for (ino, unit) in pending {
            let (count, read) = unit.wait().await;
            assert_eq!(count.expect("the store works"), 5000);
            assert!(read[..5000] == bytes(ino as usize, 5000));
        }
    });
}
