//! Volumes of a daemon, from mount to unmount.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::process::{Daemon, is_mounted, table, wait_unmounted};
use crate::rig::{Scratch, need_fuse, wait_until};

fn write(mountpoint: &Path, text: &str) {
    fs::write(mountpoint.join("file"), text).unwrap();
}

#[track_caller]
fn assert_written(source: &Path, text: &str) {
    assert_eq!(fs::read_to_string(source.join("file")).unwrap(), text);
}

#[test]
fn volumes_from_the_configuration_and_from_run_time_end_fully_written_back() {
    need_fuse();
    let scratch = Scratch::new();
    let pairs: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| (*name, scratch.pair(name))).collect();
    let config: String = pairs[..2].iter().map(|(name, (source, point))| table(name, source, point)).collect();
    let daemon = Daemon::start(&scratch, &config);
    for (name, (source, mountpoint)) in &pairs[2..] {
        daemon.mount(source, mountpoint, name);
    }
    for (name, (_, mountpoint)) in &pairs {
        write(mountpoint, name);
    }
    let mounted: Vec<_> = pairs.iter().map(|(name, _)| ((*name).to_owned(), "mounted".to_owned())).collect();
    assert_eq!(daemon.states(), mounted);

    daemon.run(["sync", "a", pairs[1].1.1.to_str().unwrap()]).expect(0, &[]);
    assert_written(&pairs[0].1.0, "a");
    assert_written(&pairs[1].1.0, "b");

    // Unmount by name, by path, by another program, and the last one with the daemon.
    daemon.umount("a");
    daemon.umount(pairs[1].1.1.to_str().unwrap());
    wait_until("no process uses it", || unmount(&pairs[2].1.1, UnmountFlags::empty()).is_ok());
    wait_until("the third is gone", || daemon.states() == [("d".to_owned(), "mounted".to_owned())]);
    daemon.run(["umount", "a"]).expect(5, &["not mounted"]);
    // An unmounted source can be mounted again at once.
    daemon.mount(&pairs[0].1.0, &pairs[0].1.1, "again");
    assert_written(&pairs[0].1.1, "a");
    daemon.end();
    for (name, (source, mountpoint)) in &pairs {
        assert_written(source, name);
        assert!(!is_mounted(mountpoint));
    }
    assert!(!scratch.arena("daemon").exists());
}

#[test]
fn a_list_of_volumes_shows_their_labels() {
    need_fuse();
    let scratch = Scratch::new();
    let [(source, mountpoint), (other, at)] = ["a", "b"].map(|name| scratch.pair(name));
    let daemon = Daemon::start(&scratch, &(table("a", &source, &mountpoint) + "label = \"of the file\"\n"));
    let words = ["mount", "--daemon", other.to_str().unwrap(), at.to_str().unwrap(), "--name", "b", "--label"];
    daemon.run(words.into_iter().chain(["two\nlines"])).expect(2, &["--label", "1 to 64 characters"]);
    daemon.run(words.into_iter().chain(["of the line"])).expect(0, &[]);
    daemon.run(["ls"]).expect(0, &["(of the file)", "(of the line)"]);
    let labels =
        daemon.json("ls")["volumes"].as_array().unwrap().iter().map(|volume| volume["label"].clone()).collect();
    assert_eq!(serde_json::Value::Array(labels), serde_json::json!(["of the file", "of the line"]));
    daemon.end();
}

#[test]
fn all_are_unmounted_or_synced_at_once() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let pairs: Vec<_> = (0..20).map(|number| scratch.pair(&format!("v{number}"))).collect();
    for (number, (source, mountpoint)) in pairs.iter().enumerate() {
        daemon.mount(source, mountpoint, &format!("v{number}"));
        write(mountpoint, "x");
    }
    daemon.run(["sync", "--all"]).expect(0, &[]);
    pairs.iter().for_each(|(source, _)| assert_written(source, "x"));
    daemon.run_when_free(["umount", "--all"]).expect(0, &[]);
    assert!(daemon.states().is_empty());
    daemon.end();
}

/// The daemon resolves a name or a path; the registry of the user knows what it does not have.
#[test]
fn a_volume_is_found_by_its_name_and_by_any_path_to_its_mount_point() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let (source, mountpoint) = scratch.pair("a");
    daemon.mount(&source, &mountpoint, "named");
    let link = scratch.path.join("link");
    symlink(&mountpoint, &link).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let paths = [text(&mountpoint), text(&mountpoint) + "/", text(&mountpoint.join("../a-mount")), text(&link)];
    write(&mountpoint, "x");
    for word in paths.iter().map(String::as_str).chain(["named"]) {
        daemon.run(["status", word]).expect(0, &["mounted", &text(&source)]);
        daemon.run(["sync", word]).expect(0, &[]);
        daemon.run(["set", word, "dontcache=off"]).expect(0, &[]);
    }
    for verb in ["status", "sync", "umount"] {
        daemon.run([verb, "other"]).expect(5, &["other is not mounted", "slackwater ls"]);
    }
    let (other_source, other) = scratch.pair("other");
    let mut mount = scratch.mount(&other_source, &other, &[]);
    daemon.umount(&text(&other));
    mount.wait().expect(0, &[]);
    daemon.umount(&text(&link));
    assert!(daemon.states().is_empty());
    assert_written(&source, "x");
    daemon.end();
}

