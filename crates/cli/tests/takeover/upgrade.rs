//! Other programs take a mount over, and servers that crash again and again.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::kept::Kept;
use super::load::Load;
use crate::rig::{Mount, Output, Scratch, need_fuse, slackwater, wait_until};

const UPGRADES: usize = 20;
/// The last one is followed by a delay of 1.6 s.
const CRASHES: u64 = 9;

/// Installs a program in the directory of a test. Another process makes the file: see `Scratch::command_for_all`.
#[track_caller]
fn install(from: &Path, scratch: &Scratch, name: &str) -> PathBuf {
    let (path, temporary) = (scratch.path.join(name), scratch.path.join("installed"));
    let installed = Command::new("install").args(["-m", "755"]).arg(from).arg(&temporary).status();
    assert!(installed.unwrap().success());
    // As a package manager does: the file before loses its name.
    fs::rename(temporary, &path).unwrap();
    path
}

/// A program that prints the formats of ours, and otherwise runs `body` in a shell.
#[track_caller]
fn script(scratch: &Scratch, name: &str, formats: &str, body: &str) -> PathBuf {
    let text = scratch.path.join("text");
    fs::write(&text, format!("#!/bin/sh\nif [ \"$1\" = formats ]; then {formats}; exit; fi\n{body}\n")).unwrap();
    install(&text, scratch, name)
}

#[track_caller]
fn upgrade(kept: &Kept, program: &Path) -> Output {
    kept.run(&["upgrade", "--program", program.to_str().unwrap()])
}

/// The file that a process executes.
fn program_of(process: Pid) -> String {
    let link = fs::read_link(format!("/proc/{}/exe", process.as_raw_nonzero())).unwrap();
    link.to_str().unwrap().to_owned()
}

#[test]
fn programs_notice_nothing_of_20_upgrades() {
    let mut kept = Kept::new(&["--dirty-expire", "100ms", "--cache", "32MiB"]);
    let own = Path::new(slackwater());
    let copies = [install(own, &kept.scratch, "one"), install(own, &kept.scratch, "two")];
    let load = Load::start(&kept.mountpoint);
    for nth in 0..UPGRADES {
        let copy = &copies[nth % 2];
        upgrade(&kept, copy).expect(0, &["Upgraded", copy.to_str().unwrap(), "programs waited for"]);
        assert_eq!(program_of(kept.server(None)), copy.to_str().unwrap());
        load.check(|| kept.mount.errors());
    }
    assert_eq!(kept.takeovers(), UPGRADES as u64);
    let source = kept.source.clone();
    load.finish(&source, || kept.umount().expect(0, &["everything is written back"]));
}

#[test]
fn without_a_path_the_program_of_the_command_is_next() {
    let mut kept = Kept::new(&[]);
    let copy = install(Path::new(slackwater()), &kept.scratch, "copy");
    upgrade(&kept, &copy).expect(0, &["Upgraded"]);
    kept.replace_server();
    assert_eq!(program_of(kept.server(None)), copy.to_str().unwrap(), "after a crash too");
    kept.scratch.run(["upgrade", "--all"]).expect(0, &["Upgraded", slackwater()]);
    assert_eq!(program_of(kept.server(None)), slackwater());
    kept.umount().expect(0, &["everything is written back"]);
}

#[test]
fn the_program_before_goes_on_when_an_upgrade_fails() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    let mut file = File::create(kept.mountpoint.join("file")).unwrap();
    let bodies = [
        ("exit 1", "has failed with status 1"),
        ("kill -9 $$", "was killed by signal 9"),
        // It says nothing to the keeper.
        ("exec sleep 600", "was killed by signal 9"),
    ];
    for (nth, (body, why)) in bodies.into_iter().enumerate() {
        write!(file, "{nth}").unwrap();
        let program = script(&kept.scratch, &format!("next-{nth}"), &format!("{} formats", slackwater()), body);
        let path = program.to_str().unwrap();
        upgrade(&kept, &program).expect(1, &["the upgrade of", path, why, "the program before serves it"]);
        write!(file, ".").unwrap();
        assert_eq!(program_of(kept.server(None)), slackwater());
        let said = format!("The upgrade to {path} failed: its process");
        kept.mount.wait_said(&said, 1);

        kept.replace_server();
        assert_eq!(program_of(kept.server(None)), slackwater(), "a failed upgrade is not tried again");
        let status = kept.status();
        let failed = &status["kept"]["failed_upgrade"];
        assert_eq!(failed["program"].as_str(), Some(path), "{status}");
        assert!(failed["error"].as_str().unwrap().contains(why), "{status}");
        kept.run(&["status"]).expect(0, &[&format!("the last upgrade to {path} failed: its process"), why]);
    }
    wait_until("the keeper has said why", || kept.mount.errors().contains("has said nothing to its keeper"));
    let copy = install(Path::new(slackwater()), &kept.scratch, "copy");
    upgrade(&kept, &copy).expect(0, &["Upgraded"]);
    assert!(kept.status()["kept"]["failed_upgrade"].is_null(), "a success is the last upgrade");
    drop(file);
    kept.umount().expect(0, &["everything is written back"]);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"0.1.2.");
}

