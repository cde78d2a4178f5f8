//! From mount to unmount.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::bytes;
use crate::rig::{
    NOT_MOUNTED, Scratch, need_fuse, run, slackwater, umount_when_free, wait_for_a_later_time, wait_until,
};

fn status(scratch: &Scratch) -> serde_json::Value {
    let output = scratch.run(["status", "--json"]);
    output.expect(0, &[]);
    serde_json::from_str(&output.text).unwrap()
}

/// Creates a tree with every kind of entry.
fn write_tree(dir: &Path) {
    fs::create_dir_all(dir.join("deep/er")).unwrap();
    for number in 0..20 {
        fs::write(dir.join(format!("deep/er/{number}")), bytes(number, (number as usize) * 7000)).unwrap();
    }
    fs::write(dir.join("large"), bytes(99, 9 << 20)).unwrap();
    fs::set_permissions(dir.join("large"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("large", dir.join("link")).unwrap();
    fs::hard_link(dir.join("large"), dir.join("hard")).unwrap();
    fs::rename(dir.join("deep/er/3"), dir.join("renamed")).unwrap();
    fs::remove_file(dir.join("deep/er/4")).unwrap();
}

/// Every path with its mode and content.
fn listing(dir: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = match () {
                () if metadata.is_dir() => Vec::new(),
                () if metadata.is_symlink() => fs::read_link(&path).unwrap().to_str().unwrap().into(),
                () => fs::read(&path).unwrap(),
            };
            found.push((path.strip_prefix(dir).unwrap().display().to_string(), metadata.mode(), content));
            if metadata.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn an_unmount_waits_for_a_mount_that_is_still_starting() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    for _ in 0..10 {
        let name = mountpoint.to_str().unwrap();
        let arena = scratch.arena("a-mount");
        let arguments =
            ["mount", source.to_str().unwrap(), name, "--cache", "64MiB", "--arena", arena.to_str().unwrap()];
        let starting = scratch.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut mounting = starting.unwrap();
        // Asks from the moment on at which there is a process to ask.
        wait_until("it is on the list", || {
            let asked = umount_when_free(|| {
                let asked = scratch.run(["umount", name]);
                assert!(!asked.is_busy() || asked.text.contains("in use"), "{}", asked.text);
                asked
            });
            let is_listed = asked.code != Some(NOT_MOUNTED);
            if is_listed {
                asked.expect(0, &[]);
            }
            is_listed
        });
        assert!(mounting.wait().unwrap().success());
    }
}

#[test]
fn written_data_is_in_the_source_after_the_unmount() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut mount = scratch.mount(&source, &mountpoint, &[]);
    write_tree(&mountpoint);
    let seen = listing(&mountpoint);
    scratch.umount(&mountpoint);
    // When umount returns, everything has been released.
    scratch.run(["status"]).expect(0, &["Nothing is mounted"]);
    assert!(!scratch.arena("a-mount").exists() && fs::read_dir(&mountpoint).unwrap().next().is_none());
    mount.wait().expect(0, &["Unmounted", "everything is written back"]);
    let expected = scratch.dir("expected", 0o755);
    write_tree(&expected);
    let expected = listing(&expected);
    let names = |list: &[(String, u32, Vec<u8>)]| list.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&seen), names(&expected));
    assert!(seen == expected, "the mount showed something else");
    assert!(listing(&source) == expected, "the source differs");
}

#[test]
fn old_data_is_written_back_in_the_background() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let _mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "200ms"]);
    fs::write(mountpoint.join("file"), bytes(1, 100_000)).unwrap();
    wait_until("the data is written back", || {
        fs::read(source.join("file")).is_ok_and(|found| found == bytes(1, 100_000))
    });
}

#[test]
fn sync_writes_everything_back_and_status_shows_it() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let _mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::write(mountpoint.join("file"), bytes(1, 1 << 20)).unwrap();
    let before = status(&scratch);
    let mount = &before["mounts"][0];
    assert_eq!((mount["dirty_bytes"].as_u64(), mount["phase"].as_str()), (Some(1 << 20), Some("mounted")), "{before}");
    assert!(mount["oldest_ms"].is_u64() && mount["failures"] == 0 && mount["share_bytes"].is_u64(), "{before}");
    assert!(mount["reads"]["hits"].is_u64() && mount["writers"]["parked"] == 0, "{before}");
    let shrinker = &mount["shrinkers"][0];
    assert!(shrinker["name"].as_str().is_some_and(|name| name.starts_with("sb-") && name.ends_with("-0")), "{before}");
    assert!(shrinker["count"].is_u64() && shrinker["deferred"].is_u64(), "{before}");
    let pressure = &mount["memory_pressure"];
    assert!(pressure["events"].is_u64() && pressure["freed_objects"].is_u64(), "{before}");
    assert!(pressure["sources"].is_array(), "{before}");
    scratch.run(["sync", mountpoint.to_str().unwrap()]).expect(0, &[]);
    assert!(fs::read(source.join("file")).unwrap() == bytes(1, 1 << 20));
    let after = status(&scratch);
    assert_eq!(after["mounts"][0]["bytes_left"].as_u64(), Some(0), "{after}");
    assert_eq!(after["mounts"][0]["written_bytes"].as_u64(), Some(1 << 20), "{after}");
    assert!(after["mounts"][0]["oldest_ms"].is_null(), "{after}");
    let text = scratch.run(["status", mountpoint.to_str().unwrap()]);
    text.expect(0, &["unwritten: 0 B", "written back since the mount: 1.0 MiB"]);
}