#[test]
fn a_volume_has_mount_points_that_are_unmounted_alone_or_with_its_name() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let (source, mountpoint) = scratch.pair("a");
    let [second, third] = ["second", "third"].map(|name| scratch.dir(name, 0o755));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    daemon.mount(&source, &mountpoint, "a");
    daemon.run(["mount", "--daemon", &text(&source), &text(&second)]).expect(0, &["as a."]);
    scratch.run(["mount", &text(&source), &text(&third)]).expect(0, &["one more mount point"]);
    write(&mountpoint, "x");
    assert_written(&third, "x");
    daemon.run(["status", &text(&second)]).expect(0, &[&text(&mountpoint), &text(&third)]);
    daemon.umount(&text(&mountpoint));
    assert_written(&second, "x");
    scratch.umount(&third);
    assert_eq!(daemon.states().len(), 1);
    daemon.run(["mount", "--daemon", &text(&source), &text(&third)]).expect(0, &["as a."]);
    daemon.umount("a");
    assert!(daemon.states().is_empty() && !is_mounted(&second) && !is_mounted(&third));
    assert_written(&source, "x");
    daemon.end();
}

#[test]
fn a_volume_in_use_is_unmounted_only_by_force_or_lazily() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let (forced, lazy) = (scratch.pair("forced"), scratch.pair("lazy"));
    daemon.mount(&forced.0, &forced.1, "forced");
    daemon.mount(&lazy.0, &lazy.1, "lazy");
    write(&forced.1, "x");
    write(&lazy.1, "y");
    let held = fs::File::open(lazy.1.join("file")).unwrap();
    let used = fs::File::open(forced.1.join("file")).unwrap();
    assert_eq!(daemon.states(), ["forced", "lazy"].map(|name| (name.to_owned(), "mounted".to_owned())));
    let pid = std::process::id().to_string();
    daemon.run(["umount", "forced"]).expect(3, &["in use", &pid]);
    daemon.run(["umount", "forced", "--force"]).expect(0, &[]);
    assert_written(&forced.0, "x");
    drop(used);

    daemon.run(["umount", "lazy", "--lazy"]).expect(0, &[]);
    wait_unmounted(&lazy.1);
    assert_eq!(daemon.states(), [("lazy".to_owned(), "elsewhere".to_owned())]);
    assert_eq!(std::io::read_to_string(&held).unwrap(), "y");
    drop(held);
    wait_until("the last user lets it end", || daemon.states().is_empty());
    assert_written(&lazy.0, "y");
    daemon.end();
}

/// The kernel does not report such a rename to readers of the mount table.
#[test]
fn a_volume_is_elsewhere_while_a_folder_above_it_has_another_name() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let (source, folder) = scratch.pair("a");
    let (mountpoint, renamed) = (folder.join("mnt"), folder.with_file_name("renamed"));
    fs::create_dir(&mountpoint).unwrap();
    daemon.mount(&source, &mountpoint, "a");
    let is = |state: &str| daemon.states() == [("a".to_owned(), state.to_owned())];
    assert!(is("mounted"));
    fs::rename(&folder, &renamed).unwrap();
    wait_until("it is known to be elsewhere", || is("elsewhere"));
    fs::rename(&renamed, &folder).unwrap();
    wait_until("it is known to be back", || is("mounted"));
    daemon.end();
}

