//! How many requests commits, listings and idle volumes cost.

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use slackwater_sync::shim::Arc;

use std::ffi::OsStr;

use slackwater::backend::NewNode;

use crate::format::{Key, ROOT};
use crate::names;
use crate::store::{Count, Layered, Operation};
use crate::tree::tests::rig::{Rig, block_on, put, take_inos};
use crate::tree::{Place, TreeOptions};

fn counted() -> (Rig, Arc<Count>) {
    let count = Arc::new(Count::default());
    let store = Arc::new(Layered::new(count.clone(), Arc::new(InMemory::new())));
    (Rig { place: Place::alone(store), options: TreeOptions::by_hand() }, count)
}

#[test]
fn a_commit_is_one_put_and_nothing_else() {
    block_on(async {
        let (rig, count) = counted();
        let tree = rig.open().await;
        take_inos(&tree, 100).await;
        tree.commit().await.expect("commits");
        let before = count.counts();
        for ino in 2..12 {
            put(&tree, Key::Inode(ino), b"value").await.expect("puts");
            tree.run(|view| Ok(view.append_small(ino, 0, 0, Bytes::from_static(&[7; 4096])))).await.expect("appends");
            tree.commit().await.expect("commits");
        }
        let spent = count.counts().since(&before);
        // SlateDB may read its manifest meanwhile.
        assert_eq!((spent.of(Operation::Create), spent.writes()), (10, 10), "{spent:?}");
    });
}

#[test]
fn a_large_commit_is_one_put_too() {
    block_on(async {
        let (rig, count) = counted();
        let tree = rig.open().await;
        take_inos(&tree, 100_000).await;
        tree.commit().await.expect("commits");
        let folder = Path::from("meta/wal");
        let logs = async || rig.place.store.list(Some(&folder)).try_collect::<Vec<_>>().await.expect("lists").len();
        let (before, logs_before) = (count.counts(), logs().await);
        let made = tree.run(|view| {
            (2..30_000).for_each(|ino| view.put(Key::Inode(ino), Bytes::from_static(&[7; 300])));
            Ok(())
        });
        made.await.expect("puts");
        tree.commit().await.expect("commits");
        let spent = count.counts().since(&before);
        // SlateDB stores a memtable of this size as a table too: a PUT, and one of the manifest. The commit waits for neither.
        assert_eq!(logs().await - logs_before, 1, "{spent:?}");
        let creates = spent.of(Operation::Create);
        assert!((1..=2).contains(&creates) && spent.writes() - creates <= 1, "{spent:?}");
    });
}

#[test]
fn a_cold_tree_of_many_files_is_read_with_few_requests() {
    const FILES: u64 = 10_000;
    block_on(async {
        let (rig, count) = counted();
        let tree = rig.open().await;
        take_inos(&tree, FILES as usize + 10).await;
        for ino in 2..FILES {
            let entry = Key::Entries { dir: 1, hash: ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1 };
            let made = tree.run(|view| {
                view.put(entry, Bytes::copy_from_slice(&ino.to_le_bytes()));
                view.put(Key::Inode(ino), Bytes::from(vec![ino as u8; 120]));
                Ok(())
            });
            made.await.expect("makes");
            if ino % 2_000 == 0 {
                tree.commit().await.expect("commits");
            }
        }
        // Not from the log that the next one replays.
        tree.base.as_ref().expect("a store").store_table().await.expect("stores a table");
        tree.close().await.expect("closes");
        drop(tree);

        let before = count.counts();
        let tree = rig.open().await;
        let mut next = 0;
        let mut files = 0;
        loop {
            let page = tree.run(|view| {
                let (first, last) = (Key::Entries { dir: 1, hash: next }, Key::Entries { dir: 1, hash: u64::MAX });
                let entries = view.scan(first, last, 128)?;
                let ino = |value: &Bytes| u64::from_le_bytes(value[..].try_into().expect("eight bytes"));
                let inodes: Vec<Key> = entries.iter().map(|(_, value)| Key::Inode(ino(value))).collect();
                view.expect(&inodes)?;
                Ok(entries)
            });
            let page = page.await.expect("lists");
            let Some((Key::Entries { hash, .. }, _)) = page.last() else { break };
            next = hash + 1;
            files += page.len() as u64;
        }
        assert_eq!(files, FILES - 2);
        let spent = count.counts().since(&before);
        assert!(spent.total() <= 200, "{spent:?}");
    });
}

