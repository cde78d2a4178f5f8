//! Claims on stores in memory and in a directory, with races.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use async_trait::async_trait;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use slackwater_s3_server::{Answer, Script};
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use super::*;
use crate::store::tests::{ANSWERED, s3};
use crate::store::{Fault, Layer, Layered, Operation, Request, Rule};

/// A directory that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-claims-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn memory() -> Claims {
    Claims::new(Arc::new(InMemory::new()))
}

fn holder_of(error: ClaimError) -> Holder {
    match error {
        ClaimError::InUse(holder) => holder,
        ClaimError::Store(error) => panic!("the store failed: {error}"),
    }
}

async fn refused(claims: &Claims, take_over: bool) -> Holder {
    holder_of(claims.acquire(take_over, 9_000).await.expect_err("the volume is in use"))
}

/// The life of a claim, on any store.
async fn one_after_the_other(claims: &Claims) {
    assert_eq!(claims.holder(0).await.expect("the store works"), None);
    let first = claims.acquire(false, 1_000).await.expect("nobody has it");
    first.confirm(1_000).await.expect("it is the newest");
    first.beat(5_000, Some(4_000)).await.expect("it is the newest");

    let holder = refused(claims, false).await;
    assert_eq!(holder.pid, std::process::id());
    assert_eq!((holder.since_unix_ms, holder.alive_age_ms, holder.last_commit_age_ms), (1_000, 4_000, Some(5_000)));
    assert_eq!(claims.holder(9_000).await.expect("the store works"), Some(holder));

    first.release(10_000).await.expect("the store works");
    assert_eq!(claims.holder(0).await.expect("the store works"), None);
    let second = claims.acquire(false, 11_000).await.expect("it was released");
    assert_eq!(second.number, first.number + 1);
    second.confirm(11_000).await.expect("it is the newest");
    assert_eq!(claims.numbers().await.expect("the store works"), [second.number], "old claims are removed");
}

#[tokio::test]
async fn a_volume_in_memory_has_one_holder_after_the_other() {
    one_after_the_other(&memory()).await;
}

#[tokio::test]
async fn a_volume_in_a_directory_has_one_holder_after_the_other() {
    let folder = Folder::new("holders");
    let store = LocalFileSystem::new_with_prefix(&folder.0).expect("the directory is there");
    one_after_the_other(&Claims::new(Arc::new(store))).await;
}

#[tokio::test]
async fn who_was_taken_over_hears_of_it_and_keeps_nothing() {
    let claims = memory();
    let old = claims.acquire(false, 1_000).await.expect("nobody has it");
    let new = claims.acquire(true, 2_000).await.expect("it is taken over");
    new.confirm(2_000).await.expect("it is the newest");
    for answer in [old.confirm(3_000).await, old.beat(3_000, None).await] {
        assert_eq!(holder_of(answer.expect_err("another has it")).since_unix_ms, 2_000);
    }
    old.release(3_000).await.expect("there is nothing to release");
    assert_eq!(refused(&claims, false).await.since_unix_ms, 2_000, "the new holder still has it");
}

#[tokio::test]
async fn a_volume_that_was_dropped_is_had_without_asking() {
    let claims = memory();
    drop(claims.acquire(false, 1_000).await.expect("nobody has it"));
    claims.acquire(false, 2_000).await.expect("the volume that had it is gone");
}

#[tokio::test]
async fn a_process_that_ended_is_followed_without_asking() {
    let claims = memory();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("there is cat");
    let start_ticks = start_ticks(child.id()).expect("it runs");
    let process = Process { pid: child.id(), start_ticks, ..Process::current() };
    let record = Record::new(&Token::new(), process, 1_000);
    assert!(create(&*claims.store, &claims.path(1), record.encode()).await.expect("the store works"));
    assert_eq!(refused(&claims, false).await.pid, child.id());

    drop(child.stdin.take());
    child.wait().expect("it ends with its input");
    claims.acquire(false, 2_000).await.expect("its holder has ended");
}

#[tokio::test]
async fn another_machine_is_asked_for_whatever_its_clock_says() {
    let claims = memory();
    let process = Process { machine_id: "another".into(), boot_id: "another".into(), ..Process::current() };
    let record = Record { alive_unix_ms: 1, ..Record::new(&Token::new(), process, 1) };
    assert!(create(&*claims.store, &claims.path(1), record.encode()).await.expect("the store works"));
    for now in [0, 1, u64::MAX] {
        claims.acquire(false, now).await.expect_err("it may be at work");
    }
    claims.acquire(true, 0).await.expect("it is taken over");
}

#[tokio::test]
async fn an_unreadable_claim_is_respected_and_can_be_taken_over() {
    let claims = memory();
    claims.store.put(&claims.path(41), "{".into()).await.expect("the store works");
    assert_eq!(refused(&claims, false).await.host, None);
    assert_eq!(claims.acquire(true, 0).await.expect("it is taken over").number, 42);
}

#[tokio::test]
async fn objects_that_are_no_claims_are_left_alone() {
    let claims = memory();
    let other = claims.folder.clone().join("README.json");
    claims.store.put(&other, "mine".into()).await.expect("the store works");
    claims.acquire(false, 0).await.expect("nobody has it").confirm(0).await.expect("it is the newest");
    claims.store.get(&other).await.expect("it is still there");
}

