//! One failure at a time: pods, processes, mounts and directories that are gone when a kubelet does not expect it.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use tonic::Code;

use crate::client::{is_busy, is_late};
use crate::node::machine::{Call, Machine, Volume};
use crate::rig::{Process, need_fuse, wait_until};

const WRITER: Call = Call::Publish { target: 0, read_only: false };
const READER: Call = Call::Publish { target: 1, read_only: true };

/// A machine with one volume that is published for writing.
fn published() -> (Machine, Volume) {
    need_fuse();
    let machine = Machine::start();
    let volume = machine.create("v");
    machine.done(&volume, Call::Stage);
    machine.done(&volume, WRITER);
    (machine, volume)
}

/// A process of a pod that appends lines to a file of the volume until it is killed. Some lines are written.
fn pod(volume: &Volume, target: usize) -> Process {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3>> log; n=0; while :; do n=$((n + 1)); echo line $n >&3; done"]);
    let pod = Process::spawn(command.current_dir(volume.target(target)).stdin(Stdio::null()));
    let log = volume.target(target).join("log");
    wait_until("the pod writes", || fs::metadata(&log).is_ok_and(|file| file.len() > 100_000));
    pod
}

#[track_caller]
fn finish(machine: Machine, volume: &Volume) {
    machine.remove(volume);
    machine.expect_nothing();
    machine.end();
}

#[test]
fn a_pod_that_is_killed_while_it_writes_loses_nothing() {
    let (machine, volume) = published();
    for _ in 0..3 {
        machine.done(&volume, Call::Stage);
        machine.done(&volume, WRITER);
        let mut pod = pod(&volume, 0);
        pod.0.kill().unwrap();
        pod.wait();
        let written = fs::read(volume.target(0).join("log")).unwrap();
        machine.done(&volume, Call::Unpublish { target: 0 });
        machine.done(&volume, Call::Unstage);
        let kept = fs::read(volume.source().join("log")).unwrap();
        assert!(kept == written && kept.len() > 100_000, "{} of {} bytes", kept.len(), written.len());
    }
    finish(machine, &volume);
}

#[test]
fn two_pods_of_one_volume_come_and_go_independently() {
    let (machine, volume) = published();
    machine.done(&volume, READER);
    fs::write(volume.target(0).join("file"), "one").unwrap();
    assert_eq!(fs::read_to_string(volume.target(1).join("file")).unwrap(), "one");
    assert!(fs::write(volume.target(1).join("file"), "two").is_err(), "read-only");
    machine.done(&volume, Call::Unpublish { target: 0 });
    assert_eq!(fs::read_to_string(volume.target(1).join("file")).unwrap(), "one");
    machine.done(&volume, Call::Stats { target: 1 });
    finish(machine, &volume);
}

#[test]
fn mounts_that_another_program_removed_do_not_matter() {
    let (machine, volume) = published();
    fs::write(volume.target(0).join("file"), "text").unwrap();
    unmount(volume.target(0), UnmountFlags::DETACH).unwrap();
    fs::remove_dir(volume.target(0)).unwrap();
    machine.done(&volume, Call::Unpublish { target: 0 });
    unmount(volume.staging(), UnmountFlags::DETACH).unwrap();
    machine.done(&volume, Call::Unstage);
    assert_eq!(fs::read_to_string(volume.source().join("file")).unwrap(), "text");
    // The other way round, with all of its directories.
    machine.done(&volume, Call::Stage);
    machine.done(&volume, WRITER);
    fs::write(volume.target(0).join("file"), "more").unwrap();
    unmount(volume.staging(), UnmountFlags::DETACH).unwrap();
    unmount(volume.target(0), UnmountFlags::DETACH).unwrap();
    fs::remove_dir_all(volume.staging().parent().unwrap()).unwrap();
    machine.done(&volume, Call::Unstage);
    assert_eq!(fs::read_to_string(volume.source().join("file")).unwrap(), "more");
    finish(machine, &volume);
}

/// A flush of such a volume does not end, and there is nothing to be flushed.
#[test]
fn a_volume_whose_directory_was_removed_is_unstaged_after_the_deadline() {
    need_fuse();
    let machine = Machine::start_with(&["--unmount-deadline=1s"]);
    let volume = machine.create("v");
    machine.done(&volume, Call::Stage);
    machine.done(&volume, WRITER);
    fs::write(volume.target(0).join("file"), "text").unwrap();
    fs::remove_dir_all(volume.source()).unwrap();
    let _ = fs::write(volume.target(0).join("file"), "into nothing");
    machine.done(&volume, Call::Unpublish { target: 0 });
    // The deadline may be too short for one attempt.
    wait_until("it is unstaged", || {
        let answer = machine.call(&volume, Call::Unstage);
        assert!(answer.is_ok() || is_late(&answer) || is_busy(&answer), "{answer:?}");
        answer.is_ok()
    });
    finish(machine, &volume);
}

#[test]
fn a_killed_daemon_is_found_and_loses_nothing() {
    let (mut machine, volume) = published();
    fs::write(volume.target(0).join("file"), "text").unwrap();
    machine.kill_daemon();
    assert!(fs::read(volume.target(0).join("file")).is_err());
    let refused = machine.call(&volume, Call::Stats { target: 0 }).unwrap_err();
    assert_eq!(refused.code, Code::Unavailable, "{}", refused.message);
    machine.start_daemon();
    machine.done(&volume, Call::Unpublish { target: 0 });
    machine.done(&volume, Call::Unstage);
    assert_eq!(fs::read_to_string(volume.source().join("file")).unwrap(), "text");
    // The next pod.
    machine.done(&volume, Call::Stage);
    machine.done(&volume, WRITER);
    assert_eq!(fs::read_to_string(volume.target(0).join("file")).unwrap(), "text");
    finish(machine, &volume);
}

/// A kubelet that has not noticed only publishes for the next pod.
#[test]
fn a_stage_over_a_dead_mount_replaces_it() {
    let (mut machine, volume) = published();
    fs::write(volume.target(0).join("file"), "text").unwrap();
    machine.kill_daemon();
    machine.start_daemon();
    for _ in 0..2 {
        machine.done(&volume, Call::Stage);
        machine.done(&volume, WRITER);
        assert_eq!(fs::read_to_string(volume.target(0).join("file")).unwrap(), "text");
    }
    finish(machine, &volume);
}

#[test]
fn a_node_that_was_rebooted_stages_its_volumes_again() {
    let (mut machine, volume) = published();
    let mut file = File::create(volume.target(0).join("file")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    drop(file);
    // A reboot: no process, no mount, and neither /dev/shm nor /run. The records are on the disk.
    machine.kill_plugin();
    machine.kill_daemon();
    for point in [volume.target(0), volume.staging()] {
        unmount(point, UnmountFlags::DETACH).unwrap();
    }
    fs::remove_file(machine.scratch.arena("daemon")).unwrap();
    let run = machine.scratch.path.join("run");
    fs::remove_dir_all(&run).unwrap();
    machine.scratch.dir("run", 0o700);
    machine.start_daemon();
    machine.start_plugin();

    let again = machine.create("v");
    assert_eq!((&again.id, &again.context), (&volume.id, &volume.context));
    machine.done(&volume, Call::Unpublish { target: 0 });
    machine.done(&volume, Call::Stage);
    machine.done(&volume, WRITER);
    assert_eq!(fs::read_to_string(volume.target(0).join("file")).unwrap(), "synced");
    finish(machine, &volume);
}
