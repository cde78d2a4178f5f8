//! The commands, while a mount is taken over and after that.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use super::kept::Kept;
use crate::rig::{PATIENCE, Process, Scratch, free_address, need_fuse, wait_until};

#[test]
fn status_shows_who_keeps_a_mount_and_how_often_it_was_taken_over() {
    let mut kept = Kept::new(&[]);
    let first = kept.status();
    assert_eq!(first["kept"]["keeper"].as_i64(), Some(i64::from(kept.keeper().as_raw_nonzero().get())), "{first}");
    assert_eq!(first["kept"]["is_kept"].as_bool(), Some(true), "{first}");
    assert_eq!(first["kept"]["takeovers"].as_u64(), Some(0), "{first}");
    kept.run(&["status"]).expect(0, &["kept by pid", "this is its first process"]);

    kept.replace_server();
    let second = kept.status();
    assert_eq!(second["kept"]["takeovers"].as_u64(), Some(1), "{second}");
    assert!(second["kept"]["last_pause_ms"].as_u64().is_some(), "{second}");
    assert_ne!(second["pid"], first["pid"]);
    let server = i64::from(kept.server(None).as_raw_nonzero().get());
    assert_eq!(second["pid"].as_i64(), Some(server), "the present process: {second}");
    kept.run(&["status"]).expect(0, &["taken over 1 times", "with a pause of"]);
    kept.umount().expect(0, &["everything is written back"]);
}

/// The keeper is stopped for a while, so that nothing serves the mount.
#[test]
fn commands_during_the_pause_are_answered_by_the_successor() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    fs::write(kept.mountpoint.join("file"), "content").unwrap();
    for words in [vec!["status"], vec!["sync"], vec!["umount", "--deadline", "60s"]] {
        kill_process(kept.keeper(), Signal::STOP).unwrap();
        kept.kill_server();
        let words = [&words[..], &[kept.mountpoint.to_str().unwrap()]].concat();
        let mut asked = Process::spawn(kept.scratch.command(&words).stdout(Stdio::null()).stderr(Stdio::null()));
        thread::sleep(Duration::from_millis(300));
        assert!(asked.0.try_wait().unwrap().is_none(), "{words:?} does not wait");
        kill_process(kept.keeper(), Signal::CONT).unwrap();
        assert_eq!(asked.wait().code(), Some(0), "{words:?}");
    }
    kept.mount.wait().expect(0, &["everything is written back"]);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"content");
}

#[test]
fn a_command_whose_server_dies_is_answered_by_the_next_one() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    fs::write(kept.mountpoint.join("file"), "content").unwrap();
    // A stopped server takes the connection, and no answer comes from it.
    let server = kept.server(None);
    kill_process(server, Signal::STOP).unwrap();
    let words = ["sync", kept.mountpoint.to_str().unwrap()];
    let mut asked = Process::spawn(kept.scratch.command(words).stdout(Stdio::null()).stderr(Stdio::null()));
    thread::sleep(Duration::from_millis(200));
    kill_process(server, Signal::KILL).unwrap();
    assert_eq!(asked.wait().code(), Some(0));
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"content");
    kept.umount().expect(0, &[]);
}

/// The data of a removed file is only in the process that wrote it.
#[test]
fn p02_a_restart_is_refused_while_removed_files_are_not_copied() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    fs::write(kept.mountpoint.join("file"), "content").unwrap();
    fs::remove_file(kept.source.join("file")).unwrap();
    kept.run(&["sync"]).expect(1, &["1 file with 7 B had been removed in"]);
    kept.run(&["restart"]).expect(3, &["would not have the data", "1 file with 7 B had been removed in"]);
    kept.run(&["sync"]).expect(6, &["slackwater-conflict-"]);
    kept.run(&["restart"]).expect(0, &["Restarted"]);
    kept.umount().expect(0, &[]);
}

#[test]
fn a_restart_replaces_the_process_and_closes_nothing() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    let mut file = File::create(kept.mountpoint.join("file")).unwrap();
    for nth in 0..5 {
        write!(file, "{nth}").unwrap();
        let before = kept.status()["pid"].clone();
        kept.run(&["restart"]).expect(0, &["Restarted", "programs waited for"]);
        assert_ne!(kept.status()["pid"], before);
    }
    write!(file, "!").unwrap();
    drop(file);
    assert_eq!(kept.takeovers(), 5);
    kept.umount().expect(0, &["everything is written back"]);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"01234!");
}

#[test]
fn only_a_kept_mount_can_be_restarted() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &[]);
    scratch.run(["restart", mountpoint.to_str().unwrap()]).expect(2, &["is not kept", "--keep"]);
    scratch.run(["restart", "--all"]).expect(0, &[]);
    scratch.umount(&mountpoint);
    drop(mount);
}

#[test]
fn metrics_are_served_by_the_successor() {
    let address = free_address().to_string();
    let mut kept = Kept::new(&["--metrics", &address]);
    (0..3).for_each(|_| kept.replace_server());
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    std::io::Read::read_to_string(&mut stream, &mut page).unwrap();
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(&format!("slackwater_volume_takeover{name}{{")));
        let value = line.and_then(|line| line.rsplit_once(' ')).unwrap_or_else(|| panic!("{page}")).1;
        value.parse().unwrap()
    };
    let pauses = ["_last", "_longest"].map(|which| value(&format!("{which}_pause_seconds")));
    assert_eq!(value("s_total"), 3.0);
    assert!(pauses[0] > 0.0 && pauses[0] <= pauses[1] && pauses[1] < 60.0, "{pauses:?}");
    let status = kept.status();
    let ms = ["last_pause_ms", "longest_pause_ms"].map(|which| status["kept"][which].as_f64().unwrap() / 1000.0);
    assert_eq!(ms, pauses, "{status}");
    kept.umount().expect(0, &[]);
}

#[test]
fn a_kept_mount_in_the_background_logs_its_takeovers() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (from, to) = (source.to_str().unwrap(), mountpoint.to_str().unwrap());
    let arena = scratch.arena("a");
    let words = ["mount", "--keep", "--background", from, to, "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
    let ending = EndingAll(&scratch);
    scratch.run(words).expect(0, &["Mounted", "Unmount with"]);
    fs::write(mountpoint.join("file"), "content").unwrap();
    let entry = |of: &Scratch| {
        let mut entries = fs::read_dir(of.path.join("run")).unwrap().map(|entry| entry.unwrap().path());
        let path = entries.find(|path| path.extension().is_some_and(|kind| kind == "json")).unwrap();
        let entry = serde_json::from_slice::<serde_json::Value>(&fs::read(&path).unwrap()).unwrap();
        (path, i32::try_from(entry["pid"].as_i64().unwrap()).unwrap())
    };
    let (path, pid) = entry(&scratch);
    kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let log = path.with_extension("log");
    wait_until("the takeover is in the log", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("has taken the mount over"))
    });
    let (same, successor) = entry(&scratch);
    assert!(same == path && successor != pid, "the entry names the successor");
    assert_eq!(fs::read(mountpoint.join("file")).unwrap(), b"content");
    scratch.umount(&mountpoint);
    wait_until("the entry is gone", || !path.exists());
    assert_eq!(fs::read(source.join("file")).unwrap(), b"content");
    drop(ending);
}

/// Ends all processes that the registry of a test names.
struct EndingAll<'a>(&'a Scratch);

impl Drop for EndingAll<'_> {
    fn drop(&mut self) {
        super::kept::end_registered(self.0);
    }
}
