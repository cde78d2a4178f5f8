//! Requests that are repeated, and requests that are not.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload};

use super::{QUICK, Rig, rig};
use crate::store::classify::classify;
use crate::store::{Failure, Operation, Patience, Rule};

fn path() -> Path {
    Path::from("a/object")
}

async fn put(rig: &Rig, content: &'static str) -> Result<(), Error> {
    rig.store.put(&path(), PutPayload::from_static(content.as_bytes())).await.map(drop)
}

async fn get(rig: &Rig) -> Result<bytes::Bytes, Error> {
    rig.store.get(&path()).await?.bytes().await
}

#[tokio::test(start_paused = true)]
async fn failures_that_may_pass_are_repeated() {
    for failure in [Failure::Throttled, Failure::Server, Failure::Timeout, Failure::Unreachable] {
        let rig = rig(Patience::LONG);
        rig.fault.add(Rule::fail(failure).next(3));
        put(&rig, "content").await.expect("the fourth attempt succeeds");
        assert_eq!(rig.count.counts().of(Operation::Put), 4, "{failure}");
        assert_eq!(get(&rig).await.expect("it is there"), "content");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_that_stay_are_not_repeated() {
    let attempts = [
        (Failure::Permission, 2),
        (Failure::Credentials, 2),
        (Failure::ClockSkew, 1),
        (Failure::NoBucket, 1),
        (Failure::NoSpace, 1),
        (Failure::Configuration, 1),
        (Failure::Crashed, 1),
    ];
    for (failure, expected) in attempts {
        let rig = rig(Patience::LONG);
        rig.fault.add(Rule::fail(failure));
        let error = put(&rig, "content").await.expect_err("it always fails");
        assert_eq!(classify(&error), failure);
        assert_eq!(rig.count.counts().total(), expected, "{failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_object_is_an_answer() {
    let rig = rig(Patience::LONG);
    let error = get(&rig).await.expect_err("there is none");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert_eq!(rig.count.counts().total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_gives_up_after_its_time() {
    let rig = rig(Patience::LONG);
    rig.fault.add(Rule::fail(Failure::Unreachable));
    let start = tokio::time::Instant::now();
    let error = put(&rig, "content").await.expect_err("it always fails");
    assert_eq!(classify(&error), Failure::Unreachable, "the last failure is the answer");
    let elapsed = start.elapsed();
    assert!(elapsed <= Patience::LONG.request, "{elapsed:?}");
    assert!(elapsed > Patience::LONG.request / 2, "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hung_request_is_abandoned_and_repeated() {
    let rig = rig(Patience::LONG);
    rig.fault.add(Rule::hang().next(1));
    put(&rig, "content").await.expect("the second attempt succeeds");
    assert_eq!(rig.count.counts().of(Operation::Put), 2);
}

#[tokio::test]
async fn a_stuck_object_delays_its_own_requests_alone() {
    let rig = rig(Patience::LONG);
    rig.fault.add(Rule::hang().under("stuck"));
    let (store, stuck) = (rig.store.clone(), Path::from("stuck"));
    let waiting = tokio::spawn(async move { store.put(&stuck, "content".into()).await.map(drop) });
    rig.fault.held(1).await;
    for number in 0..200 {
        rig.store.put(&Path::from(format!("free/{number}")), "content".into()).await.expect("not delayed");
    }
    rig.fault.clear();
    rig.fault.release();
    waiting.await.expect("no panic").expect("released");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_ends_early_is_fetched_again() {
    let rig = rig(Patience::LONG);
    put(&rig, "content").await.expect("stored");
    rig.fault.add(Rule::truncate(3).next(1));
    assert_eq!(get(&rig).await.expect("the second answer is whole"), "content");
    let range = rig.store.get_range(&path(), 2..5).await.expect("a range of it");
    assert_eq!(range, "nte");
}

#[tokio::test(start_paused = true)]
async fn a_put_whose_reply_was_lost_is_repeated_without_harm() {
    let rig = rig(Patience::LONG);
    rig.fault.add(Rule::lose_reply().on(Operation::Put).next(1));
    put(&rig, "content").await.expect("the second attempt succeeds");
    assert_eq!(get(&rig).await.expect("it is there"), "content");
}

#[tokio::test(start_paused = true)]
async fn a_creation_whose_reply_was_lost_leaves_the_verdict_to_the_caller() {
    let rig = rig(Patience::LONG);
    rig.fault.add(Rule::lose_reply().on(Operation::Create).next(1));
    let created = rig.store.put_opts(&path(), "content".into(), PutMode::Create.into()).await;
    assert!(matches!(created, Err(Error::AlreadyExists { .. })), "{created:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_without_attributes_never_repeats_a_creation() {
    let Rig { fault, count, store, .. } = rig(Patience::LONG);
    let store = crate::store::retry::Retry::new(store.inner.clone(), Patience::LONG, false);
    fault.add(Rule::lose_reply().next(1));
    let error = store.put_opts(&path(), "content".into(), PutMode::Create.into()).await.expect_err("passed on");
    assert_eq!(classify(&error), Failure::Timeout, "not as another writer's object");
    assert_eq!(count.counts().total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_removal_whose_reply_was_lost_is_a_removal() {
    let rig = rig(Patience::LONG);
    put(&rig, "content").await.expect("stored");
    rig.fault.add(Rule::lose_reply().on(Operation::Delete).next(1));
    rig.store.delete(&path()).await.expect("the second attempt finds nothing to remove");
    let error = get(&rig).await.expect_err("removed");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn many_objects_are_removed_though_some_requests_fail() {
    let rig = rig(Patience::LONG);
    let paths: Vec<_> = (0..2500).map(|number| Path::from(format!("many/{number:04}"))).collect();
    for path in &paths {
        rig.memory.put(path, "content".into()).await.expect("stored");
    }
    rig.fault.add(Rule::fail(Failure::Server).on(Operation::Delete).nth(1200));
    let locations = stream::iter(paths.clone()).map(Ok).boxed();
    let removed: Vec<_> = rig.store.delete_stream(locations).try_collect().await.expect("repeated");
    assert_eq!(removed, paths);
    assert_eq!(rig.memory.list(None).count().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_listing_is_repeated_from_its_beginning_if_it_brought_nothing() {
    let rig = rig(Patience::LONG);
    put(&rig, "content").await.expect("stored");
    rig.fault.add(Rule::fail(Failure::Throttled).on(Operation::List).next(2));
    let found: Vec<_> = rig.store.list(None).try_collect().await.expect("the third attempt succeeds");
    assert_eq!(found.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_upload_in_parts_is_one_put() {
    let rig = rig(Patience::LONG);
    rig.fault.add(Rule::fail(Failure::Server).next(1));
    let mut upload = rig.store.put_multipart(&path()).await.expect("nothing is sent yet");
    for part in ["one ", "two ", "three"] {
        upload.put_part(part.into()).await.expect("kept");
    }
    upload.complete().await.expect("repeated");
    assert_eq!(get(&rig).await.expect("it is there"), "one two three");
    assert_eq!(rig.count.counts().of(Operation::Put), 2);
    assert_eq!(rig.count.counts().sent_bytes, 26);
}

/// During an outage each of many requests is tried once, and then one at a time is repeated; all succeed when the store
/// is back.
#[tokio::test(start_paused = true)]
async fn an_outage_causes_no_storm_of_retries() {
    const REQUESTS: u64 = 500;
    let rig = rig(Patience { request: Duration::from_secs(600), ..Patience::LONG });
    rig.fault.add(Rule::fail(Failure::Unreachable));
    let requests: Vec<_> = (0..REQUESTS)
        .map(|number| {
            let store = rig.store.clone();
            tokio::spawn(async move { store.put(&Path::from(format!("{number}")), "content".into()).await.map(drop) })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let early = rig.count.counts().total();
    assert!(early <= REQUESTS + 100 + 60 * 50, "{early}");
    tokio::time::sleep(Duration::from_secs(240)).await;
    let late = rig.count.counts().total() - early;
    assert!(late <= 240 * 20, "one at a time, with pauses: {late}");
    rig.fault.clear();
    let back = tokio::time::Instant::now();
    for request in requests {
        request.await.expect("no panic").expect("the store is back");
    }
    assert!(back.elapsed() < Duration::from_secs(60), "{:?}", back.elapsed());
}

#[tokio::test]
async fn quick_limits_end_a_hung_request_soon() {
    let rig = rig(QUICK);
    rig.fault.add(Rule::hang());
    let error = put(&rig, "content").await.expect_err("it always hangs");
    assert_eq!(classify(&error), Failure::Timeout);
}

const MIB: usize = 1 << 20;

/// Stores `count` objects of 1 MiB at the same time.
async fn put_many(store: &crate::store::retry::Retry, count: usize) {
    let puts = (0..count).map(|number| {
        let store = store.clone();
        async move { store.put(&Path::from(format!("{number}")), vec![0; MIB].into()).await }
    });
    futures::future::try_join_all(puts).await.expect("stored");
}

/// The wait for the limit is longer than the time limits of a request.
#[tokio::test(start_paused = true)]
async fn an_upload_limit_delays_requests_and_fails_none() {
    let Rig { count, store, .. } = rig(Patience::LONG);
    let store = store.limited_to(Some(MIB as u64 / 10));
    let start = tokio::time::Instant::now();
    put_many(&store, 60).await;
    let elapsed = start.elapsed();
    assert!((589..=600).contains(&elapsed.as_secs()), "{elapsed:?}");
    assert_eq!(count.counts().of(Operation::Put), 60, "each is sent once");
    store.get(&Path::from("0")).await.expect("there");
    assert_eq!(start.elapsed(), elapsed, "reads are not limited");
}

#[tokio::test(start_paused = true)]
async fn a_small_object_does_not_wait_for_large_ones_and_is_counted() {
    let store = rig(Patience::LONG).store.limited_to(Some(MIB as u64));
    let start = tokio::time::Instant::now();
    let small = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for number in 0..32 {
            store.put(&Path::from(format!("small {number}")), vec![0; 64 << 10].into()).await.expect("stored");
        }
        start.elapsed()
    };
    let (large, small) = futures::join!(put_many(&store, 10), small);
    let () = large;
    assert_eq!(small, Duration::from_millis(100));
    assert!((10..=11).contains(&start.elapsed().as_secs()), "2 MiB more: {:?}", start.elapsed());
}
