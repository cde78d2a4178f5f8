//! Wrong calls, and a world that fails.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::daemon::Daemon;
use crate::needs;
use crate::plugin::{CLIENT, Plugin};
use crate::rig::{Scratch, need_fuse, run};

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    need_fuse();
    if needs::are_missing(&[CLIENT]) {
        return;
    }
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch, "");
    let plugin = Plugin::start(&scratch);
    for body in [b"x".as_slice(), b"[]", b"{\"Name\": 7}", b"{\"Name\": \"\xff\"}", &[b'{'; 100_000], &[0; 3]] {
        let (status, answer) = plugin.post("VolumeDriver.Create", body);
        assert_eq!(status, 400, "{answer}");
        assert!(answer["Err"].as_str().is_some_and(|text| text.contains("body")), "{answer}");
    }
    for call in ["VolumeDriver.Nothing", "", "../VolumeDriver.List", "VolumeDriver.List/"] {
        let (status, answer) = plugin.post(call, b"{}");
        assert!([400, 404].contains(&status), "{call}: {status} {answer}");
    }
    for (options, words) in [
        (json!({ "o": "size=1" }), "unknown option \"o\""),
        (json!({ "pool": "relative" }), "absolute path"),
        (json!({ "pool": "/a", "source": "/b" }), "exclude each other"),
        (json!({ "source": "/does/not/exist" }), "there is no directory /does/not/exist"),
        (json!({ "size": "large" }), "write for example 256MiB"),
        (json!({ "size": "1GiB", "source": "/" }), "made in a directory"),
        (json!({ "size": "0" }), "cannot have a size of 0 bytes"),
        (json!({ "slackwater.dirty-limit": "lots" }), "slackwater.dirty-limit=64MiB"),
        (json!({ "slackwater.limit": "1" }), "known attributes"),
        (json!({ "slackwater.upload-limit": "1MiB" }), "an object store"),
    ] {
        let text = plugin.refused("Create", &json!({ "Name": "data", "Opts": options }), 400);
        assert!(text.contains(words) && !text.contains('\n'), "{text}");
    }
    assert!(plugin.refused("Create", &json!({ "Name": "" }), 400).contains("not a name"));
    assert!(plugin.refused("Create", &json!({ "Name": "x".repeat(2000) }), 400).contains("not a name"));
    plugin.done("Create", &json!({ "Name": "data" }));
    let other = json!({ "Name": "data", "Opts": { "slackwater.dontcache": "on" } });
    assert!(plugin.refused("Create", &other, 409).contains("another set of limits"));
    for id in ["".to_owned(), "x".repeat(300)] {
        assert!(plugin.refused("Mount", &json!({ "Name": "data", "ID": id }), 400).contains("not an id"));
    }
    for name in ["other", "../data", "data-3a6eb0790f39ac87", "DATA", "data\0"] {
        for call in ["Get", "Path", "Remove"] {
            assert!(plugin.refused(call, &json!({ "Name": name }), 404).contains("no such volume"), "{name}");
        }
    }
    // Names are anything else: none is a path.
    for name in ["../../etc", "/", ".", "\u{1f4a7}", "a\nb", "-rf"] {
        plugin.done("Create", &json!({ "Name": name }));
        let source = plugin.source(name);
        assert_eq!(source.parent().unwrap(), plugin.pool, "{name}");
        plugin.done("Remove", &json!({ "Name": name }));
    }
    assert_eq!(plugin.names(), ["data"]);
    plugin.end();
}