#[test]
fn changed_settings_apply_at_once() {
    need_fuse();
    let scratch = Scratch::new();
    let config = "tenant-by = \"uid\"\n[tenants.\"uid:1234\"]\nlimit = \"8MiB\"\n";
    let daemon = Daemon::start(&scratch, config);
    let (source, mountpoint) = scratch.pair("a");
    fs::set_permissions(&source, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    daemon.mount(&source, &mountpoint, "a");
    let write_as = |name: &str| {
        let file = mountpoint.join(name);
        let script = format!("echo x > {}", file.display());
        let words = ["--reuid", "1234", "--regid", "1234", "--clear-groups", "sh", "-c", &script];
        let status = std::process::Command::new("setpriv").args(words).status().unwrap();
        assert!(status.success());
    };
    let limit = || {
        let tenants = daemon.json("tenants");
        let all = tenants["tenants"].as_array().unwrap();
        all.iter().find(|tenant| tenant["name"] == "uid:1234").unwrap()["limit_bytes"].clone()
    };
    write_as("one");
    assert_eq!(limit(), 8 << 20);
    daemon.run(["set", "--tenant", "uid:1234", "limit=4MiB", "dontcache=on"]).expect(0, &[]);
    assert_eq!(limit(), 4 << 20);
    daemon.run(["set", "--tenant", "uid:1234", "limit=none"]).expect(0, &[]);
    assert!(limit().is_null());
    daemon.run(["set", "a", "dontcache=on"]).expect(0, &[]);
    write_as("two");
    daemon.run(["set", "a", "dontcache=off"]).expect(0, &[]);

    let unlimited = daemon.share_of("a");
    daemon.run(["set", "a", "dirty-limit=2MiB", "dirty-expire=1s"]).expect(0, &[]);
    assert_eq!(daemon.share_of("a"), 2 << 20);
    fs::write(mountpoint.join("soon"), "x").unwrap();
    wait_until("a second has passed", || fs::read(source.join("soon")).is_ok_and(|bytes| bytes == b"x"));
    daemon.run(["set", "a", "dirty-limit=none", "dirty-expire=none"]).expect(0, &[]);
    assert_eq!(daemon.share_of("a"), unlimited);

    daemon.run(["set", "a", "dontcache=1"]).expect(2, &["neither on nor off"]);
    daemon.run(["set", "a", "dirty-limit=4KiB"]).expect(2, &["dirty-limit=4KiB", "at least 1MiB"]);
    daemon.run(["set", "a", "dirty-expire=soon"]).expect(2, &["dirty-expire=soon", "30s"]);
    daemon.run(["set", "a", "colour=blue"]).expect(2, &["colour"]);
    daemon.run(["set", "a"]).expect(2, &["no setting given"]);
    daemon.run(["set", "none", "dontcache=on"]).expect(5, &["none"]);
    daemon.run(["set", "--tenant", "/cgroup", "limit=1MiB"]).expect(2, &["/cgroup"]);
    daemon.run(["set", "--tenant", "uid:1234", "limit=lots"]).expect(2, &["lots"]);
    daemon.end();
    assert!(source.join("one").exists() && source.join("two").exists());
}

#[test]
fn a_source_is_mounted_once_whatever_path_leads_to_it() {
    need_fuse();
    let scratch = Scratch::new();
    let daemon = Daemon::start(&scratch, "");
    let (source, mountpoint) = scratch.pair("a");
    fs::create_dir(source.join("inner")).unwrap();
    let link = scratch.path.join("link");
    symlink(&source, &link).unwrap();
    let other = scratch.dir("other", 0o755);
    daemon.mount(&link, &mountpoint, "a");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let try_mount =
        |from: &Path, at: &Path, name: &str| daemon.run(["mount", "--daemon", &text(from), &text(at), "--name", name]);
    try_mount(&source, &other, "b").expect(3, &["already mounted"]);
    try_mount(&source.join("inner"), &other, "b").expect(3, &["is inside"]);
    try_mount(&scratch.path, &other, "b").expect(2, &["inside the source"]);
    try_mount(&other, &mountpoint, "b").expect(3, &["already a mount point"]);
    // A mount by another process is refused as well.
    scratch.run(["mount", &text(&source), &text(&other), "--cache", "16MiB"]).expect(3, &["already mounted"]);
    assert_eq!(daemon.states().len(), 1);
    daemon.end();
}

/// The last references are dropped some milliseconds after the answer.
#[test]
fn an_unmounted_volume_keeps_neither_its_source_open_nor_a_mark() {
    need_fuse();
    let scratch = Scratch::new();
    let (root, mountpoint) = scratch.pair("a");
    let daemon = Daemon::start(&scratch, "");
    for _ in 0..10 {
        mount("tmpfs", &root, "tmpfs", MountFlags::empty(), Some(c"size=8m")).unwrap();
        let source = root.join("source");
        fs::create_dir(&source).unwrap();
        daemon.mount(&source, &mountpoint, "a");
        write(&mountpoint, "tide");
        daemon.umount("a");
        assert_written(&source, "tide");
        wait_until("nothing holds the source", || unmount(&root, UnmountFlags::empty()).is_ok());
    }
    daemon.end();
    let left = fs::read_dir(scratch.path.join("run")).unwrap().map(|file| file.unwrap().file_name());
    let marks: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with(".unsynced")).collect();
    assert_eq!(marks, [""; 0], "everything was made durable");
}
