//! Commits whose requests fail, hang or lose their answers, and writers that come in between.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slatedb::WriteBatch;

use crate::format::Key;
use crate::layers::{Failure, Fault, Layered, Operation, Rule};
use crate::tree::tests::rig::{Rig, block_on, get, put, take_inos};
use crate::tree::{Place, Tree, TreeOptions};

const FIRST: Key = Key::Inode(5);
const SECOND: Key = Key::Inode(6);

struct Faulty {
    bare: Arc<dyn ObjectStore>,
    fault: Arc<Fault>,
    rig: Rig,
    tree: Arc<Tree>,
}

/// An open tree whose store can fail.
async fn faulty(options: TreeOptions) -> Faulty {
    let (bare, fault) = (Arc::new(InMemory::new()), Arc::new(Fault::new()));
    let store = Arc::new(Layered::new(fault.clone(), bare.clone()));
    let is_short = options.sync_limit < Duration::from_secs(1);
    let rig = Rig { place: Place::alone(store), options };
    let tree = rig.open().await;
    take_inos(&tree, 10).await;
    // With a short limit, a slow machine may need several.
    while let Err(error) = tree.commit().await {
        assert!(is_short && error.kind() == ErrorKind::TimedOut, "{error}");
    }
    Faulty { bare, fault, rig, tree }
}

fn log_put() -> Rule {
    Rule::fail(Failure::Server).on(Operation::Create).under("meta/wal")
}

async fn is_stored(faulty: &Faulty, key: Key, value: &[u8]) -> bool {
    let rig = Rig { place: Place::alone(faulty.bare.clone()), options: TreeOptions::by_hand() };
    get(&*rig.open().await, key).await.as_deref() == Some(value)
}

#[test]
fn a_failed_commit_keeps_its_changes_and_the_next_one_stores_them() {
    block_on(async {
        let faulty = faulty(TreeOptions::by_hand()).await;
        let tree = &faulty.tree;
        put(tree, FIRST, b"first").await.expect("puts");
        faulty.fault.add(log_put());
        let error = tree.commit().await.expect_err("the store fails");
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(get(tree, FIRST).await.as_deref(), Some(&b"first"[..]));
        // A later call is part of the next transaction, and a sync stores both.
        put(tree, SECOND, b"second").await.expect("puts");
        faulty.fault.clear();
        tree.commit().await.expect("commits");
        assert_eq!(tree.status().uncommitted_calls, 0);
        put(tree, FIRST, b"again").await.expect("puts");
        tree.commit().await.expect("commits");
        assert!(is_stored(&faulty, FIRST, b"again").await);
        assert!(is_stored(&faulty, SECOND, b"second").await);
    });
}

#[test]
fn after_the_end_a_sync_does_not_pretend_that_changes_are_stored() {
    block_on(async {
        let faulty = faulty(TreeOptions::by_hand()).await;
        put(&faulty.tree, FIRST, b"first").await.expect("puts");
        faulty.fault.add(log_put());
        faulty.tree.close().await.expect_err("the store fails");
        faulty.fault.clear();
        assert_eq!(faulty.tree.commit().await.expect_err("it is closed").kind(), ErrorKind::NotMounted);
        assert!(!is_stored(&faulty, FIRST, b"first").await);
    });
}

#[test]
fn a_call_that_waits_for_space_fails_when_the_volume_is_lost() {
    static FILLING: [u8; 1 << 20] = [7; 1 << 20];
    block_on(async {
        let tree = Tree::in_memory(); // nothing commits
        let filled = tree.run(|view| {
            (100..140).for_each(|ino| view.put(Key::Inode(ino), Bytes::from_static(&FILLING)));
            Ok(())
        });
        filled.await.expect("there is space");
        let mut waiting = pin!(put(&tree, FIRST, b"first"));
        assert!(waiting.as_mut().now_or_never().is_none(), "it is full");
        tree.give_up();
        let answer = waiting.as_mut().now_or_never().expect("it waits no longer");
        assert_eq!(answer.expect_err("it is lost").kind(), ErrorKind::Stale);
    });
}

/// Such calls change one key again and again, so the transaction itself does not grow.
#[test]
fn calls_wait_before_the_log_grows_without_limit() {
    static CHANGE: [u8; 1 << 20] = [7; 1 << 20];
    block_on(async {
        let (bare, fault) = (Arc::new(InMemory::new()), Arc::new(Fault::new()));
        let store = Arc::new(Layered::new(fault.clone(), bare));
        let mut rig = Rig { place: Place::alone(store), options: TreeOptions::by_hand() };
        let _folder = rig.log("limit");
        let tree = rig.open().await;
        take_inos(&tree, 10).await;
        tree.commit().await.expect("commits");
        fault.add(Rule::hang().on(Operation::Create).under("meta/wal"));
        let mut changes = 0;
        loop {
            let mut change = pin!(put(&tree, FIRST, &CHANGE));
            if let Some(changed) = change.as_mut().now_or_never() {
                changed.expect("puts");
                changes += 1;
                assert!(changes < 200);
                continue;
            }
            fault.clear();
            fault.release();
            break change.await.expect("there is space again");
        }
    });
}