#[test]
fn clients_that_send_garbage_or_nothing_delay_no_other() {
    if needs::are_missing(&[CLIENT]) {
        return;
    }
    let scratch = Scratch::new();
    let plugin = Plugin::start(&scratch);
    let silent: Vec<_> = (0..200).map(|_| UnixStream::connect(&plugin.socket).unwrap()).collect();
    let mut half = UnixStream::connect(&plugin.socket).unwrap();
    half.write_all(b"POST /VolumeDriver.List HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").unwrap();
    for garbage in [
        b"\0\0\0\0".as_slice(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[b'a'; 20_000],
    ] {
        let mut client = UnixStream::connect(&plugin.socket).unwrap();
        // The plugin may have closed it already.
        let _ = client.write_all(garbage);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let _ = client.read_to_end(&mut Vec::new());
    }
    assert!(plugin.names().is_empty());
    drop((silent, half));
    plugin.end();
}

#[test]
fn without_a_daemon_volumes_are_made_and_not_mounted() {
    need_fuse();
    if needs::are_missing(&[CLIENT]) {
        return;
    }
    let scratch = Scratch::new();
    let plugin = Plugin::start(&scratch);
    plugin.done("Create", &json!({ "Name": "data" }));
    let text = plugin.refused("Mount", &json!({ "Name": "data", "ID": "1" }), 503);
    assert!(text.contains("daemon"), "{text}");
    assert_eq!(plugin.done("Path", &json!({ "Name": "data" }))["Mountpoint"], "", "it is not mounted");

    let mut daemon = Daemon::start(&scratch, "");
    let mountpoint = plugin.mount("data", "1");
    fs::write(mountpoint.join("file"), "content").unwrap();
    daemon.process.0.kill().unwrap();
    daemon.process.wait();
    assert!(plugin.refused("Unmount", &json!({ "Name": "data", "ID": "1" }), 503).contains("daemon"));
    assert!(
        plugin.refused("Remove", &json!({ "Name": "data" }), 503).contains("daemon"),
        "its data is not written back"
    );

    // The next daemon has the data.
    drop(daemon);
    let _daemon = Daemon::start(&scratch, "");
    let mountpoint = plugin.mount("data", "2");
    assert_eq!(fs::read_to_string(mountpoint.join("file")).unwrap(), "content");
    plugin.unmount("data", "2");
    plugin.done("Remove", &json!({ "Name": "data" }));
    plugin.end();
}

#[test]
fn a_volume_in_use_stays_mounted_until_a_later_call() {
    need_fuse();
    if needs::are_missing(&[CLIENT]) {
        return;
    }
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let mut plugin = Plugin::start(&scratch);
    for way in ["unmount", "remove", "restart"] {
        plugin.done("Create", &json!({ "Name": "data" }));
        let open = File::create(plugin.mount("data", "1").join("file")).unwrap();
        plugin.refused("Unmount", &json!({ "Name": "data", "ID": "1" }), 409);
        plugin.refused("Remove", &json!({ "Name": "data" }), 409);
        assert_eq!(daemon.states().len(), 1);
        drop(open);
        match way {
            "unmount" => plugin.unmount("data", "1"),
            "restart" => {
                plugin.kill_and_restart();
                crate::rig::wait_until("the plugin has unmounted it", || daemon.states().is_empty());
            }
            _ => {}
        }
        plugin.done("Remove", &json!({ "Name": "data" }));
        assert!(daemon.states().is_empty());
    }
    plugin.end();
}

#[test]
fn one_plugin_has_a_state_directory_and_damaged_files_are_named() {
    need_fuse();
    if needs::are_missing(&[CLIENT]) {
        return;
    }
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch, "");
    let plugin = Plugin::start(&scratch);
    run(plugin.second()).expect(3, &["another plugin uses the directory", "--state DIR"]);
    plugin.done("Create", &json!({ "Name": "data" }));
    let source = plugin.source("data");
    let record = fs::read_dir(scratch.path.join("state/volumes")).unwrap().next().unwrap().unwrap().path();
    let good = fs::read(&record).unwrap();
    fs::write(&record, "{").unwrap();
    for (call, body) in [("Get", json!({ "Name": "data" })), ("List", json!({})), ("Create", json!({ "Name": "data" }))]
    {
        assert!(plugin.refused(call, &body, 500).contains(record.to_str().unwrap()), "{call}");
    }
    assert!(source.is_dir());
    fs::write(&record, good).unwrap();
    plugin.done("Remove", &json!({ "Name": "data" }));
    plugin.end();
}
