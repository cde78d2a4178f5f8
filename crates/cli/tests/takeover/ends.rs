//! How a kept mount ends: in order, with its keeper, or because no server can be had.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::kept::{Kept, children};
use crate::bytes;
use crate::rig::{PATIENCE, Process, Scratch, need_fuse, run, wait_until};

#[test]
fn signals_to_the_keeper_write_everything_back_and_unmount() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut kept = Kept::new(&["--dirty-expire", "1h"]);
        fs::write(kept.mountpoint.join("file"), bytes(3, 5 << 20)).unwrap();
        kept.replace_server();
        kept.mount.process.signal(signal);
        kept.mount.wait().expect(0, &["everything is written back"]);
        assert!(fs::read(kept.source.join("file")).unwrap() == bytes(3, 5 << 20));
        assert!(!kept.scratch.arena("a-mount").exists());
        kept.scratch.run(["status"]).expect(0, &["Nothing is mounted"]);
    }
}

#[test]
fn a_signal_during_the_pause_reaches_the_successor() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    fs::write(kept.mountpoint.join("file"), "content").unwrap();
    kill_process(kept.keeper(), Signal::STOP).unwrap();
    kept.kill_server();
    kept.mount.process.signal(Signal::TERM);
    kill_process(kept.keeper(), Signal::CONT).unwrap();
    kept.mount.wait().expect(0, &["everything is written back"]);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"content");
}

#[test]
fn umount8_ends_the_keeper_too() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    fs::write(kept.mountpoint.join("file"), "content").unwrap();
    kept.replace_server();
    wait_until("no process uses it", || unmount(&kept.mountpoint, UnmountFlags::empty()).is_ok());
    kept.mount.wait().expect(0, &["everything is written back"]);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"content");
}

#[test]
fn a_source_can_be_mounted_again_as_soon_as_it_is_unmounted() {
    let mut kept = Kept::new(&[]);
    for _ in 0..3 {
        kept.replace_server();
        // Without a wait for the end of the keeper.
        kept.scratch.umount(&kept.mountpoint);
        let again = kept.scratch.mount(&kept.source, &kept.mountpoint, &["--keep"]);
        let mut before = std::mem::replace(&mut kept.mount, again);
        before.wait().expect(0, &["everything is written back"]);
        // It must not unmount the new one.
        std::mem::forget(before);
    }
    kept.umount().expect(0, &[]);
}

#[test]
fn a_mount_goes_on_without_its_keeper_and_says_so() {
    let kept = Kept::new(&["--dirty-expire", "1h"]);
    let path = kept.mountpoint.join("file");
    fs::write(&path, "before").unwrap();
    let open = fs::File::open(&path).unwrap();
    kill_process(kept.keeper(), Signal::KILL).unwrap();
    wait_until("the server has noticed", || kept.status()["kept"]["is_kept"].as_bool() == Some(false));
    kept.run(&["status"]).expect(0, &["NOT KEPT ANY MORE"]);
    kept.mount.wait_said("nothing is kept any more", 1);
    // Files that are removed while they are open are not kept either.
    fs::remove_file(&path).unwrap();
    drop(open);
    fs::write(&path, "after").unwrap();
    kept.run(&["restart"]).expect(2, &["is not kept"]);
    kept.scratch.umount(&kept.mountpoint);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"after");
}

#[test]
fn a_server_that_dies_before_it_has_mounted_leaves_nothing() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (from, to, arena) = (source.to_str().unwrap(), mountpoint.to_str().unwrap(), scratch.arena("a"));
    let words = ["mount", "--keep", from, to, "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
    let command = scratch.command(words);
    // The server takes this lock before it mounts.
    let lock = fs::File::create(scratch.path.join("run/lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let killing = thread::spawn({
        let log = scratch.path.join("pid");
        move || -> Option<Pid> {
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline {
                let keeper = fs::read_to_string(&log).ok().and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?));
                if let Some(server) = keeper.and_then(|keeper| children(keeper).first().copied()) {
                    kill_process(server, Signal::KILL).unwrap();
                    // A child that another test starts may have a copy of the descriptor.
                    flock(&lock, FlockOperation::Unlock).unwrap();
                    return Some(server);
                }
                thread::sleep(Duration::from_micros(200));
            }
            None
        }
    });
    // The shell becomes the keeper.
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", r#"echo $$ > "$0"; exec "$@""#]).arg(scratch.path.join("pid")).arg(program).args(arguments);
    shell.env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run"));
    let output = run(shell);
    assert!(killing.join().unwrap().is_some(), "the keeper has started no server");
    output.expect(1, &["the mount process", "was killed by signal 9"]);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(to), "{mounts}");
    assert!(fs::read_dir(&mountpoint).unwrap().next().is_none());
    // Nothing is in the way of the next one.
    let mount = scratch.mount(&source, &mountpoint, &[]);
    scratch.umount(&mountpoint);
    drop(mount);
}

#[test]
fn a_mount_is_given_up_after_ten_servers_that_fail_and_its_data_is_kept() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    fs::write(kept.mountpoint.join("file"), "content").unwrap();
    let away = kept.scratch.path.join("away");
    fs::rename(&kept.source, &away).unwrap();
    kept.kill_server();
    let output = kept.mount.wait();
    output.expect(1, &["the mount process failed 10 times in a row", "is given up", "mount", "again to write it back"]);
    assert_eq!(output.text.matches("another one takes over").count(), 10, "{}", output.text);
    fs::rename(&away, &kept.source).unwrap();
    kept.scratch.status_after_death().expect(0, &["which died"]);

    let again = kept.scratch.mount(&kept.source, &kept.mountpoint, &[]);
    assert_eq!(fs::read(kept.mountpoint.join("file")).unwrap(), b"content");
    kept.scratch.umount(&kept.mountpoint);
    drop(again);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"content");
}

/// Ten such kills in a row ended the mount.
#[test]
fn a_mount_outlives_servers_that_are_killed_before_they_serve() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    fs::write(kept.mountpoint.join("file"), "content").unwrap();
    let mut server = kept.kill_server();
    for _ in 0..15 {
        server = kept.server(Some(server));
        kill_process(server, Signal::KILL).unwrap();
    }
    assert_eq!(fs::read(kept.mountpoint.join("file")).unwrap(), b"content");
    kept.umount().expect(0, &["was killed by signal 9", "everything is written back"]);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"content");
}

/// The crash comes when nothing can be taken over any more.
#[test]
fn a_server_that_dies_while_it_flushes_after_an_unmount_leaves_the_data_to_the_next_mount() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    fs::write(kept.mountpoint.join("file"), bytes(5, 1 << 20)).unwrap();
    let server = kept.server(None);
    kill_process(server, Signal::STOP).unwrap();
    let to = kept.mountpoint.to_str().unwrap();
    let mut detaching = Process::spawn(std::process::Command::new("umount").args(["-l", to]));
    thread::sleep(Duration::from_millis(100));
    kill_process(server, Signal::KILL).unwrap();
    detaching.wait();
    let output = kept.mount.wait();
    assert!(matches!(output.code, Some(0 | 1)), "{output:?}");
    if output.code == Some(1) {
        let again = kept.scratch.mount(&kept.source, &kept.mountpoint, &[]);
        kept.scratch.umount(&kept.mountpoint);
        drop(again);
    }
    assert!(fs::read(kept.source.join("file")).unwrap() == bytes(5, 1 << 20));
}
