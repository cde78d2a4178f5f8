//! Names chosen by others have no effect on the terminal and forge no line, wherever the command prints them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Output, Process, Scratch, need_fuse, run, wait_until};

const HOSTILE: &str = "a\u{1b}[2J\nforged 0 B\r\u{202e}";
const SHOWN: &str = r"a\u{1b}[2J\nforged 0 B\r\u{202e}";

#[track_caller]
fn assert_harmless(output: &Output, names: &[&str]) {
    for name in names {
        assert!(output.text.contains(name), "{name} is not in: {:?}", output.text);
    }
    let is_harmful = |character: char| character == '\u{202e}' || character.is_control() && character != '\n';
    assert!(!output.text.contains(is_harmful), "{:?}", output.text);
    assert!(!output.text.lines().any(|line| line.starts_with("forged")), "{:?}", output.text);
}

#[test]
fn hostile_names_are_escaped_in_every_output() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = (scratch.dir(HOSTILE, 0o755), scratch.dir("m\u{1b}c\nforged", 0o755));
    let arena = scratch.arena("a");
    let mut command = scratch.command(["mount", "--background", "--cache", "32MiB", "--dirty-expire", "1h", "--arena"]);
    command.arg(&arena).args([&source, &mountpoint]);
    assert_harmless(&run(command), &[SHOWN, r"m\u{1b}c\nforged"]);

    // A file with unwritten data, and another whose name is not UTF-8.
    fs::write(mountpoint.join(HOSTILE), [1; 5000]).unwrap();
    fs::write(mountpoint.join(OsString::from_vec(b"x\xff\ny".to_vec())), [1; 3000]).unwrap();
    assert_harmless(&scratch.run(["status"]), &[SHOWN]);
    assert_harmless(&scratch.run(["top", "--once"]), &[r"m\u{1b}c\nforged"]);

    // A process that holds the mount; it has the name of its program.
    let sleeper = scratch.path.join("s\u{1b}[1m\nx");
    symlink("/bin/sleep", &sleeper).unwrap();
    let mut holder = Process::spawn(Command::new(&sleeper).arg("1000").current_dir(&mountpoint));
    let words = |more: &[&str]| {
        let mut command = scratch.command(["umount"]);
        command.arg(&mountpoint).args(more);
        command
    };
    wait_until("the process is named", || {
        let output = run(words(&[]));
        assert_harmless(&output, &[]);
        output.code == Some(3) && output.text.contains(r"s\u{1b}[1m\nx")
    });
    holder.signal(Signal::KILL);
    holder.wait();

    // Standard input is not a terminal.
    let mut listed = Output { code: None, text: String::new() };
    wait_until("no process holds it", || {
        listed = run(words(&["--discard"]));
        listed.text.contains("LOST")
    });
    assert_harmless(&listed, &[SHOWN, r"x\xff\ny"]);
    listed.expect(2, &["8.0 KiB", "4.0 KiB"]);

    // A mount that died, with its data in the arena.
    let log = fs::read_dir(scratch.path.join("run")).unwrap().map(|entry| entry.unwrap().path());
    let pid = log.filter_map(|path| path.file_stem()?.to_str()?.parse().ok()).next().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    wait_until("it is dead", || !Path::new(&format!("/proc/{pid}")).exists());
    assert_harmless(&scratch.status_after_death(), &[SHOWN, "which died"]);
    assert_harmless(&run(words(&[])), &[SHOWN]);
}