#[test]
fn the_announced_command_unmounts_whatever_its_path_is() {
    need_fuse();
    let scratch = Scratch::new();
    for name in ["plain", "it's \"my\" $mount", "two\nlines"] {
        let (source, mountpoint) = scratch.pair(name);
        let mut mount = scratch.mount(&source, &mountpoint, &[]);
        let command = mount.announcement.split_once("or with: ").unwrap().1.trim_end();
        assert_eq!(command.lines().count(), 1, "{command}");
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", command]).env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run"));
        crate::rig::run(shell).expect(0, &[]);
        mount.wait().expect(0, &["Unmounted"]);
    }
}

#[test]
fn a_mount_in_the_background_outlives_its_command_and_its_terminal() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let arena = scratch.arena("a");
    let mut words = vec!["mount", "--background", "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
    words.extend([source.to_str().unwrap(), mountpoint.to_str().unwrap()]);
    scratch.run(words).expect(0, &["Mounted", "Unmount with: "]);
    let pid = status(&scratch)["mounts"][0]["pid"].as_u64().unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::HUP).unwrap();
    fs::write(mountpoint.join("file"), "still here").unwrap();
    // A second mount of the same source is one more mount point, and its command ends at once.
    let other = scratch.dir("other", 0o755);
    let again = ["mount", "--background", source.to_str().unwrap(), other.to_str().unwrap()];
    scratch.run(again).expect(0, &["one more mount point"]);
    assert_eq!(fs::read(other.join("file")).unwrap(), b"still here");
    scratch.umount(&other);
    scratch.umount(&mountpoint);
    assert_eq!(fs::read(source.join("file")).unwrap(), b"still here");
    wait_until("the process has ended", || !Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn the_mount_helper_mounts() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    fs::write(source.join("file"), "read me").unwrap();
    let helper = scratch.path.join("mount.slackwater");
    std::os::unix::fs::symlink(slackwater(), &helper).unwrap();
    let mut command = Command::new(&helper);
    let options = format!("ro,nodev,cache=32MiB,_netdev,arena={}", scratch.arena("a").display());
    command.args([&source, &mountpoint]).args(["-o", &options]).stdin(Stdio::null());
    command.env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run"));
    run(command).expect(0, &[]);
    assert_eq!(fs::read(mountpoint.join("file")).unwrap(), b"read me");
    let refused = fs::write(mountpoint.join("file"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    scratch.umount(&mountpoint);
}

#[test]
fn umount2_by_another_program_loses_nothing() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h", "--dirty-ratio", "50"]);
    fs::write(mountpoint.join("file"), bytes(5, 12 << 20)).unwrap();
    wait_until("no process uses it", || unmount(&mountpoint, UnmountFlags::empty()).is_ok());
    mount.wait().expect(0, &["everything is written back"]);
    assert!(fs::read(source.join("file")).unwrap() == bytes(5, 12 << 20));
    assert!(!scratch.arena("a-mount").exists());
}

#[test]
fn a_busy_volume_stays_mounted_and_the_message_names_its_users() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let _mount = scratch.mount(&source, &mountpoint, &[]);
    let mut file = fs::File::create(mountpoint.join("file")).unwrap();
    file.write_all(b"one").unwrap();
    let own = format!("pid {}", std::process::id());
    let path = mountpoint.join("file");
    scratch.run(["umount", mountpoint.to_str().unwrap()]).expect(3, &[&own, path.to_str().unwrap(), "--force"]);
    file.write_all(b"two").unwrap();
    drop(file);
    scratch.umount(&mountpoint);
    assert_eq!(fs::read(source.join("file")).unwrap(), b"onetwo");
}

#[test]
fn force_keeps_what_was_written_and_fails_what_comes_after() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let _mount = scratch.mount(&source, &mountpoint, &[]);
    let mut file = fs::File::create(mountpoint.join("file")).unwrap();
    file.write_all(b"kept").unwrap();
    scratch.run(["umount", "--force", mountpoint.to_str().unwrap()]).expect(0, &[]);
    file.write_all(b"too late").unwrap_err();
    assert_eq!(fs::read(source.join("file")).unwrap(), b"kept");
}

