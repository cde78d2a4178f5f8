//! Changes that a commit stores, and those that are lost without one.

use bytes::Bytes;
use object_store::memory::InMemory;
use slackwater_sync::shim::Arc;
use slatedb::WriteBatch;

use crate::format::{Encode, Key, ROOT, SegmentPlace, SegmentRecord, VolumeKey};
use crate::layers::{Fault, Layered, Operation, Rule};
use crate::tree::base::Base;
use crate::tree::tests::rig::{Rig, all, block_on, delete, get, put, take_inos};
use crate::tree::{Place, Tree, TreeOptions};

#[test]
fn what_is_committed_survives_and_what_is_not_does_not() {
    block_on(async {
        let rig = Rig::new();
        let tree = rig.open().await;
        take_inos(&tree, 10).await;
        put(&tree, Key::Inode(5), b"five").await.expect("puts");
        put(&tree, Key::Inode(6), b"six").await.expect("puts");
        tree.commit().await.expect("commits");
        delete(&tree, Key::Inode(5)).await.expect("deletes");
        put(&tree, Key::Inode(7), b"seven").await.expect("puts");
        assert_eq!(get(&tree, Key::Inode(5)).await, None);
        drop(tree);

        let tree = rig.open().await;
        assert_eq!(get(&tree, Key::Inode(5)).await.as_deref(), Some(&b"five"[..]));
        assert_eq!(get(&tree, Key::Inode(7)).await, None);
        let found = tree.run(|view| all(view, 10)).await.expect("scans");
        let keys: Vec<Key> = found.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [Key::Inode(5), Key::Inode(6)]);
    });
}

#[test]
fn with_a_local_log_nothing_that_was_answered_is_lost() {
    block_on(async {
        let mut rig = Rig::new();
        let folder = rig.log("replay");
        let tree = rig.open().await;
        take_inos(&tree, 10).await;
        put(&tree, Key::Inode(5), b"five").await.expect("puts");
        tree.commit().await.expect("commits");
        put(&tree, Key::Inode(6), b"six").await.expect("puts");
        let small =
            tree.run(|view| Ok(view.append_small(6, 0, 0, Bytes::from_static(b"bytes")))).await.expect("appends");
        drop(tree);

        let tree = rig.open().await;
        assert_eq!(get(&tree, Key::Inode(6)).await.as_deref(), Some(&b"six"[..]));
        // It was committed while the tree was opened, with its small bytes.
        assert!(get(&tree, Key::Blob(small.0)).await.expect("stored").starts_with(b"bytes"));
        assert_eq!(tree.status().uncommitted_calls, 0);
        put(&tree, Key::Inode(7), b"seven").await.expect("puts");
        drop(tree);
        let tree = rig.open().await;
        assert_eq!(get(&tree, Key::Inode(7)).await.as_deref(), Some(&b"seven"[..]));
        tree.close().await.expect("closes");
        assert_eq!(std::fs::read_dir(folder.path()).expect("reads").count(), 0);
    });
}

#[test]
fn a_volume_without_counters_is_opened_for_repairs_alone() {
    block_on(async {
        let rig = Rig::new();
        let tree = rig.open().await;
        take_inos(&tree, 10).await;
        put(&tree, Key::Inode(ROOT), b"root").await.expect("puts");
        put(&tree, Key::Inode(5), b"five").await.expect("puts");
        tree.close().await.expect("closes");
        drop(tree);
        let base = Base::open(rig.place.clone()).await.expect("opens");
        let mut batch = WriteBatch::new();
        batch.delete(Key::Volume(VolumeKey::Counters).encode());
        base.write(&batch).await.expect("writes");
        base.close().await;

        let refused = Tree::open(rig.place.clone(), rig.options.clone()).await;
        let error = refused.map(drop).expect_err("new inodes would replace others");
        assert!(error.to_string().contains("fsck --repair"), "{error}");
        let options = TreeOptions { may_be_damaged: true, ..rig.options.clone() };
        let (tree, _) = Tree::open(rig.place.clone(), options).await.expect("opens");
        assert_eq!(get(&tree, Key::Inode(5)).await.as_deref(), Some(&b"five"[..]));
        put(&tree, Key::Inode(ROOT), b"root").await.expect("puts");
        tree.commit().await.expect("commits");
        tree.forget();
        assert_eq!(get(&tree, Key::Inode(5)).await.as_deref(), Some(&b"five"[..]), "nor after a commit");
    });
}