#[test]
fn a_lost_reply_is_no_other_writer() {
    block_on(async {
        let faulty = faulty(TreeOptions::by_hand()).await;
        put(&faulty.tree, FIRST, b"first").await.expect("puts");
        faulty.fault.add(Rule::lose_reply().on(Operation::Create).under("meta/wal").nth(1));
        if faulty.tree.commit().await.is_err() {
            faulty.tree.commit().await.expect("commits");
        }
        put(&faulty.tree, SECOND, b"second").await.expect("puts");
        faulty.tree.commit().await.expect("commits");
        assert!(is_stored(&faulty, FIRST, b"first").await);
    });
}

#[test]
fn a_sync_ends_at_its_limit_and_the_commit_goes_on() {
    block_on(async {
        let options = TreeOptions { sync_limit: Duration::from_millis(100), ..TreeOptions::by_hand() };
        let mut faulty = faulty(options).await;
        put(&faulty.tree, FIRST, b"first").await.expect("puts");
        faulty.fault.add(Rule::hang().on(Operation::Create).under("meta/wal"));
        assert_eq!(faulty.tree.commit().await.expect_err("hangs").kind(), ErrorKind::TimedOut);
        // Calls do not wait.
        put(&faulty.tree, SECOND, b"second").await.expect("puts");
        faulty.fault.clear();
        faulty.fault.release();
        while faulty.tree.commit().await.is_err() {}
        assert!(is_stored(&faulty, FIRST, b"first").await);
        faulty.rig.options = TreeOptions::by_hand();
    });
}

#[test]
fn a_transaction_is_committed_at_its_age() {
    block_on(async {
        let options = TreeOptions { commit_age: Duration::from_millis(50), ..TreeOptions::by_hand() };
        let faulty = faulty(options).await;
        put(&faulty.tree, FIRST, b"first").await.expect("puts");
        let committed = async {
            while faulty.tree.status().uncommitted_calls > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), committed).await.expect("commits by itself");
        assert!(is_stored(&faulty, FIRST, b"first").await);
    });
}

/// A writer, and whether it has the claim.
async fn writer_with_claim() -> (Rig, Arc<AtomicBool>, Arc<Tree>) {
    let mut rig = Rig::new();
    let has_claim = Arc::new(AtomicBool::new(true));
    let seen = has_claim.clone();
    rig.place.guard = Arc::new(move || {
        let has_claim = seen.load(Ordering::Relaxed);
        let answer = if has_claim { Ok(()) } else { Err(BackendError::from(ErrorKind::Stale)) };
        Box::pin(async { answer })
    });
    let tree = rig.open().await;
    take_inos(&tree, 10).await;
    (rig, has_claim, tree)
}

/// The volume of `rig`, opened by a process whose claim is never asked.
async fn open_elsewhere(rig: &Rig) -> Arc<Tree> {
    Rig { place: Place::alone(rig.place.store.clone()), options: TreeOptions::by_hand() }.open().await
}

#[test]
fn a_writer_that_lost_its_claim_changes_and_commits_nothing_more() {
    block_on(async {
        let (rig, has_claim, loser) = writer_with_claim().await;
        put(&loser, FIRST, b"durable").await.expect("puts");
        loser.commit().await.expect("commits");
        put(&loser, FIRST, b"not yet").await.expect("puts");

        has_claim.store(false, Ordering::Relaxed);
        let winner = open_elsewhere(&rig).await;
        assert_eq!(get(&winner, FIRST).await.as_deref(), Some(&b"durable"[..]));
        assert_eq!(loser.commit().await.expect_err("fenced").kind(), ErrorKind::Stale);
        assert!(loser.status().is_fenced);
        assert_eq!(put(&loser, SECOND, b"x").await.expect_err("fenced").kind(), ErrorKind::Stale);
        assert_eq!(loser.commit().await.expect_err("fenced").kind(), ErrorKind::Stale);
        put(&winner, SECOND, b"second").await.expect("puts");
        winner.commit().await.expect("commits");
    });
}

#[test]
fn a_read_that_finds_the_volume_lost_says_so() {
    block_on(async {
        let (rig, has_claim, loser) = writer_with_claim().await;
        loser.commit().await.expect("commits");
        has_claim.store(false, Ordering::Relaxed);
        drop(open_elsewhere(&rig).await);
        // SlateDB notices the fence when it writes next.
        let mut batch = WriteBatch::new();
        batch.put(FIRST.encode(), b"never");
        let written = loser.base.as_ref().expect("a store").write(&batch).await;
        assert_eq!(written.expect_err("fenced").kind(), ErrorKind::Stale);
        assert!(!loser.status().is_fenced, "the tree has not asked");
        assert_eq!(loser.run(|view| view.get(FIRST)).await.expect_err("fenced").kind(), ErrorKind::Stale);
        assert!(loser.status().is_fenced);
    });
}

#[test]
fn a_writer_that_still_has_its_claim_goes_on_after_a_fence() {
    block_on(async {
        let rig = Rig::new();
        let tree = rig.open().await;
        take_inos(&tree, 10).await;
        tree.commit().await.expect("commits");
        put(&tree, FIRST, b"first").await.expect("puts");
        // Another process opened the tree, and wrote nothing, because it had no claim.
        drop(rig.open().await);
        if tree.commit().await.is_err() {
            tree.commit().await.expect("commits");
        }
        drop(tree);
        assert_eq!(get(&*rig.open().await, FIRST).await.as_deref(), Some(&b"first"[..]));
    });
}
