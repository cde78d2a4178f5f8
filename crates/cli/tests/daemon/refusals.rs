//! Invalid requests are reported and change nothing.

use std::fs;

use crate::process::{Daemon, command, table};
use crate::rig::{Scratch, need_fuse, run};

#[test]
fn two_daemons_do_not_share_a_socket() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let pid = daemon.process.0.id().to_string();
    run(command(&scratch, "")).expect(3, &["another daemon", &pid]);
    assert!(daemon.states().is_empty());
    daemon.end();
}

#[test]
fn an_invalid_configuration_starts_nothing() {
    need_fuse();
    let scratch = Scratch::new();
    for (config, words) in [
        ("cahce = \"1GiB\"\n", vec!["line 1", "cahce", "daemon.toml"]),
        ("[volumes.\"a/b\"]\nsource = \"/a\"\nmountpoint = \"/b\"\n", vec!["a/b"]),
        ("socket-group = \"no-such-group\"\n", vec!["no-such-group"]),
        ("[tenants.\"uid:1\"]\nlimit = \"1MiB\"\n", vec!["uid:1"]),
    ] {
        run(command(&scratch, config)).expect(2, &words);
    }
    let mut missing = scratch.command(["daemon", "--config"]);
    missing.arg(scratch.path.join("none.toml"));
    run(missing).expect(2, &["none.toml"]);
    let mut nowhere = command(&scratch, "");
    nowhere.args(["--socket", scratch.path.join("none/socket").to_str().unwrap()]);
    run(nowhere).expect(1, &["create the directory first"]);
    assert!(!scratch.arena("daemon").exists());
}

#[test]
fn a_volume_that_fails_to_mount_does_not_stop_the_others() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("good");
    let missing = scratch.path.join("missing");
    let config = table("bad", &missing, &scratch.dir("bad", 0o755)) + &table("good", &source, &mountpoint);
    let daemon = Daemon::start(&scratch, &config);
    assert_eq!(daemon.states(), [("good".to_owned(), "mounted".to_owned())]);
    daemon.wait_said("bad: not mounted", 1);
    daemon.end();
}

#[test]
fn invalid_and_taken_names_are_refused() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let (one, other) = (scratch.pair("one"), scratch.pair("other"));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let long = "x".repeat(300);
    for name in ["", ".", "..", "a/b", "-a", "a\u{1}b", &long] {
        let name = format!("--name={name}");
        daemon
            .run(["mount", "--daemon", &text(&one.0), &text(&one.1), &name])
            .expect(2, &["is not a valid volume name"]);
    }
    daemon.mount(&one.0, &one.1, "one");
    let taken = daemon.run(["mount", "--daemon", &text(&other.0), &text(&other.1), "--name", "one"]);
    taken.expect(3, &["the name one is taken", &text(&one.1)]);
    let conflict = daemon.run(["mount", "--daemon", &text(&other.0), &text(&other.1), "--cache", "1GiB"]);
    conflict.expect(2, &["--cache"]);
    let option = daemon.run(["mount", "--daemon", &text(&other.0), &text(&other.1), "-o", "noexec,cache=1GiB"]);
    option.expect(2, &["option cache applies to the whole daemon"]);
    daemon.end();
}

#[test]
fn without_a_daemon_the_message_says_how_to_start_one() {
    let scratch = Scratch::new();
    let socket = scratch.path.join("run/daemon.sock");
    for verb in ["ls", "tenants", "events"] {
        scratch.run([verb]).expect(5, &["no daemon listens at", socket.to_str().unwrap(), "slackwater daemon"]);
    }
    fs::write(&socket, "").unwrap();
    scratch.run(["ls"]).expect(5, &["no daemon"]);
}