#[tokio::test]
async fn a_claimant_whose_reply_was_lost_knows_its_claim() {
    let fault = Arc::new(Fault::new());
    let claims = Claims::new(Arc::new(Layered::new(fault.clone(), Arc::new(InMemory::new()))));
    let record = Record::new(&Token::new(), Process::current(), 0);
    fault.add(Rule::lose_reply().on(Operation::Create).next(1));
    create(&*claims.store, &claims.path(1), record.encode()).await.expect_err("the reply was lost");
    assert!(
        create(&*claims.store, &claims.path(1), record.encode()).await.expect("the store works"),
        "the repetition finds its own claim"
    );
    let other = Record::new(&Token::new(), Process::current(), 0);
    assert!(
        !create(&*claims.store, &claims.path(1), other.encode()).await.expect("the store works"),
        "another claimant does not"
    );
}

/// Runs 16 claimants at once, on threads of their own, and counts those that get the volume.
async fn winners(claims: &Claims, take_over: bool) -> usize {
    let claimants = (0..16).map(|_| {
        let claims = claims.clone();
        tokio::spawn(async move { claims.acquire(take_over, 0).await })
    });
    let mut won = Vec::new();
    for claimant in claimants.collect::<Vec<_>>() {
        match claimant.await.expect("no claimant panics") {
            Ok(claim) => won.push(claim),
            Err(ClaimError::InUse(_)) => {}
            Err(ClaimError::Store(error)) => panic!("the store failed: {error}"),
        }
    }
    for claim in &won {
        claim.confirm(0).await.expect("a winner is the newest");
    }
    won.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_claimants_of_a_free_volume_one_wins() {
    for round in 0..20 {
        assert_eq!(winners(&memory(), false).await, 1);
        let folder = Folder::new(&format!("race-{round}"));
        let store = LocalFileSystem::new_with_prefix(&folder.0).expect("the directory is there");
        assert_eq!(winners(&Claims::new(Arc::new(store)), false).await, 1);
    }
}

/// Holds requests back at random, so that processes interleave between any two of them.
#[derive(Debug)]
struct Shuffle(AtomicU64);

impl Shuffle {
    fn random(&self, below: u64) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    async fn pause(&self) {
        for _ in 0..self.random(8) {
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl Layer for Shuffle {
    type Note = ();

    async fn before(&self, _request: &Request) -> object_store::Result<()> {
        self.pause().await;
        Ok(())
    }

    async fn after(&self, _: &Request, (): (), _: Option<&StoreError>) -> object_store::Result<()> {
        self.pause().await;
        Ok(())
    }
}

/// A model of SlateDB: the newest epoch may commit.
#[derive(Default)]
struct Epochs {
    newest: AtomicU64,
    /// The claim of each commit.
    commits: Mutex<Vec<u64>>,
}

impl Epochs {
    fn open(&self) -> u64 {
        self.newest.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn commit(&self, epoch: u64, claim: u64) -> bool {
        let is_newest = self.newest.load(Ordering::Relaxed) == epoch;
        if is_newest {
            self.commits.lock().push(claim);
        }
        is_newest
    }
}

/// A process that wants the volume, by the protocol of the module. Returns whether it still has it.
async fn writer(
    claims: Claims,
    epochs: Arc<Epochs>,
    shuffle: Arc<Shuffle>,
    take_over: bool,
) -> Result<bool, StoreError> {
    let claim = match claims.acquire(take_over, 0).await {
        Ok(claim) => claim,
        Err(ClaimError::InUse(_)) => return Ok(false),
        Err(ClaimError::Store(error)) => return Err(error),
    };
    // Opens, as at first and after each fence (W1, W2).
    'open: loop {
        shuffle.pause().await;
        let epoch = epochs.open();
        match claim.confirm(0).await {
            Ok(()) => {}
            Err(ClaimError::InUse(_)) => return Ok(false),
            Err(ClaimError::Store(error)) => return Err(error),
        }
        for _ in 0..4 {
            shuffle.pause().await;
            if !epochs.commit(epoch, claim.number) {
                // Its claim is looked at before it opens again: else it would fence another for nothing.
                match claim.confirm(0).await {
                    Ok(()) => continue 'open,
                    Err(ClaimError::InUse(_)) => return Ok(false),
                    Err(ClaimError::Store(error)) => return Err(error),
                }
            }
        }
        // A process that lives on: its claim is not given up by the drop.
        std::mem::forget(claim);
        return Ok(true);
    }
}

#[tokio::test]
async fn of_writers_that_take_over_each_other_the_newest_claim_alone_commits() {
    for seed in 0..400 {
        let shuffle = Arc::new(Shuffle(AtomicU64::new(seed)));
        let claims = Claims::new(Arc::new(Layered::new(shuffle.clone(), Arc::new(InMemory::new()))));
        let epochs = Arc::new(Epochs::default());
        let writers = (0..4).map(|n| tokio::spawn(writer(claims.clone(), epochs.clone(), shuffle.clone(), n != 0)));
        let mut holders = 0;
        for writer in writers.collect::<Vec<_>>() {
            holders += u32::from(writer.await.expect("no writer panics").expect("the store works"));
        }
        let commits = epochs.commits.lock();
        assert!(commits.is_sorted(), "seed {seed}: an older claim committed after a newer one: {commits:?}");
        assert!(holders >= 1, "seed {seed}: the newest claimant has the volume in the end: {commits:?}");
    }
}

/// A volume whose claims cannot be listed is not a free one.
#[tokio::test]
async fn a_listing_that_is_none_does_not_free_a_volume() {
    let (server, store) = s3(ANSWERED);
    let claims = Claims::new(store.hasty.clone());
    let held = claims.acquire(false, 0).await.expect("it is free");
    server.script(Script::new(Answer::Status(200, "<html>login first</html>".into())).under("list-type"));
    for take_over in [false, true] {
        let error = claims.acquire(take_over, 0).await.expect_err("the claims are not known");
        assert!(matches!(error, ClaimError::Store(_)), "{error}");
    }
    assert!(matches!(held.confirm(0).await, Err(ClaimError::Store(_))));
}
