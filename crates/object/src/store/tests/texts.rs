//! Texts for people: they say what to do, and never hold a secret.

use std::fmt::Write;

use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use slackwater_s3_server::{Answer, SECRET_KEY, Script, Server};

use super::{ANSWERED, QUICK, environment, location};
use crate::store::{Environment, Failure, Location, Patience, Store, StoreCheck, check_store, explain, of_store};

/// Every text that a user or a log may see of a failure.
async fn texts(location: &Location) -> String {
    let mut all = format!("{location} {location:?} ");
    let store = match Store::connect(location, None) {
        Ok(store) => store,
        Err(error) => return format!("{all} {error} {error:?}"),
    };
    let failures = [
        store.hasty.get(&Path::from("x")).await.map(drop),
        store.hasty.put(&Path::from("x"), "x".into()).await.map(drop),
        store.hasty.list(None).try_next().await.map(drop),
        store.hasty.delete(&Path::from("x")).await,
    ];
    for error in failures.into_iter().filter_map(Result::err) {
        let (store, person) = (of_store(&error), explain(location, "open", &error));
        write!(all, "{error} {error:?} {store} {store:?} {person} {person:?} {:?} ", store).expect("a string");
    }
    all
}

#[tokio::test]
async fn no_text_of_a_failure_has_a_secret() {
    let answers = [
        Answer::error(403, "SignatureDoesNotMatch", "The request signature does not match"),
        Answer::error(403, "RequestTimeTooSkewed", "The difference is too large"),
        Answer::error(404, "NoSuchBucket", "The specified bucket does not exist"),
        Answer::Status(500, String::new()),
        Answer::Status(200, "<html>".into()),
        Answer::Disconnect,
        Answer::Hang,
    ];
    for answer in answers {
        let server = Server::start().expect("a server on loopback");
        server.script(Script::new(answer.clone()));
        let patience = if matches!(answer, Answer::Hang) { QUICK } else { ANSWERED };
        let all = texts(&location(&server, patience)).await;
        assert!(!all.contains(SECRET_KEY), "{answer:?}: {all}");
        assert!(all.contains("cannot open s3://test/volume"), "{answer:?}: {all}");
    }
}

#[tokio::test]
async fn settings_that_are_refused_are_not_repeated() {
    let environments = [
        Environment::of([("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]),
        Environment::of([("AWS_ENDPOINT_URL", "http://host"), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]),
        Environment::of([("GOOGLE_SERVICE_ACCOUNT_KEY", SECRET_KEY)]),
        Environment::of([("AZURE_STORAGE_ACCOUNT_NAME", "a"), ("AZURE_STORAGE_ACCOUNT_KEY", SECRET_KEY)]),
    ];
    for (environment, scheme) in environments.into_iter().zip(["s3", "s3", "gs", "az"]) {
        let location = Location::parse_in(&format!("{scheme}://bucket/x"), environment).expect("a good URL");
        let error = Store::connect(&location, None).err().map(|error| format!("{error} {error:?}")).unwrap_or_default();
        assert!(!error.contains(SECRET_KEY), "{error}");
        assert!(error.contains(&format!("cannot use {scheme}://bucket/x")), "{error}");
    }
}

#[test]
fn a_healthy_store_has_no_complaints() {
    let server = Server::start().expect("a server on loopback");
    let checks = check_store(&location(&server, Patience::SHORT));
    assert_eq!(failed(&checks), [""; 0], "{checks:?}");
    assert_eq!(checks.len(), 8);
    for url in ["memory:doctor", &file("doctor")] {
        let location = Location::parse_in(url, Environment::default()).expect("a good URL");
        crate::store::make_place(&location).expect("a directory");
        let checks = check_store(&location);
        assert_eq!(failed(&checks), [""; 0], "{checks:?}");
        if let Some(directory) = location.local_directory() {
            assert_eq!(std::fs::read_dir(directory).expect("there").count(), 0, "the object was removed");
            std::fs::remove_dir(directory).expect("ours");
        }
    }
}

/// The names of the checks that failed.
fn failed(checks: &[StoreCheck]) -> Vec<&str> {
    checks.iter().filter(|check| check.result.is_err()).map(|check| check.name).collect()
}

fn file(name: &str) -> String {
    format!("file://{}/slackwater-store-{name}-{}", std::env::temp_dir().display(), std::process::id())
}

#[test]
fn a_directory_is_made_by_mkfs_alone() {
    let location = Location::parse_in(&file("absent"), Environment::default()).expect("a good URL");
    let error = Store::connect(&location, None).expect_err("it does not exist").to_string();
    assert!(error.contains("slackwater mkfs"), "{error}");
    assert!(!location.local_directory().expect("a directory").exists());
}

#[test]
fn the_doctor_names_what_is_wrong() {
    let server = Server::start().expect("a server on loopback");
    let nowhere = Location::parse_in("s3://nowhere/x", environment(&server)).expect("a good URL").patient(ANSWERED);
    let checks = check_store(&nowhere);
    let last = checks.last().expect("at least one");
    assert_eq!(last.name, "list");
    assert!(last.result.as_ref().is_err_and(|text| text.contains("Make the bucket")), "{checks:?}");

    let server = Server::start().expect("a server on loopback");
    server.script(Script::new(Answer::error(403, "AccessDenied", "Access Denied")).method("DELETE"));
    server.script(Script::new(Answer::error(403, "AccessDenied", "Access Denied")).method("POST"));
    let checks = check_store(&location(&server, Patience::SHORT));
    assert_eq!(failed(&checks), ["delete"], "{checks:?}");
}

#[test]
fn every_failure_of_a_store_far_away_has_advice() {
    let keys = Environment::of([("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")]);
    let far = Location::parse_in("s3://bucket/x", keys).expect("a good URL");
    let without = [Failure::NotFound, Failure::Exists, Failure::Changed, Failure::Crashed, Failure::Other];
    let all = [
        Failure::Throttled,
        Failure::Server,
        Failure::Timeout,
        Failure::Unreachable,
        Failure::Permission,
        Failure::Credentials,
        Failure::ClockSkew,
        Failure::NoBucket,
        Failure::NoSpace,
        Failure::Quota,
        Failure::Unsupported,
        Failure::Configuration,
    ];
    assert!(all.iter().all(|failure| crate::store::errors::advice(&far, *failure).is_some()));
    assert!(without.iter().all(|failure| crate::store::errors::advice(&far, *failure).is_none()));
}

#[tokio::test]
async fn a_user_without_credentials_is_told_so() {
    // The metadata service of a machine without a role.
    let server = Server::start().expect("a server on loopback");
    server.script(Script::new(Answer::Status(404, String::new())));
    let endpoint = format!("http://{}", server.address());
    let variables =
        [("AWS_METADATA_ENDPOINT", &*endpoint), ("AWS_CONFIG_FILE", "/none"), ("AWS_SHARED_CREDENTIALS_FILE", "/none")];
    let location =
        Location::parse_in("s3://bucket/x", Environment::of(variables)).expect("a good URL").patient(ANSWERED);
    let all = texts(&location).await;
    assert!(all.contains("No credentials are set") && all.contains("AWS_ACCESS_KEY_ID"), "{all}");
}
