//! Random histories beside a map: calls, commits, lost caches, and processes that die with and without their log.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::format::Key;
use crate::tree::tests::rig::{Rig, block_on, take_inos};

const INOS: u64 = 40;

#[derive(Clone, Debug)]
enum Step {
    Put(u64, u64, u8),
    Delete(u64, u64),
    Get(u64, u64),
    /// Scans one directory, from this hash on.
    Scan(u64, u64, usize),
    /// Removes what a scan finds, in the same call.
    Clear(u64),
    Commit,
    Forget,
    /// The process dies; `true`: its log survives.
    Die(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || (2..6_u64, 0..INOS);
    prop_oneof![
        8 => (key(), any::<u8>()).prop_map(|((dir, hash), value)| Step::Put(dir, hash, value)),
        4 => key().prop_map(|(dir, hash)| Step::Delete(dir, hash)),
        4 => key().prop_map(|(dir, hash)| Step::Get(dir, hash)),
        4 => (key(), 1..10_usize).prop_map(|((dir, hash), limit)| Step::Scan(dir, hash, limit)),
        1 => (2..6_u64).prop_map(Step::Clear),
        3 => Just(Step::Commit),
        3 => Just(Step::Forget),
        2 => any::<bool>().prop_map(Step::Die),
    ]
}

type Model = BTreeMap<Key, Bytes>;

fn range(dir: u64, hash: u64) -> (Key, Key) {
    (Key::Entries { dir, hash }, Key::Entries { dir, hash: u64::MAX })
}

fn expected(model: &Model, (first, last): (Key, Key), limit: usize) -> Vec<(Key, Bytes)> {
    model.range(first..=last).take(limit).map(|(key, value)| (*key, value.clone())).collect()
}

async fn check(steps: Vec<Step>) {
    let mut rig = Rig::new();
    let _folder = rig.log("model");
    let mut tree = rig.open().await;
    take_inos(&tree, 100).await;
    tree.commit().await.expect("commits");
    let mut model = Model::new();
    let mut committed = Model::new();
    for step in steps {
        match step {
            Step::Put(dir, hash, value) => {
                let (key, value) = (Key::Entries { dir, hash }, Bytes::from(vec![value; 100]));
                // A call reads before it writes, as most do.
                let before = tree.run(|view| {
                    let before = view.get(key)?;
                    view.put(key, value.clone());
                    Ok(before)
                });
                assert_eq!(before.await.expect("puts"), model.insert(key, value));
            }
            Step::Delete(dir, hash) => {
                let key = Key::Entries { dir, hash };
                let deleted = tree.run(|view| {
                    view.delete(key);
                    Ok(())
                });
                deleted.await.expect("deletes");
                model.remove(&key);
            }
            Step::Get(dir, hash) => {
                let key = Key::Entries { dir, hash };
                assert_eq!(tree.run(|view| view.get(key)).await.expect("gets"), model.get(&key).cloned());
            }
            Step::Scan(dir, hash, limit) => {
                let (first, last) = range(dir, hash);
                let found = tree.run(|view| view.scan(first, last, limit)).await.expect("scans");
                assert_eq!(found, expected(&model, (first, last), limit));
            }
            Step::Clear(dir) => {
                let (first, last) = range(dir, 0);
                let left = tree.run(|view| {
                    for (key, _) in view.scan(first, last, usize::MAX)? {
                        view.delete(key);
                    }
                    view.scan(first, last, 1)
                });
                assert!(left.await.expect("clears").is_empty());
                model.retain(|key, _| *key < first || *key > last);
            }
            Step::Commit => {
                tree.commit().await.expect("commits");
                committed = model.clone();
            }
            Step::Forget => tree.forget(),
            Step::Die(has_log) => {
                drop(tree);
                if !has_log {
                    rig.lose_log();
                    model = committed.clone();
                }
                tree = rig.open().await;
                // The changes in the log are committed when it is replayed.
                committed = model.clone();
            }
        }
    }
    let all = tree.run(|view| view.scan(range(2, 0).0, range(6, 0).1, usize::MAX)).await.expect("scans");
    assert_eq!(all, expected(&model, (range(2, 0).0, range(6, 0).1), usize::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_is_a_map_whatever_is_in_memory_and_a_crash_leaves_the_last_commit(steps in vec(step(), 1..80)) {
        block_on(check(steps));
    }
}
