//! The layers themselves.

use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode};
use slackwater_sync::shim::Arc;

use crate::store::classify::classify;
use crate::store::{Count, Failure, Fault, Layered, Operation, Rule};

fn faulty() -> (Arc<Fault>, Layered<Fault>) {
    let fault = Arc::new(Fault::new());
    (fault.clone(), Layered::new(fault, Arc::new(InMemory::new())))
}

#[tokio::test]
async fn requests_and_bytes_are_counted_by_kind() {
    let count = Arc::new(Count::default());
    let (fault, objects) = faulty();
    let store = Layered::new(count.clone(), Arc::new(objects));
    let path = Path::from("a");
    store.put(&path, "12345".into()).await.expect("stored");
    store.put_opts(&path, "123".into(), PutMode::Create.into()).await.expect_err("it exists");
    assert_eq!(store.get_range(&path, 1..3).await.expect("a range"), "23");
    store.head(&path).await.expect("it is there");
    let _: Vec<_> = store.list(None).try_collect().await.expect("a listing");
    store.delete(&path).await.expect("removed");
    let counts = count.counts();
    for operation in Operation::ALL {
        let expected = u64::from(!matches!(operation, Operation::Update | Operation::Copy));
        assert_eq!(counts.of(operation), expected, "{operation:?}");
    }
    // That an object exists is an answer.
    assert_eq!((counts.sent_bytes, counts.received_bytes, counts.failed), (8, 2, 0));
    assert_eq!(counts.writes(), 2);
    assert_eq!(count.counts().since(&counts).total(), 0);
    fault.add(Rule::fail(Failure::Server).next(1));
    store.head(&path).await.expect_err("it fails");
    assert_eq!(count.counts().since(&counts).failed, 1);
}

#[tokio::test]
async fn a_crash_point_ends_everything_before_or_after_a_request() {
    for (rule, is_there) in [(Rule::crash_before(), false), (Rule::crash_after(), true)] {
        let (fault, store) = faulty();
        fault.add(rule.on(Operation::Put).nth(2));
        store.put(&Path::from("1"), "x".into()).await.expect("before the crash");
        let error = store.put(&Path::from("2"), "x".into()).await.expect_err("the crash");
        assert_eq!(classify(&error), Failure::Crashed);
        assert!(fault.is_crashed());
        let error = store.get(&Path::from("1")).await.expect_err("after the crash");
        assert_eq!(classify(&error), Failure::Crashed);
        fault.revive();
        assert_eq!(store.head(&Path::from("2")).await.is_ok(), is_there);
        assert_eq!(fault.requests(), 4);
    }
}

#[tokio::test]
async fn a_request_under_way_at_a_crash_has_no_answer() {
    let (fault, store) = faulty();
    fault.add(Rule::hang().under("slow"));
    fault.add(Rule::crash_before().under("last"));
    let store = Arc::new(store);
    let slow = tokio::spawn({
        let store = store.clone();
        async move { store.put(&Path::from("slow"), "x".into()).await }
    });
    fault.held(1).await;
    store.put(&Path::from("last"), "x".into()).await.expect_err("the crash");
    fault.release();
    let error = slow.await.expect("no panic").expect_err("nobody hears the answer");
    assert_eq!(classify(&error), Failure::Crashed);
}

#[tokio::test]
async fn bodies_are_cut_or_corrupted_where_the_rule_says() {
    let (fault, store) = faulty();
    let path = Path::from("a");
    store.put(&path, "12345".into()).await.expect("stored");
    fault.add(Rule::truncate(2).next(1));
    fault.add(Rule::corrupt(4).nth(1));
    let read = async || store.get(&path).await.expect("there").bytes().await.expect("readable");
    assert_eq!(read().await, "12");
    assert_eq!(read().await, [b'1', b'2', b'3', b'4', !b'5'].as_slice());
    assert_eq!(read().await, "12345");
}
