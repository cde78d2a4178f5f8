//! Queries by other users, and the contents of the answers.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::Daemon;
use crate::rig::{Process, Scratch, need_fuse, run};

/// A user without privileges.
const NOBODY: &str = "65534";
/// A group without other members.
const GROUP: &str = "54321";

#[test]
fn the_socket_group_may_query_but_not_change() {
    need_fuse();
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path.join("run"), fs::Permissions::from_mode(0o700)).unwrap();
    let open = scratch.dir("open", 0o755);
    let socket = open.join("socket");
    let daemon = Daemon::start_at(&scratch, &format!("socket-group = \"{GROUP}\"\n"), &socket);
    let (source, mountpoint) = scratch.pair("a");
    daemon.mount(&source, &mountpoint, "a");
    let status = fs::metadata(&socket).unwrap();
    assert_eq!((status.mode() & 0o777, status.gid()), (0o660, GROUP.parse().unwrap()));
    let binary = scratch.command_for_all();
    let ask_with = |runtime_dir: &Path, group: &str, arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", group, "--clear-groups"]).arg(&binary).args(arguments);
        run({
            command.env("SLACKWATER_SOCKET", &socket).env("SLACKWATER_RUNTIME_DIR", runtime_dir);
            command
        })
    };
    let ask = |group: &str, arguments: &[&str]| ask_with(&scratch.path.join("none"), group, arguments);
    ask(GROUP, &["ls"]).expect(0, &["a "]);
    ask(GROUP, &["tenants"]).expect(0, &["root"]);
    let source = source.display().to_string();
    ask(GROUP, &["status"]).expect(0, &[&source, "mounted"]);
    ask(GROUP, &["status", "a"]).expect(0, &[&source]);
    ask(GROUP, &["top", "--once", "--interval", "100ms"]).expect(0, &["HITS", "\n    a  "]);
    let document = ask(GROUP, &["top", "--once", "--interval", "100ms", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&document.text).unwrap();
    let volume = &document["volumes"][0];
    assert_eq!((&volume["name"], &volume["mountpoint"]), (&"a".into(), &mountpoint.to_str().unwrap().into()));
    ask(GROUP, &["umount", "a"]).expect(1, &["no permission to change anything"]);
    ask(GROUP, &["sync", "a"]).expect(1, &["no permission to change anything"]);
    ask(GROUP, &["set", "a", "dontcache=on"]).expect(1, &["no permission to change anything"]);
    // A volume that the daemon does not have may be one of the user's own.
    let own = scratch.dir("own", 0o700);
    chown(&own, Some(NOBODY.parse().unwrap()), Some(GROUP.parse().unwrap())).unwrap();
    for change in [&["umount", "other"][..], &["sync", "other"], &["set", "other", "dontcache=on"]] {
        ask_with(&own, GROUP, change).expect(5, &["other is not mounted"]);
    }
    for looks in [&["ls"][..], &["status"], &["top", "--once"]] {
        ask(NOBODY, looks).expect(1, &["no permission"]);
    }
    assert_eq!(daemon.states().len(), 1);
    daemon.end();
}

#[test]
fn events_are_reported_as_they_happen() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let mut command = scratch.command(["events", "--json"]);
    let mut listening = Process::spawn(command.stdout(Stdio::piped()));
    let mut lines = BufReader::new(listening.0.stdout.take().unwrap()).lines();
    let mut next = || -> (String, String) {
        let event: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        (event["what"].as_str().unwrap().to_owned(), event["name"].as_str().unwrap_or_default().to_owned())
    };
    // Only events after the subscription are reported, so volumes come and go until it is seen.
    let (source, mountpoint) = scratch.pair("early");
    let heard = std::thread::scope(|scope| {
        let first = scope.spawn(&mut next);
        while !first.is_finished() {
            daemon.mount(&source, &mountpoint, "early");
            daemon.umount("early");
        }
        first.join().unwrap()
    });
    assert_eq!(heard.1, "early");
    let (source, mountpoint) = scratch.pair("a");
    daemon.mount(&source, &mountpoint, "a");
    daemon.umount("a");
    let mut of_a: Vec<String> = Vec::new();
    while of_a.last().is_none_or(|last| last != "unmounted") {
        let (what, name) = next();
        if name == "a" {
            of_a.push(what);
        }
    }
    // An unmount is tried again while the volume is in use.
    of_a.retain(|what| what != "still-mounted");
    of_a.dedup_by(|one, other| one == other && one == "unmounting");
    assert_eq!(of_a, ["mounted", "unmounting", "unmounted"]);
    daemon.end();
    assert_eq!(listening.wait().code(), Some(0));
}

#[test]
fn metrics_label_each_volume_with_its_name() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "metrics = \"127.0.0.1:0\"\ndirty-expire = \"1h\"\n");
    let (one, other) = (scratch.pair("one"), scratch.pair("other"));
    daemon.mount(&one.0, &one.1, "one");
    daemon.mount(&other.0, &other.1, "other");
    fs::write(one.1.join("file"), "x").unwrap();
    daemon.umount("other");
    let address = daemon.announcement.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let mut scrape = TcpStream::connect(address).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    scrape.read_to_string(&mut text).unwrap();
    assert!(text.contains("slackwater_volume_dirty_bytes{volume=\"one\"} 4096"), "{text}");
    assert!(!text.contains("volume=\"other\""), "it is gone: {text}");
    assert!(text.contains("slackwater_unmount_seconds_count 1"), "{text}");

    let taken = scratch.pair("taken").0;
    let mut second = crate::process::command(&scratch, &format!("metrics = \"{address}\"\n"));
    second.arg("--socket").arg(taken.join("socket"));
    run(second).expect(3, &[address, "in use"]);
    daemon.end();
}

#[test]
fn peers_that_flood_or_hang_do_not_delay_other_peers() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let mut hanging: Vec<_> = (0..200).map(|_| UnixStream::connect(&daemon.socket).unwrap()).collect();
    for (number, stream) in hanging.iter_mut().enumerate() {
        // Half a request, invalid bytes, or nothing.
        let part: &[u8] = match number % 3 {
            0 => b"{\"version\":1,",
            1 => b"\xff\xfe\n",
            _ => b"",
        };
        let _ = stream.write_all(part);
    }
    assert!(daemon.states().is_empty());
    let mut answer = String::new();
    let _ = hanging[1].read_to_string(&mut answer);
    assert!(answer.contains("invalid request"), "{answer}");
    for volume in [r#""volume":"\u0001/../x""#, r#""at":"/\u0001/../x""#, r#""volume":"x","at":"/\u0001""#] {
        let mut stream = UnixStream::connect(&daemon.socket).unwrap();
        stream.write_all(format!("{{\"version\":1,{volume},\"request\":\"status\"}}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("no volume is named") && !answer.contains('\u{1}'), "{answer}");
    }
    daemon.end();
}
