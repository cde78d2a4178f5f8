//! Errors of a real S3 server, through the real client.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use slackwater::ErrorKind;
use slackwater_s3_server::{Answer, Script, Server};

use super::{ANSWERED, QUICK, environment, location, s3};
use crate::store::classify::classify;
use crate::store::{Failure, Location, Operation, Patience, Store, create, of_store};

fn path() -> Path {
    Path::from("seg/object")
}

fn only(answer: Answer) -> Server {
    let server = Server::start().expect("a server on loopback");
    server.script(Script::new(answer));
    server
}

/// The failure that a get ends with, and the requests that it took.
async fn get(server: &Server, patience: Patience) -> (Failure, u64) {
    let store = Store::connect(&location(server, patience), None).expect("good settings");
    let error = store.patient.get(&path()).await.expect_err("scripted");
    (classify(&error), store.counts().total())
}

#[tokio::test]
async fn what_a_volume_needs_works() {
    let (_server, store) = s3(Patience::SHORT);
    let (objects, path) = (&store.patient, path());
    let attribute = Attribute::Metadata("slatedbputid".into());
    let attributes: Attributes = [(attribute.clone(), "one")].into_iter().collect();
    let create = PutOptions { mode: PutMode::Create, attributes, ..PutOptions::default() };
    objects.put_opts(&path, "first".into(), create.clone()).await.expect("created");
    let again = objects.put_opts(&path, "other".into(), create).await.expect_err("it exists");
    assert!(matches!(again, Error::AlreadyExists { .. }), "{again}");
    let found = objects.get(&path).await.expect("there");
    assert_eq!(found.attributes.get(&attribute).map(|value| value.as_ref()), Some("one"));
    let known = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: None };
    assert_eq!(objects.get_range(&path, 1..4).await.expect("a range"), "irs");
    objects.put_opts(&path, "second".into(), PutMode::Update(known.clone()).into()).await.expect("unchanged");
    let stale = objects.put_opts(&path, "third".into(), PutMode::Update(known).into()).await.expect_err("changed");
    assert!(matches!(stale, Error::Precondition { .. }), "{stale}");
    let listed: Vec<_> = objects.list(Some(&Path::from("seg"))).try_collect().await.expect("a listing");
    assert_eq!(
        listed.iter().map(|object| (object.location.as_ref(), object.size)).collect::<Vec<_>>(),
        [("seg/object", 6)]
    );
    objects.delete(&path).await.expect("removed");
    let error = objects.head(&path).await.expect_err("removed");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn a_thousand_and_more_objects_are_listed_and_removed() {
    let (_server, store) = s3(Patience::SHORT);
    let paths: Vec<_> = (0..1200).map(|number| Path::from(format!("many/{number:04}"))).collect();
    let puts = paths.iter().map(|path| store.patient.put(path, "x".into()));
    let stored: Vec<_> =
        futures::stream::iter(puts).map(Ok).try_buffer_unordered(16).try_collect().await.expect("stored");
    assert_eq!(stored.len(), paths.len());
    let listed: Vec<_> = store.patient.list(None).map_ok(|meta| meta.location).try_collect().await.expect("listed");
    assert_eq!(listed, paths);
    let removed = store.patient.delete_stream(futures::stream::iter(paths.into_iter().map(Ok)).boxed());
    assert_eq!(removed.try_fold(0, |count, _| async move { Ok(count + 1) }).await.expect("removed"), 1200);
    assert_eq!(store.patient.list(None).count().await, 0);
}

/// Two at once may both see that an object does not exist; only one may create it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_creators_wins() {
    let (_server, store) = s3(Patience::SHORT);
    for round in 0..20 {
        let path = Path::from(format!("race/{round}"));
        let creators = (0..8).map(|creator| {
            let (store, path) = (store.clone(), path.clone());
            tokio::spawn(async move { create(&*store.hasty, &path, format!("creator {creator}").into()).await })
        });
        let won: Vec<bool> = futures::future::join_all(creators)
            .await
            .into_iter()
            .map(|won| won.expect("no panic").expect("an answer"))
            .collect();
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    }
}

#[tokio::test]
async fn a_creation_whose_reply_was_lost_is_recognised() {
    let (server, store) = s3(Patience::SHORT);
    server.script(Script::new(Answer::LoseReply).method("PUT").times(1));
    assert!(create(&*store.hasty, &path(), "mine".into()).await.expect("an answer"), "it is ours");
    assert_eq!(store.counts().of(Operation::Create), 2);
    assert!(!create(&*store.hasty, &path(), "another's".into()).await.expect("an answer"));
    assert!(store.hasty.get(&path()).await.is_ok());
}

#[tokio::test]
async fn failures_that_may_pass_are_repeated() {
    let answers = [
        Answer::error(503, "SlowDown", "Please reduce your request rate."),
        Answer::error(500, "InternalError", "We encountered an internal error."),
        Answer::Status(502, "<html>bad gateway</html>".into()),
        Answer::Disconnect,
        Answer::Hang,
    ];
    for answer in answers {
        let (server, store) =
            s3(Patience { attempt: Duration::from_secs(2), request: Duration::from_secs(60), ..QUICK });
        store.patient.put(&path(), "content".into()).await.expect("stored");
        server.script(Script::new(answer.clone()).times(2));
        let found = store.patient.get(&path()).await.unwrap_or_else(|error| panic!("{answer:?}: {error}"));
        assert_eq!(found.bytes().await.expect("whole"), "content");
        store.patient.put(&path(), "more".into()).await.expect("stored");
    }
}