#[test]
fn a_program_with_other_formats_is_refused_and_nothing_changes() {
    let mut kept = Kept::new(&[]);
    let before = kept.status()["pid"].clone();
    let formats = r#"echo '{"keeper":1,"record":1,"arena":99}'"#;
    let other = script(&kept.scratch, "other", formats, "exit 1");
    let words = format!("{} reads arenas of format 99, this mount has", other.to_str().unwrap());
    upgrade(&kept, &other).expect(1, &[&words, "nothing has changed"]);
    upgrade(&kept, Path::new("/bin/true")).expect(1, &["does not print its formats", "not slackwater"]);
    upgrade(&kept, &kept.scratch.path.join("nowhere")).expect(1, &["cannot open the program", "nowhere"]);
    assert_eq!(kept.status()["pid"], before);
    assert_eq!(kept.takeovers(), 0);
    kept.umount().expect(0, &["everything is written back"]);
}

#[test]
fn only_a_kept_mount_can_be_upgraded() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &[]);
    scratch.run(["upgrade", mountpoint.to_str().unwrap()]).expect(2, &["is not kept", "--keep"]);
    scratch.run(["upgrade", "--all"]).expect(0, &[]);
    scratch.umount(&mountpoint);
    drop(mount);
}

/// Package managers replace the file of a program while it runs.
#[test]
fn a_crash_after_the_file_was_replaced_starts_the_program_before() {
    need_fuse();
    let scratch = Scratch::new();
    let program = install(Path::new(slackwater()), &scratch, "program");
    let (source, mountpoint) = scratch.pair("a");
    let mut command = Command::new(&program);
    command.arg("mount").args([&source, &mountpoint]).args(["--keep", "--cache", "32MiB", "--arena"]);
    command.arg(scratch.arena("a")).env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run")).stdin(Stdio::null());
    let mount = Mount::start(command, &mountpoint);
    let mut kept = Kept { mount, source, mountpoint, scratch: Arc::new(scratch), is_of_user: false };
    let deleted = format!("{} (deleted)", program.to_str().unwrap());

    script(&kept.scratch, "program", "exit 1", "exit 1");
    for _ in 0..2 {
        kept.replace_server();
        kept.run(&["restart"]).expect(0, &["Restarted"]);
        assert_eq!(program_of(kept.server(None)), deleted);
    }
    install(Path::new(slackwater()), &kept.scratch, "program");
    upgrade(&kept, &program).expect(0, &["Upgraded"]);
    assert_eq!(program_of(kept.server(None)), program.to_str().unwrap());
    kept.umount().expect(0, &["everything is written back"]);
}

#[test]
fn servers_that_crash_at_once_are_delayed_and_the_mount_stays() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    fs::write(kept.mountpoint.join("file"), "content").unwrap();
    let mut are_short = true;
    for crashes in 0..CRASHES {
        let asked = Instant::now();
        let serving_ms = kept.status()["kept"]["serving_ms"].as_u64().unwrap();
        let server = kept.server(None);
        let since = Instant::now();
        kill_process(server, Signal::USR1).unwrap();
        // On a slow machine a life may be long.
        are_short &= u128::from(serving_ms) + asked.elapsed().as_millis() < 500;
        wait_until("another process serves", || kept.takeovers() > crashes);
        let is_late = since.elapsed() >= Duration::from_millis(1600);
        assert!(is_late || !are_short || crashes < CRASHES - 1, "the delay is {:?}", since.elapsed());
    }
    assert_eq!(fs::read(kept.mountpoint.join("file")).unwrap(), b"content");
    kept.umount().expect(0, &["was killed by signal 10", "everything is written back"]);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"content");
}
