//! The life of volumes, call by call.

use std::fs;
use std::sync::Barrier;
use std::thread;

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::needs;
use crate::plugin::{CLIENT, Plugin};
use crate::rig::{Scratch, need_fuse, wait_until};

fn is_mounted(path: &std::path::Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

#[test]
fn a_volume_is_mounted_for_its_users_with_the_plugin_killed_between_all_calls() {
    need_fuse();
    if needs::are_missing(&[CLIENT]) {
        return;
    }
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let mut plugin = Plugin::start(&scratch);
    let (status, activated) = plugin.post("Plugin.Activate", b"");
    assert_eq!((status, &activated["Implements"]), (200, &json!(["VolumeDriver"])));
    assert_eq!(plugin.done("Capabilities", &json!({}))["Capabilities"]["Scope"], "local");

    // Each call is made twice: before and after a kill.
    let twice = |plugin: &mut Plugin, call: &str, body: &Value| {
        let first = plugin.done(call, body);
        plugin.kill_and_restart();
        assert_eq!(plugin.done(call, body), first, "{call}");
    };
    let (data, one, two) =
        (json!({ "Name": "data" }), json!({ "Name": "data", "ID": "1" }), json!({ "Name": "data", "ID": "2" }));
    twice(
        &mut plugin,
        "Create",
        &json!({ "Name": "data", "Opts": { "slackwater.dirty-limit": "16MiB", "size": "1GiB" } }),
    );
    twice(&mut plugin, "Path", &data);
    assert_eq!(plugin.done("Path", &data)["Mountpoint"], "");
    twice(&mut plugin, "Mount", &one);
    twice(&mut plugin, "Mount", &two);
    let mountpoint = plugin.mount("data", "1");
    assert!(is_mounted(&mountpoint));
    assert_eq!(plugin.done("Path", &data)["Mountpoint"], mountpoint.to_str().unwrap());
    fs::write(mountpoint.join("file"), "content").unwrap();
    twice(&mut plugin, "Get", &data);
    twice(&mut plugin, "List", &json!({}));
    let volume = plugin.done("Get", &data)["Volume"].take();
    assert_eq!((&volume["Name"], &volume["Mountpoint"]), (&json!("data"), &json!(mountpoint)));
    assert_eq!(volume["Status"]["users"], json!(["1", "2"]));
    assert_eq!(volume["Status"]["bytes"], 1 << 30);
    assert_eq!(volume["Status"]["limits"]["slackwater.dirty-limit"], (16 << 20).to_string());

    twice(&mut plugin, "Unmount", &one);
    assert!(is_mounted(&mountpoint), "the other user still has it");
    assert!(plugin.refused("Remove", &data, 409).contains("1 users"));
    let source = plugin.source("data");
    twice(&mut plugin, "Unmount", &two);
    assert!(!is_mounted(&mountpoint) && !mountpoint.exists());
    assert_eq!(fs::read_to_string(source.join("file")).unwrap(), "content");

    plugin.kill_and_restart();
    plugin.done("Remove", &data);
    plugin.kill_and_restart();
    assert!(plugin.refused("Remove", &data, 404).contains("no such volume"));
    assert!(plugin.refused("Get", &data, 404).contains("no such volume"));
    assert!(plugin.names().is_empty() && !source.exists());
    assert_eq!(fs::read_dir(scratch.path.join("state/users")).unwrap().count(), 0);
    // A plugin that was just started may still remove the lock of one that was killed.
    wait_until("no record is left", || fs::read_dir(scratch.path.join("state/volumes")).unwrap().count() == 0);
    assert_eq!(fs::read_dir(&plugin.pool).unwrap().count(), 0);
    plugin.end();
    assert!(daemon.states().is_empty());
}

#[test]
fn calls_at_once_count_once() {
    need_fuse();
    if needs::are_missing(&[CLIENT]) {
        return;
    }
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let plugin = Plugin::start(&scratch);
    let at_once = |call: &str, bodies: &[Value]| {
        let barrier = Barrier::new(bodies.len());
        thread::scope(|scope| {
            let calls = bodies.iter().map(|body| {
                let (plugin, barrier) = (&plugin, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    plugin.call(call, body)
                })
            });
            let calls: Vec<_> = calls.collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let all_done = |call: &str, bodies: &[Value]| {
        for (status, answer) in at_once(call, bodies) {
            assert_eq!(status, 200, "{call}: {answer}");
        }
    };
    let user = |user: &str| json!({ "Name": "data", "ID": user });
    for _ in 0..3 {
        all_done("Create", &vec![json!({ "Name": "data" }); 3]);
        all_done("Mount", &[user("1"), user("1"), user("1"), user("2")]);
        assert_eq!(daemon.states().len(), 1);
        all_done("Unmount", &[user("1"), user("1"), user("1")]);
        assert_eq!(daemon.states().len(), 1, "the user 2 has it");
        all_done("Unmount", &[user("2"), user("2")]);
        assert!(daemon.states().is_empty());
        let removed = at_once("Remove", &vec![json!({ "Name": "data" }); 3]);
        assert!(removed.iter().any(|(status, _)| *status == 200), "{removed:?}");
        assert!(removed.iter().all(|(status, _)| [200, 404].contains(status)), "{removed:?}");
        assert!(plugin.names().is_empty());
    }
    plugin.end();
}

#[test]
fn a_directory_that_exists_stays_when_its_volume_is_removed() {
    need_fuse();
    if needs::are_missing(&[CLIENT]) {
        return;
    }
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch, "");
    let plugin = Plugin::start(&scratch);
    let mine = scratch.dir("mine", 0o755);
    fs::write(mine.join("old"), "old").unwrap();
    plugin.done("Create", &json!({ "Name": "mine", "Opts": { "source": mine } }));
    let mountpoint = plugin.mount("mine", "1");
    assert_eq!(fs::read_to_string(mountpoint.join("old")).unwrap(), "old");
    fs::write(mountpoint.join("new"), "new").unwrap();
    plugin.unmount("mine", "1");
    plugin.done("Remove", &json!({ "Name": "mine" }));
    assert_eq!(fs::read_to_string(mine.join("new")).unwrap(), "new");
    plugin.end();
}

#[test]
#[cfg(feature = "object")]
fn a_volume_may_be_made_in_an_object_store() {
    need_fuse();
    if needs::are_missing(&[CLIENT]) {
        return;
    }
    let scratch = Scratch::new();
    let _daemon = Daemon::start(&scratch, "");
    let mut plugin = Plugin::start(&scratch);
    let pool = format!("file://{}", scratch.path.join("store").display());
    let options = json!({ "pool": pool, "slackwater.upload-limit": "100MiB", "slackwater.dontcache": "on" });
    plugin.done("Create", &json!({ "Name": "data", "Opts": options }));
    let mountpoint = plugin.mount("data", "1");
    fs::write(mountpoint.join("file"), "content").unwrap();
    plugin.kill_and_restart();
    plugin.unmount("data", "1");
    let mountpoint = plugin.mount("data", "2");
    assert_eq!(fs::read_to_string(mountpoint.join("file")).unwrap(), "content");
    plugin.unmount("data", "2");
    plugin.done("Remove", &json!({ "Name": "data" }));
    assert_eq!(fs::read_dir(scratch.path.join("store")).unwrap().count(), 0);
    plugin.end();
}
