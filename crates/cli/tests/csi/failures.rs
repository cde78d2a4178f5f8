//! Volumes in use, sources that hang, and a daemon that dies.

use std::fs::{self, File};
use std::io::Write;

use rustix::process::Signal;
use tonic::Code;

use crate::client::is_late;
use crate::plugin::{Plugin, Volume, daemon_and_plugin, mounts_in};
use crate::process::{Daemon, is_mounted};
use crate::rig::{Scratch, need_fuse, wait_until};

#[test]
fn a_volume_in_use_is_not_unstaged_and_the_programs_are_named() {
    let scratch = Scratch::new();
    let (daemon, plugin) = daemon_and_plugin(&scratch);
    let volume = Volume::create(&scratch, &plugin, "a");
    volume.stage().unwrap();
    volume.publish(false).unwrap();
    assert_eq!(volume.delete().unwrap_err().code, Code::FailedPrecondition);
    let mut file = File::create(volume.target.join("file")).unwrap();
    file.write_all(b"before").unwrap();
    // The pod's directory goes at once; the volume stays as long as it is used.
    volume.unpublish().unwrap();
    assert!(!volume.target.exists());
    let refused = volume.try_unstage().unwrap().unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.message.contains(&format!("pid {}", std::process::id())), "{}", refused.message);
    file.write_all(b" and after").unwrap();
    drop(file);
    volume.unstage().unwrap();
    assert_eq!(fs::read(volume.source().join("file")).unwrap(), b"before and after");
    volume.delete().unwrap();
    plugin.end();
    daemon.end();
}

#[test]
fn an_unstage_fails_at_its_deadline_and_the_volume_stays_usable() {
    need_fuse();
    let scratch = Scratch::new();
    // The pool is a mount of ours, whose server is stopped.
    let (base, pool) = scratch.pair("pool");
    let server = scratch.mount_to_be_stopped(&base, &pool);
    let daemon = Daemon::start(&scratch, "dirty-expire = \"1h\"\n");
    let plugin = Plugin::start(&scratch, pool.to_str().unwrap(), &["--unmount-deadline", "1s"]);
    let volume = Volume::create(&scratch, &plugin, "a");
    volume.stage().unwrap();
    volume.publish(false).unwrap();
    let mut file = File::create(volume.target.join("file")).unwrap();
    server.stop_at_rest();
    file.write_all(&vec![7; 1 << 20]).unwrap();
    drop(file);
    volume.unpublish().unwrap();
    let refused = volume.unstage().unwrap_err();
    assert_eq!(refused.code, Code::DeadlineExceeded, "{}", refused.message);
    assert!(refused.message.contains("MiB") && refused.message.contains("nothing is lost"), "{}", refused.message);
    assert!(is_mounted(&volume.staging));
    assert_eq!(volume.stage(), Ok(()), "it is still staged");
    server.process.signal(Signal::CONT);
    // The deadline may be too short for one attempt.
    wait_until("it is unstaged", || {
        let answer = volume.unstage();
        assert!(answer.is_ok() || is_late(&answer), "{answer:?}");
        answer.is_ok()
    });
    assert_eq!(fs::read(base.join(&volume.id).join("file")).unwrap(), vec![7; 1 << 20]);
    volume.delete().unwrap();
    plugin.end();
    daemon.end();
    scratch.umount(&pool);
}

#[test]
fn calls_fail_while_the_daemon_is_gone_and_dead_mounts_are_replaced_afterwards() {
    need_fuse();
    let scratch = Scratch::new();
    let pool = scratch.dir("pool", 0o755);
    let mut daemon = Daemon::start(&scratch, "dirty-expire = \"1h\"\n");
    let plugin = Plugin::start(&scratch, pool.to_str().unwrap(), &[]);
    let volume = Volume::create(&scratch, &plugin, "a");
    volume.stage().unwrap();
    volume.publish(false).unwrap();
    assert_eq!(volume.health(), Ok(vec![]));
    fs::write(volume.target.join("file"), b"late").unwrap();
    daemon.kill();

    assert_eq!(volume.health(), Ok(vec!["DaemonUnavailable".to_owned()]));
    for refused in [volume.stage(), volume.publish(false), volume.unstage()] {
        assert_eq!(refused.unwrap_err().code, Code::Unavailable);
    }

    let daemon = Daemon::start(&scratch, "dirty-expire = \"1h\"\n");
    // Where the pod is, the mount is dead; the next stage and publish replace it.
    assert_eq!(volume.health(), Ok(vec!["MountDead".to_owned()]));
    volume.stage().unwrap();
    volume.publish(false).unwrap();
    assert_eq!(fs::read(volume.target.join("file")).unwrap(), b"late");
    assert_eq!(volume.health(), Ok(vec![]));
    drop(daemon);

    // Without a stage in between: what is left is removed, and everything is durable.
    let daemon = Daemon::start(&scratch, "");
    volume.unpublish().unwrap();
    volume.unstage().unwrap();
    assert_eq!(fs::read(volume.source().join("file")).unwrap(), b"late");
    wait_until("nothing is mounted", || mounts_in(&scratch).is_empty());
    volume.delete().unwrap();
    plugin.end();
    daemon.end();
}

#[test]
fn what_others_have_put_at_a_target_stays() {
    let scratch = Scratch::new();
    let (daemon, plugin) = daemon_and_plugin(&scratch);
    let volume = Volume::create(&scratch, &plugin, "a");
    assert_eq!(volume.publish(false).unwrap_err().code, Code::FailedPrecondition, "it is not staged");
    volume.stage().unwrap();
    fs::create_dir(&volume.target).unwrap();
    let tmpfs = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &volume.target, "tmpfs", tmpfs, None).unwrap();
    assert_eq!(volume.publish(false).unwrap_err().code, Code::AlreadyExists);
    assert_eq!(volume.unpublish().unwrap_err().code, Code::FailedPrecondition);
    rustix::mount::unmount(&volume.target, rustix::mount::UnmountFlags::empty()).unwrap();
    fs::write(volume.target.join("file"), b"x").unwrap();
    assert_eq!(volume.unpublish().unwrap_err().code, Code::Internal, "the directory is not empty");
    fs::remove_file(volume.target.join("file")).unwrap();
    volume.unpublish().unwrap();
    volume.unstage().unwrap();
    volume.delete().unwrap();
    plugin.end();
    daemon.end();
}