#[test]
fn syncs_that_come_together_share_commits() {
    block_on(async {
        let fault = Arc::new(Fault::new());
        let store = Arc::new(Layered::new(fault.clone(), Arc::new(InMemory::new())));
        let rig = Rig { place: Place::alone(store), options: TreeOptions::by_hand() };
        let tree = rig.open().await;
        take_inos(&tree, 100).await;
        tree.commit().await.expect("commits");
        let before = tree.status().commits;
        fault.add(Rule::hang().on(Operation::Create).under("meta/wal").next(1));
        let syncs = (0..64).map(|ino| {
            let tree = &tree;
            async move {
                put(tree, Key::Inode(ino), b"value").await.expect("puts");
                tree.commit().await
            }
        });
        // It is polled after all syncs have begun.
        let release = async {
            fault.held(1).await;
            fault.release();
        };
        let (outcome, ()) = futures::join!(futures::future::try_join_all(syncs), release);
        outcome.expect("commits");
        let commits = tree.status().commits - before;
        assert!(commits <= 4, "{commits} commits");
    });
}

#[test]
fn live_bytes_are_added_to_the_records_of_segments() {
    block_on(async {
        let rig = Rig::new();
        let tree = rig.open().await;
        let segment = tree.new_segment_id();
        let record = |live_bytes| SegmentRecord { live_bytes, ..SegmentRecord::new(SegmentPlace::Object, 100) };
        let made = tree.run(|view| {
            view.put(Key::Segment(segment), record(0).encode());
            view.count_live(segment, 70);
            Ok(())
        });
        made.await.expect("makes");
        tree.commit().await.expect("commits");
        drop(tree);
        for left in [40, 10] {
            // Once from the store, once from the cache.
            let tree = rig.open().await;
            for bytes in [-20, -10] {
                let counted = tree.run(|view| {
                    view.count_live(segment, bytes);
                    Ok(())
                });
                counted.await.expect("counts");
                tree.commit().await.expect("commits");
            }
            assert_eq!(get(&tree, Key::Segment(segment)).await, Some(record(left).encode()));
            drop(tree);
            let tree = rig.open().await;
            assert_eq!(get(&tree, Key::Segment(segment)).await, Some(record(left).encode()));
        }
    });
}

#[test]
fn small_bytes_are_read_before_and_after_their_commit() {
    block_on(async {
        let rig = Rig::new();
        let tree = rig.open().await;
        let append = |bytes: Vec<u8>| {
            let tree = &tree;
            async move {
                let (segment, offset) = tree
                    .run(|view| {
                        let at = view.append_small(5, 0, 0, Bytes::from(bytes.clone()));
                        view.count_live(at.0, bytes.len() as i64);
                        Ok(at)
                    })
                    .await
                    .expect("appends");
                (segment, offset)
            }
        };
        // One pack that fits into the commit, and one that becomes an object.
        for (count, place) in [(2, SegmentPlace::Blob), (3, SegmentPlace::Object)] {
            let mut at = Vec::new();
            for n in 0..count {
                at.push(append(vec![n; 30_000]).await);
            }
            let segment = at[0].0;
            for (n, (segment, offset)) in at.iter().enumerate() {
                let read = tree.run(|view| Ok(view.small(*segment, *offset + 7, 100))).await.expect("reads");
                assert_eq!(read.as_deref(), Some(&[n as u8; 100][..]));
            }
            tree.commit().await.expect("commits");
            let bytes = u64::from(count) * 30_000;
            let record = SegmentRecord { live_bytes: bytes, ..SegmentRecord::new(place, bytes) };
            assert_eq!(get(&tree, Key::Segment(segment)).await, Some(record.encode()));
            let blob = get(&tree, Key::Blob(segment)).await;
            assert_eq!(blob.is_some(), place == SegmentPlace::Blob);
        }
    });
}
