//! Ctrl-C and other signals.

use std::fs;
use std::io::Write;

use rustix::process::Signal;

use crate::bytes;
use crate::rig::{Scratch, need_fuse, wait_until};

#[test]
fn sigint_and_sigterm_write_everything_back_and_unmount() {
    need_fuse();
    for signal in [Signal::INT, Signal::TERM] {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        let mut mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
        fs::write(mountpoint.join("file"), bytes(3, 5 << 20)).unwrap();
        mount.process.signal(signal);
        mount.wait().expect(0, &["everything is written back"]);
        assert!(fs::read(source.join("file")).unwrap() == bytes(3, 5 << 20));
        assert!(!scratch.arena("a-mount").exists());
    }
}

#[test]
fn interrupts_of_a_busy_volume_explain_and_then_give_up_without_losing_data() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    let mut file = fs::File::create(mountpoint.join("file")).unwrap();
    file.write_all(&bytes(1, 40_000)).unwrap();
    for times in 1..=2 {
        mount.process.signal(Signal::INT);
        wait_until("the unmount has failed", || mount.said("Still mounted") == times);
        file.write_all(b"still mounted").unwrap();
    }
    wait_until("it has explained", || mount.said("Press Ctrl-C again to give up") == 1);
    mount.process.signal(Signal::INT);
    let output = mount.wait();
    let own = format!("pid {}", std::process::id());
    output.expect(
        1,
        &[
            "is in use by",
            &own,
            "Still mounted",
            "Not yet written back",
            "file",
            "Press Ctrl-C again to give up",
            "Given up",
        ],
    );
    // No dead mount remains, and the next mount has everything.
    drop(file);
    assert!(fs::read_dir(&mountpoint).unwrap().next().is_none());
    scratch.status_after_death().expect(0, &["which died", "mount"]);
    let again = scratch.mount(&source, &mountpoint, &[]);
    let expected = [bytes(1, 40_000), b"still mountedstill mounted".to_vec()].concat();
    assert!(fs::read(source.join("file")).unwrap() == expected);
    scratch.umount(&mountpoint);
    drop(again);
}

#[test]
fn sigterm_unmounts_a_busy_volume() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut mount = scratch.mount(&source, &mountpoint, &[]);
    let mut file = fs::File::create(mountpoint.join("file")).unwrap();
    file.write_all(b"kept").unwrap();
    mount.process.signal(Signal::TERM);
    mount.wait().expect(0, &["is in use by", "unmounting anyway"]);
    file.write_all(b"late").unwrap_err();
    assert_eq!(fs::read(source.join("file")).unwrap(), b"kept");
}