#[tokio::test]
async fn a_bucket_that_is_missing_is_named() {
    let server = Server::start().expect("a server on loopback");
    let nowhere = Location::parse_in("s3://nowhere/volume", environment(&server)).expect("a good URL");
    let store = Store::connect(&nowhere, None).expect("good settings");
    let error = store.hasty.list(None).try_next().await.expect_err("no bucket");
    assert_eq!(classify(&error), Failure::NoBucket, "{error}");
    let text = crate::store::explain(&nowhere, "open", &error).to_string();
    assert!(text.starts_with("cannot open s3://nowhere/volume: no such bucket"), "{text}");
    assert!(text.contains("aws s3 mb s3://nowhere --endpoint-url http://127.0.0.1:"), "{text}");
}

#[tokio::test]
async fn wrong_and_expired_credentials_are_tried_twice() {
    let server = only(Answer::error(400, "ExpiredToken", "The provided token has expired."));
    assert_eq!(get(&server, Patience::SHORT).await, (Failure::Credentials, 2));
    let server = only(Answer::error(403, "AccessDenied", "Access Denied"));
    assert_eq!(get(&server, Patience::SHORT).await, (Failure::Permission, 2));
    let server = Server::start().expect("a server on loopback");
    let variables = server.environment();
    let mut variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    variables[1].1 = "wrong-secret-key";
    let wrong = Location::parse_in("s3://test/volume", crate::store::Environment::of(variables)).expect("a good URL");
    let error = Store::connect(&wrong, None).expect("good settings").hasty.get(&path()).await.expect_err("refused");
    assert_eq!(classify(&error), Failure::Credentials, "{error}");
}

#[tokio::test]
async fn a_clock_that_is_off_is_named() {
    let server = only(Answer::error(
        403,
        "RequestTimeTooSkewed",
        "The difference between the request time and the server's time",
    ));
    assert_eq!(get(&server, Patience::SHORT).await, (Failure::ClockSkew, 1));
    let error =
        Store::connect(&location(&server, Patience::SHORT), None).expect("good settings").hasty.get(&path()).await;
    let text =
        crate::store::explain(&location(&server, Patience::SHORT), "open", &error.expect_err("scripted")).to_string();
    assert!(text.contains("clock of this machine is off"), "{text}");
}

#[tokio::test]
async fn a_store_that_asks_for_fewer_requests_is_obeyed_and_then_named() {
    let server = only(Answer::error(503, "SlowDown", "Please reduce your request rate."));
    let (failure, requests) = get(&server, Patience::SHORT).await;
    assert_eq!(failure, Failure::Throttled);
    assert!((3..=8).contains(&requests), "{requests} within 10 s");
}

#[tokio::test]
async fn a_store_that_hangs_is_a_timeout() {
    let server = only(Answer::Hang);
    let (failure, requests) = get(&server, Patience { request: Duration::from_secs(10), ..QUICK }).await;
    assert_eq!(failure, Failure::Timeout);
    assert!(requests >= 3, "each attempt has its limit: {requests}");
}

#[tokio::test]
async fn a_store_that_is_gone_is_unreachable() {
    let server = Server::start().expect("a server on loopback");
    let location = location(&server, ANSWERED);
    drop(server);
    let store = Store::connect(&location, None).expect("good settings");
    let error = store.hasty.get(&path()).await.expect_err("nobody listens");
    assert_eq!(classify(&error), Failure::Unreachable, "{error:?}");
}

/// Proxies and some stores answer 200 with an error inside.
#[tokio::test]
async fn a_success_with_an_error_inside_is_a_failure() {
    let (server, store) = s3(ANSWERED);
    let page = "<html><body>login first</body></html>";
    server.script(Script::new(Answer::Status(200, page.into())));
    let error = store.hasty.get(&path()).await.expect_err("no object has no length, time and tag");
    assert_ne!(classify(&error), Failure::NotFound, "{error}");
    let error = store.hasty.put(&path(), "x".into()).await.expect_err("a put without a tag");
    assert_ne!(classify(&error), Failure::NotFound, "{error}");
    let error = store.hasty.list(None).try_next().await.expect_err("no empty listing");
    assert_eq!(classify(&error), Failure::Server, "{error}");
    let text = of_store(&error).to_string();
    assert!(text.contains("not one of an object store"), "{text}");
}

#[tokio::test]
async fn a_slow_store_is_waited_for() {
    let (server, store) = s3(Patience::SHORT);
    server.set_delay(Duration::from_millis(200));
    store.patient.put(&path(), "content".into()).await.expect("slow is not gone");
    assert_eq!(store.counts().total(), 1);
}

#[test]
fn kinds_of_the_engine_are_chosen_once() {
    let kinds = [
        (Failure::NoSpace, ErrorKind::NoSpace),
        (Failure::Permission, ErrorKind::Permission),
        (Failure::Credentials, ErrorKind::Permission),
        (Failure::Timeout, ErrorKind::TimedOut),
        (Failure::NotFound, ErrorKind::Io),
        (Failure::Exists, ErrorKind::Io),
    ];
    for (failure, kind) in kinds {
        assert_eq!(failure.kind(), kind);
    }
}
