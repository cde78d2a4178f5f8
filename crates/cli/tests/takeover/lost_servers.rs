//! Commands whose server dies with their request: they report what became of it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::daemons::{KeptDaemon, LATE};
use super::process::{is_mounted, table};
use crate::rig::{Process, Scratch, need_fuse, wait_until};

/// The command said that the process died with unwritten data, though another one wrote it back.
#[test]
fn an_unmount_whose_daemon_dies_after_it_reports_what_became_of_the_data() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let config = format!("{LATE}{}", table("a", &source, &mountpoint));
    for ask in ["a", mountpoint.to_str().unwrap()] {
        let daemon = KeptDaemon::start(&scratch, &config, &[&mountpoint]);
        fs::write(mountpoint.join("file"), format!("of {ask}")).unwrap();
        kill_process(daemon.keeper(), Signal::STOP).unwrap();
        daemon.kill();
        unmount(&mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
        let mut command = daemon.scratch.command(["umount", ask]);
        command.env("SLACKWATER_SOCKET", &daemon.get().socket);
        let mut umount = Process::spawn(command.stdout(Stdio::null()));
        kill_process(daemon.keeper(), Signal::CONT).unwrap();
        assert_eq!(umount.wait().code(), Some(0), "{}", daemon.get().all_said());
        assert_eq!(fs::read_to_string(source.join("file")).unwrap(), format!("of {ask}"));
        // Its end was reported, and nothing is left of it.
        daemon.run(&["umount", ask]).expect(5, &["is not mounted"]);
        let mut files = fs::read_dir(scratch.path.join("run")).unwrap().map(|file| file.unwrap().file_name());
        assert!(!files.any(|name| name.to_string_lossy().ends_with(".json")), "an entry is left");
        daemon.end();
    }
}

/// The command said that the source is already mounted elsewhere, and the mount point was there.
#[test]
fn a_further_mount_point_is_made_once_although_its_server_dies() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, first) = scratch.pair("a");
    let (second, third) = (scratch.dir("second", 0o755), scratch.dir("third", 0o755));
    let daemon = KeptDaemon::start(&scratch, "", &[&first, &second, &third]);
    daemon.get().mount(&source, &first, "a");
    for (mountpoint, words) in [(&second, &["mount"][..]), (&third, &["mount", "--daemon"])] {
        let (takeovers, server) = daemon.lives();
        let server = Pid::from_raw(i32::try_from(server).unwrap()).unwrap();
        kill_process(server, Signal::STOP).unwrap();
        let mut command = daemon.scratch.command(words);
        command.args([&source, mountpoint]);
        if words.len() > 1 {
            command.env("SLACKWATER_SOCKET", &daemon.get().socket);
        }
        let mut mount = Process::spawn(command.stdout(Stdio::null()));
        let pid = mount.0.id();
        let waits = || fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|at| at.contains("unix_stream"));
        wait_until("the command waits for its answer", waits);
        kill_process(server, Signal::KILL).unwrap();
        assert_eq!(mount.wait().code(), Some(0), "{words:?}: {}", daemon.get().all_said());
        assert!(is_mounted(mountpoint) && daemon.lives().0 == takeovers + 1);
    }
    // A server that has made it and died before the answer is asked again.
    let request = format!(
        r#"{{"version":1,"volume":"a","request":"attach","mountpoint":{third:?},"options":{{}},"is_repeated":true}}"#
    );
    let mut daemon_socket = UnixStream::connect(&daemon.get().socket).unwrap();
    writeln!(daemon_socket, "{request}").unwrap();
    let mut answer = String::new();
    BufReader::new(daemon_socket).read_line(&mut answer).unwrap();
    assert!(answer.contains("\"done\""), "{answer}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert_eq!(mounts.lines().filter(|line| line.contains(third.to_str().unwrap())).count(), 1, "{mounts}");
    for mountpoint in [&third, &second] {
        daemon.umount(mountpoint.to_str().unwrap());
        assert!(!is_mounted(mountpoint));
    }
    daemon.umount("a");
    daemon.end();
}
