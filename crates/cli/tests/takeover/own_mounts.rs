//! A server that is killed while it waits for its own mount.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use slackwater_fuse::abi::Opcode;

use super::daemons::KeptDaemon;
use super::requests::Rig;
use crate::rig::{Output, Scratch, need_fuse, run};

/// The requests of the probe of the kernel's cache.
const OF_PROBE: [Opcode; 4] = [Opcode::Lookup, Opcode::Open, Opcode::Read, Opcode::Write];

/// The kill comes when the server has read the first such request, and before any answer.
fn order(opcode: Opcode) -> String {
    format!("Read {} 1", opcode as u32)
}

/// Writes to a file, makes it durable, and reads it back, in a process that can hang.
#[track_caller]
fn use_mount(mountpoint: &Path, text: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", r#"echo "$1" > "$0"; sync "$0"; cat "$0""#]).arg(mountpoint.join("file")).arg(text);
    run({
        command.stdin(Stdio::null());
        command
    })
}

/// The server probed the kernel's cache through the mount that it was making, on threads that had the only descriptor of the
/// connection. Killed between a request of the probe and its answer, it waited for itself: its process did not end, no other
/// one started, and all volumes of the daemon hung.
#[test]
fn a_daemon_that_is_killed_while_it_probes_a_new_mount_is_replaced() {
    need_fuse();
    for opcode in OF_PROBE {
        let scratch = Scratch::new();
        let (stable, new) = (scratch.pair("stable"), scratch.pair("new"));
        let orders = scratch.path.join("die-at");
        fs::write(&orders, "").unwrap();
        let daemon = KeptDaemon::start_with(&scratch, "", &[&stable.1, &new.1], |command| {
            command.env("SLACKWATER_DIE_AT", &orders);
        });
        daemon.get().mount(&stable.0, &stable.1, "stable");
        use_mount(&stable.1, "before").expect(0, &["before"]);

        fs::write(&orders, order(opcode)).unwrap();
        // The next process is asked again, and mounts it.
        daemon.get().mount(&new.0, &new.1, "new");
        assert_eq!(fs::read_to_string(&orders).unwrap(), "", "no process died at {opcode:?}");
        use_mount(&stable.1, "after").expect(0, &["after"]);
        use_mount(&new.1, "new").expect(0, &["new"]);
        assert_eq!(daemon.lives().0, 1, "{}", daemon.get().all_said());
        daemon.umount("new");
        daemon.end();
        assert_eq!(fs::read_to_string(new.0.join("file")).unwrap(), "new\n");
    }
}

/// A kept mount that becomes writable is probed then. The keeper had the connection, and took a thread of the dead server that
/// waited in the probe for one that could still write to the source: no other server started.
#[test]
fn a_server_that_is_killed_while_it_probes_in_a_remount_is_replaced() {
    need_fuse();
    for opcode in OF_PROBE {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        fs::write(source.join("there"), "content").unwrap();
        let rig = Rig::with(scratch, source, mountpoint, &["--read-only"]);
        let helper = rig.scratch.path.join("mount.fuse.slackwater");
        std::os::unix::fs::symlink(crate::rig::slackwater(), &helper).unwrap();
        let mut remount = Command::new(&helper);
        remount.arg(&rig.source).arg(&rig.mountpoint).args(["-o", "remount,rw"]).stdin(Stdio::null());
        remount.env("SLACKWATER_RUNTIME_DIR", rig.scratch.path.join("run"));
        fs::write(&rig.orders, order(opcode)).unwrap();
        run(remount).expect(0, &[]);
        assert_eq!(fs::read_to_string(&rig.orders).unwrap(), "", "no process died at {opcode:?}");
        use_mount(&rig.mountpoint, "after").expect(0, &["after"]);
        assert_eq!(fs::read_to_string(rig.mountpoint.join("there")).unwrap(), "content");
        rig.umount();
        assert_eq!(fs::read_to_string(rig.source.join("file")).unwrap(), "after\n");
    }
}

/// The mount point of a new volume is on another volume of the same daemon, so the daemon asks itself for it.
#[test]
fn a_daemon_that_is_killed_while_it_looks_for_a_mount_point_on_its_own_volume_is_replaced() {
    need_fuse();
    // The lookup of the mount point, and the probe of the new mount.
    for opcode in [Opcode::Lookup, Opcode::Write] {
        let scratch = Scratch::new();
        let (outer, inner) = (scratch.pair("outer"), scratch.dir("inner-source", 0o755));
        let orders = scratch.path.join("die-at");
        fs::write(&orders, "").unwrap();
        let mountpoint = outer.1.join("inner");
        let daemon = KeptDaemon::start_with(&scratch, "", &[&mountpoint, &outer.1], |command| {
            command.env("SLACKWATER_DIE_AT", &orders);
        });
        daemon.get().mount(&outer.0, &outer.1, "outer");
        // The kernel does not know the name yet.
        fs::create_dir(outer.0.join("inner")).unwrap();
        fs::write(&orders, order(opcode)).unwrap();
        daemon.get().mount(&inner, &mountpoint, "inner");
        assert_eq!(fs::read_to_string(&orders).unwrap(), "", "no process died");
        use_mount(&mountpoint, "inner").expect(0, &["inner"]);
        use_mount(&outer.1, "outer").expect(0, &["outer"]);
        daemon.umount("inner");
        daemon.umount("outer");
        daemon.end();
        assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "inner\n");
    }
}
