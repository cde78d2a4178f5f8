//! Wrong inputs, and stores that are not there. Each message says what is wrong and what to do.

use std::fs;
use std::process::Command;

use crate::rig::{Output, Scratch, need_fuse, run};
use crate::store::{Store, stores};

/// The words of a command line, its status, and parts of its message. `{}` stands for the test's directory.
type Case = (&'static [&'static str], i32, &'static [&'static str]);

const CASES: &[Case] = &[
    (&["mkfs"], 2, &["<URL>"]),
    (&["mkfs", "/srv/volume"], 2, &["s3://bucket/prefix"]),
    (&["mkfs", "http://host/bucket"], 2, &["http:", "s3://"]),
    (&["mkfs", "s3:///prefix"], 2, &["names no bucket"]),
    (&["mkfs", "s3://key:hush@bucket/prefix"], 2, &["credentials", "environment"]),
    (&["mkfs", "s3://bucket/prefix?secret=hush"], 2, &["environment"]),
    (&["mkfs", "file://relative"], 2, &["file:///directory"]),
    (&["mkfs", "file:///"], 2, &["root directory"]),
    (&["mkfs", "memory:a"], 2, &["without mkfs"]),
    (&["mount", "file://{}/nothing", "{}/mnt"], 2, &["there is no directory", "slackwater mkfs"]),
    (&["mount", "file://{}/source", "{}/mnt"], 1, &["no Slackwater volume", "slackwater mkfs"]),
    (&["mount", "s3://key:hush@bucket/prefix", "{}/mnt"], 2, &["credentials", "environment"]),
    (&["mount", "s3://key:hush@bucket/prefix", "{}/mnt", "--background"], 2, &["credentials", "environment"]),
    (&["mount", "ftp://bucket/prefix", "{}/mnt"], 2, &["ftp:", "s3://"]),
    (&["mount", "file://{}/volume", "{}/nowhere"], 1, &["the mount point", "mkdir -p"]),
    (&["mount", "file://{}/volume", "{}/volume"], 2, &["is the source itself"]),
    (&["mount", "file://{}/volume", "{}/volume/inner"], 2, &["is inside the source"]),
    (&["mount", "file://{}/volume", "{}"], 2, &["is inside the mount point"]),
    (&["mount", "{}/source", "{}/mnt", "--take-over"], 2, &["--take-over is for object volumes"]),
    (&["mount", "{}/source", "{}/mnt", "--upload-limit", "1MiB"], 2, &["--upload-limit is for object volumes"]),
    (&["mount", "{}/source", "{}/mnt", "--read-only", "--follow", "5s"], 2, &["--follow is for object volumes"]),
    (&["mount", "file://{}/volume", "{}/mnt", "--follow", "5s"], 2, &["add --read-only"]),
    (&["mount", "file://{}/volume", "{}/mnt", "--read-only", "--take-over"], 2, &["--read-only does not"]),
    (&["mount", "file://{}/volume", "{}/mnt", "--read-only", "--follow", "1ms"], 2, &["between 500ms and 1h"]),
    (&["mount", "file://{}/volume", "{}/mnt", "--upload-limit", "1"], 2, &["at least 64KiB"]),
    (&["mount", "file://{}/volume", "{}/mnt", "-o", "follow"], 2, &["follow", "needs a value"]),
    (&["mount", "file://{}/volume", "{}/mnt", "--cache", "1KiB"], 2, &["too small"]),
    (
        &["mkfs", "file://{}/volume"],
        1,
        &["slackwater: there is a volume at file://{}/volume already", "another prefix"],
    ),
    (&["fsck", "file://{}/source"], 8, &["no Slackwater volume"]),
    (&["fsck", "s3://key:hush@bucket/prefix"], 2, &["credentials"]),
    (&["fsck"], 2, &["<URL>"]),
    (&["gc", "file://{}/source"], 1, &["no Slackwater volume"]),
    (&["gc", "file://{}/volume", "--grace", "1"], 2, &["--grace", "30s"]),
    (&["doctor", "nowhere"], 2, &["nowhere is not the URL", "s3://bucket/volume"]),
    (&["doctor", "s3://key:hush@bucket/prefix"], 1, &["FATAL", "credentials"]),
];

#[track_caller]
fn check(words: &dyn std::fmt::Debug, output: &Output, code: i32, parts: &[&str]) {
    assert_eq!(output.code, Some(code), "{words:?}: {}", output.text);
    parts.iter().for_each(|part| assert!(output.text.contains(part), "{words:?}: no {part:?} in: {}", output.text));
    assert!(!output.text.contains("hush"), "{words:?} shows a secret: {}", output.text);
    assert!(!output.text.contains("panicked"), "{words:?}: {}", output.text);
}

#[test]
fn wrong_inputs_are_refused_with_advice_and_leave_nothing() {
    need_fuse();
    let scratch = Scratch::new();
    for name in ["source", "mnt"] {
        scratch.dir(name, 0o755);
    }
    let place = scratch.path.to_str().unwrap();
    scratch.run(["mkfs", &format!("file://{place}/volume")]).expect(0, &[]);
    fs::create_dir(scratch.path.join("volume/inner")).unwrap();
    for (words, code, parts) in CASES {
        let words: Vec<_> = words.iter().map(|word| word.replace("{}", place)).collect();
        let parts: Vec<_> = parts.iter().map(|part| part.replace("{}", place)).collect();
        check(&words, &scratch.run(&words), *code, &parts.iter().map(String::as_str).collect::<Vec<_>>());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&format!("{place}/mnt")), "{words:?} has mounted");
        assert!(!scratch.path.join("nothing").exists(), "{words:?} made a directory");
    }
}

/// The words on a store that does not answer, or does not know the user, and the environment that leads there.
fn with(scratch: &Scratch, store: &Store, words: &[&str], changes: &[(&str, &str)]) -> Output {
    let mut command: Command = store.command(scratch, words);
    command.envs(changes.iter().copied());
    run(command)
}

#[test]
fn a_store_that_refuses_or_is_not_there_is_named_with_the_cause() {
    need_fuse();
    let scratch = Scratch::new();
    let mountpoint = scratch.dir("mnt", 0o755);
    let mountpoint = mountpoint.to_str().unwrap();
    let Some(store) = stores(&scratch).into_iter().find(|store| store.objects.is_none()) else { return };
    store.mkfs(&scratch);
    let mount = ["mount", &store.url, mountpoint];
    let wrong = with(&scratch, &store, &mount, &[("AWS_SECRET_ACCESS_KEY", "hush")]);
    check(&"wrong key", &wrong, 1, &["credentials", "slackwater doctor"]);
    // To a GET, this server answers that there is no such object.
    let no_bucket = store.run(&scratch, &["mkfs", "s3://nothing/volume"]);
    check(&"no bucket", &no_bucket, 1, &["no such bucket", "slackwater doctor"]);
    // Nothing listens at the port of a socket that was closed.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nowhere = with(&scratch, &store, &mount, &[("AWS_ENDPOINT_URL", &format!("http://{closed}"))]);
    check(&"no server", &nowhere, 1, &["slackwater doctor"]);
    store.run(&scratch, &["doctor", &store.url]).expect(0, &["ok"]);
    let doctor = with(&scratch, &store, &["doctor", &store.url], &[("AWS_SECRET_ACCESS_KEY", "hush")]);
    check(&"doctor", &doctor, 1, &["FATAL", "credentials"]);
}