/// Minutes of an idle volume, for people: `cargo test -p slackwater-object idle -- --ignored --nocapture`.
#[test]
#[ignore = "long: takes a minute"]
fn an_idle_volume_sends_less_than_a_request_per_second() {
    block_on(async {
        let (rig, count) = counted();
        let tree = rig.open().await;
        take_inos(&tree, 100).await;
        tree.commit().await.expect("commits");
        let before = count.counts();
        let minute = std::time::Duration::from_secs(60);
        tokio::time::sleep(minute).await;
        let spent = count.counts().since(&before);
        println!("{spent:?}");
        assert!(spent.total() < 60, "{spent:?}");
        drop(tree);
    });
}

#[test]
#[ignore = "long: a measurement, run it with --release"]
fn a_call_in_memory_takes_microseconds() {
    block_on(async {
        let (mut rig, _) = counted();
        let _folder = rig.log("speed");
        let tree = rig.open().await;
        const CALLS: u64 = 50_000;
        let begin = std::time::Instant::now();
        for n in 0..CALLS {
            let answered = std::sync::mpsc::channel();
            tree.submit(
                move |view| {
                    let entry = Key::Entries { dir: 2, hash: n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1 };
                    if view.get(entry)?.is_some() {
                        return Err(slackwater::ErrorKind::Exists.into());
                    }
                    let ino = view.new_ino();
                    view.put(entry, Bytes::copy_from_slice(&[7; 40]));
                    view.put(Key::Inode(ino), Bytes::copy_from_slice(&[8; 90]));
                    view.put(Key::Inode(2), Bytes::copy_from_slice(&[9; 90]));
                    view.count(1, 0);
                    Ok(ino)
                },
                move |answer| answered.0.send(answer).expect("waits"),
            );
            answered.1.recv().expect("answered").expect("made");
        }
        println!("{:?} per call", begin.elapsed() / CALLS as u32);
    });
}

/// A lookup reads one key for the name, and one for its inode. A request reads a block of hundreds of either, so the
/// lookups of a whole directory need no listing of it.
#[test]
fn names_in_a_cold_directory_are_looked_up_with_few_requests() {
    const FILES: u64 = 4_000;
    let name = |n: u64| format!("a-file-with-a-usual-name-{n}.rs");
    block_on(async {
        let (rig, count) = counted();
        let tree = rig.open().await;
        let made = tree.run(|view| {
            names::make_root(view, 0o755, (0, 0));
            Ok(())
        });
        made.await.expect("makes a root");
        for n in 0..FILES {
            let name = name(n);
            let made = tree.run(|view| names::make(view, ROOT, OsStr::new(&name), &NewNode::File, 0o644, None));
            made.await.expect("makes");
            if n % 500 == 499 {
                tree.commit().await.expect("commits");
                tree.base.as_ref().expect("a store").store_table().await.expect("stores a table");
            }
        }
        tree.close().await.expect("closes");
        drop(tree);

        let tree = rig.open().await;
        let before = count.counts();
        for n in 0..FILES {
            let name = name(n);
            tree.run(|view| names::lookup(view, ROOT, OsStr::new(&name))).await.expect("finds");
        }
        let spent = count.counts().since(&before);
        // A poll and a compaction may come between: some 40 requests.
        assert!(spent.total() <= 200, "{spent:?}");
    });
}
