//! Backends that hang or are full, and callers that wait for them or are killed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use slackwater::Tunables;
use slackwater_backends::Rule;

use crate::rig::{LONG, Rig, assert_same, new_home, pattern, spawn, until, wait, within};

/// Half of the arena is the share of a volume: it is full after 4 MiB.
const ARENA_BYTES: u64 = 8 << 20;

fn hung() -> Rig {
    let rig = Rig::with(ARENA_BYTES, Tunables::default());
    rig.faults.add(Rule::hold().on("write"));
    rig
}

fn dd(path: &Path, count: usize) -> std::process::Child {
    spawn("dd", &["if=/dev/zero", &format!("of={}", path.display()), "bs=1M", &format!("count={count}")])
}

fn is_parked(rig: &Rig) -> bool {
    rig.mounted.parked_bytes() > 0
}

#[test]
fn a_killed_writer_that_is_parked_dies_at_once() {
    let rig = hung();
    let mut child = dd(&rig.file("a"), 64);
    until("the write is parked", || is_parked(&rig));
    child.kill().unwrap();
    assert!(wait(&mut child).expect("it dies while its backend hangs").code().is_none());
    until("what it wanted to write is dropped", || !is_parked(&rig));
    rig.faults.clear();
    rig.faults.release_all();
    until("what was taken arrives", || rig.umount().is_ok());
    assert!(fs::metadata(rig.stored("a")).unwrap().len() >= 1 << 20);
}

#[test]
fn an_interrupted_writer_that_is_parked_goes_on_with_what_was_taken() {
    let rig = hung();
    let mut child = dd(&rig.file("a"), 8);
    until("the write is parked", || is_parked(&rig));
    // dd prints statistics and goes on.
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    rig.faults.clear();
    rig.faults.release_all();
    assert!(wait(&mut child).is_some());
}

#[test]
fn parked_writes_hold_no_thread_and_go_on_when_there_is_room() {
    let rig = hung();
    let wanted = pattern(1, 1 << 20);
    let writers: Vec<_> = (0..100)
        .map(|i| {
            let (path, wanted) = (rig.file(format!("{i}")), wanted.clone());
            std::thread::spawn(move || fs::write(path, wanted).unwrap())
        })
        .collect();
    until("writes are parked", || is_parked(&rig));
    // Others are served meanwhile, as often as one likes.
    let path = rig.path.clone();
    within("a look at the mount", move || {
        for _ in 0..50 {
            assert!(fs::read_dir(&path).unwrap().count() > 0);
            fs::metadata(&path).unwrap();
        }
    });
    rig.faults.clear();
    rig.faults.release_all();
    within("all writes", move || writers.into_iter().for_each(|writer| writer.join().unwrap()));
    rig.umount().unwrap();
    for i in 0..100 {
        assert_same(&fs::read(rig.stored(format!("{i}"))).unwrap(), &wanted);
    }
}

#[test]
fn a_killed_caller_of_anything_dies_while_its_call_hangs() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"a").unwrap();
    rig.mounted.sync().unwrap();
    for (what, program, arguments) in [
        ("make", "touch", vec!["new"]),
        ("lookup", "stat", vec!["b"]),
        ("remove", "rm", vec!["-f", "a"]),
        ("statfs", "stat", vec!["-f", "."]),
    ] {
        rig.faults.add(Rule::hold().on(what));
        let paths: Vec<String> = arguments
            .iter()
            .map(|word| if word.starts_with('-') { (*word).to_owned() } else { rig.file(word).display().to_string() })
            .collect();
        let mut child = spawn(program, &paths.iter().map(String::as_str).collect::<Vec<_>>());
        let held = rig.faults.wait_held(1, LONG);
        assert_eq!(held.len(), 1, "{what}");
        child.kill().unwrap();
        assert!(wait(&mut child).unwrap_or_else(|| panic!("{what} hangs")).code().is_none());
        rig.faults.clear();
        rig.faults.release_all();
    }
    // The calls went on without their callers, and nobody kept what they handed out.
    until("made", || rig.stored("new").exists());
    until("removed", || !rig.stored("a").exists());
    until("nothing is left behind", || rig.umount().is_ok());
}

#[test]
fn a_signal_that_does_not_kill_interrupts_no_call_but_a_later_kill_does() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("make"));
    let path = rig.file("d").display().to_string();
    let program = format!("import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\nos.mkdir({path:?})");
    let mut child = spawn("python3", &["-c", &program]);
    assert_eq!(rig.faults.wait_held(1, LONG).len(), 1);
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "it waits on");
    child.kill().unwrap();
    assert!(wait(&mut child).expect("a caller that was interrupted before can be killed").code().is_none());
}

#[test]
fn a_full_source_is_said_by_write_and_loses_nothing() {
    let home = new_home();
    let source = home.join("source");
    fs::create_dir(&source).unwrap();
    let small = std::ffi::CString::new("size=4m").unwrap();
    rustix::mount::mount("tmpfs", &source, "tmpfs", rustix::mount::MountFlags::empty(), small.as_c_str()).unwrap();
    let unmount = scopeguard(source.clone());
    let rig = Rig::over(home, source, 32 << 20, Tunables::default());
    let file = File::create(rig.file("a")).unwrap();
    let mut taken = 0;
    let error = loop {
        match file.write_at(&pattern(1, 1 << 20)[..], taken) {
            Ok(bytes) => taken += bytes as u64,
            Err(error) => break error,
        }
        assert!(taken < 100 << 20, "a source of 4 MiB took {taken} bytes");
    };
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert!(taken >= 2 << 20, "{taken}");
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(rig.stored("a")).unwrap().len(), taken);
    drop(file);
    fs::remove_file(rig.file("a")).unwrap();
    fs::write(rig.file("b"), pattern(2, 1 << 20)).unwrap();
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("b")).unwrap(), &pattern(2, 1 << 20));
    drop(rig);
    drop(unmount);
}

/// Unmounts the tmpfs in the end, whatever happens.
fn scopeguard(path: std::path::PathBuf) -> impl Drop {
    struct Guard(std::path::PathBuf);
    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
            let _ = fs::remove_dir(&self.0);
            let _ = fs::remove_dir(self.0.parent().unwrap());
        }
    }
    Guard(path)
}

#[test]
fn a_failed_write_back_is_told_by_close_and_fsync_and_the_data_is_kept() {
    let rig = Rig::new();
    let file = File::create(rig.file("a")).unwrap();
    let rule = rig.faults.add(Rule::fail(slackwater::ErrorKind::Io).on("write"));
    file.write_all_at(&pattern(3, 10_000), 0).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    rig.faults.remove(rule);
    file.sync_all().unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(3, 10_000));
}