#[test]
fn a_volume_with_nothing_to_flush_needs_no_time() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::write(mountpoint.join("file"), bytes(1, 1 << 20)).unwrap();
    scratch.run(["sync", mountpoint.to_str().unwrap()]).expect(0, &[]);
    scratch.umount_with(&mountpoint, &["--deadline", "0s"]);
    assert!(fs::read(source.join("file")).unwrap() == bytes(1, 1 << 20));
    drop(mount);
}

#[test]
fn discard_lists_what_it_drops_and_needs_a_yes() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::create_dir(mountpoint.join("dir")).unwrap();
    fs::write(mountpoint.join("dir/lost"), bytes(1, 64 << 10)).unwrap();
    let mountpoint = mountpoint.to_str().unwrap();
    let lost = source.join("dir/lost");
    let lost = lost.to_str().unwrap();
    scratch.run(["umount", "--discard", mountpoint]).expect(2, &["LOST", "64.0 KiB", lost, "--yes"]);
    scratch.run(["status", mountpoint]).expect(0, &["mounted"]);
    scratch.run_when_free(["umount", "--discard", "--yes", mountpoint]).expect(0, &["LOST", "64.0 KiB", lost]);
    assert_ne!(fs::read(lost).unwrap(), bytes(1, 64 << 10));
    // The data is discarded for good: the next mount does not recover it.
    assert!(!scratch.arena("a-mount").exists());
    mount.wait().expect(0, &["Unmounted"]);
}

#[test]
fn umount_frees_the_mount_point_of_a_dead_process_and_reports_its_death() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::write(mountpoint.join("file"), bytes(1, 100_000)).unwrap();
    mount.kill();
    fs::read_dir(&mountpoint).unwrap_err();
    let arena = scratch.arena("a-mount");
    let words = ["died", arena.to_str().unwrap(), "again"];
    scratch.run(["sync", mountpoint.to_str().unwrap()]).expect(1, &words);
    scratch.run(["umount", mountpoint.to_str().unwrap()]).expect(1, &words);
    assert!(fs::read_dir(&mountpoint).unwrap().next().is_none(), "the directory below is visible again");
    scratch.run(["umount", mountpoint.to_str().unwrap()]).expect(5, &words);
    scratch.run(["status"]).expect(0, &words);
    let again = scratch.mount(&source, &mountpoint, &[]);
    assert!(fs::read(source.join("file")).unwrap() == bytes(1, 100_000));
    scratch.umount(&mountpoint);
    drop(again);
}

/// While a file is open for writing, Linux does not run it.
#[test]
fn a_program_copied_through_the_mount_runs_from_the_source_once_it_is_written_back() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    let copied = Command::new("cp").args(["-p", "/bin/true"]).arg(mountpoint.join("program")).status().unwrap();
    assert!(copied.success());
    scratch.run(["sync", mountpoint.to_str().unwrap()]).expect(0, &[]);
    crate::rig::wait_until("it can be run", || {
        Command::new(source.join("program")).status().is_ok_and(|status| status.success())
    });
    scratch.umount(&mountpoint);
    drop(mount);
}

/// Backups look for files whose ctime is later than the last run. No system call sets the ctime of the source's file,
/// so after a mount it is the time of the write-back. It is never earlier than the one shown before.
#[test]
fn ctime_changes_with_every_change_and_never_goes_backwards() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let ctime = |path: &Path| fs::metadata(path).map(|status| (status.ctime(), status.ctime_nsec())).unwrap();
    let path = mountpoint.join("file");
    let mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::write(&path, "text").unwrap();
    let mut last = ctime(&path);
    let changes: [&dyn Fn(); 6] = [
        &|| fs::write(&path, "longer text").unwrap(),
        &|| OpenOptions::new().append(true).open(&path).unwrap().write_all(b"!").unwrap(),
        &|| OpenOptions::new().write(true).open(&path).unwrap().set_len(3).unwrap(),
        &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap(),
        &|| fs::hard_link(&path, mountpoint.join("link")).unwrap(),
        &|| File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap(),
    ];
    for (nth, change) in changes.iter().enumerate() {
        wait_for_a_later_time(last);
        change();
        let changed = ctime(&path);
        assert!(changed > last, "change {nth}: {changed:?} after {last:?}");
        last = changed;
    }
    scratch.run(["sync", mountpoint.to_str().unwrap()]).expect(0, &[]);
    let synced = ctime(&path);
    assert!(synced >= last, "{synced:?} after {last:?}");
    scratch.umount(&mountpoint);
    drop(mount);
    let in_the_source = ctime(&source.join("file"));
    let again = scratch.mount(&source, &mountpoint, &[]);
    assert_eq!(ctime(&path), in_the_source);
    assert!(in_the_source >= synced, "{in_the_source:?} after {synced:?}");
    scratch.umount(&mountpoint);
    drop(again);
}
