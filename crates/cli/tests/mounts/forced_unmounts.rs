//! Unmounts that always end, even over a hung source or a held volume: by force, by SIGTERM, and by the third Ctrl-C.

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::bytes;
use crate::hung_source::Tower;
use crate::rig::{Output, Scratch, need_fuse, wait_until};
use crate::sandbox::Sandbox;

const BYTES: usize = 1 << 20;

/// Writes to the upper mount of a tower whose source then hangs, and lets `end` end the upper mount. Mounts it again
/// when the source answers.
fn with_a_hung_source(end: impl FnOnce(&Scratch, &mut Tower)) {
    need_fuse();
    let scratch = Scratch::new();
    let mut tower = Tower::with(&scratch, &["--cache", "32MiB"]);
    // Its first data is in the source, where the mount has the file open.
    let mut file = File::create(tower.top.join("file")).unwrap();
    file.write_all(&bytes(1, BYTES)).unwrap();
    file.sync_all().unwrap();
    file.write_all(&bytes(2, BYTES)).unwrap();
    tower.server.stop_at_rest();
    end(&scratch, &mut tower);
    assert!(fs::read_dir(&tower.top).unwrap().next().is_none(), "the mount point is free");
    file.write_all(b"late").unwrap_err();
    tower.server.process.signal(Signal::CONT);
    scratch.status_after_death().expect(0, &["which died", "mount"]);
    let again = scratch.mount(&tower.middle, &tower.top, &[]);
    assert!(fs::read(tower.top.join("file")).unwrap() == [bytes(1, BYTES), bytes(2, BYTES)].concat());
    scratch.umount(&tower.top);
    drop(again);
    let base = tower.come_down_from_the_middle(&scratch);
    assert!(fs::read(base.join("file")).unwrap() == [bytes(1, BYTES), bytes(2, BYTES)].concat());
}

fn ended_soon(tower: &mut Tower, since: Instant) -> Output {
    let output = tower.upper.wait();
    let took = since.elapsed();
    println!("the process ended after {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    output
}

#[test]
fn p03_force_frees_the_mount_point_at_the_deadline_and_ends_the_process() {
    with_a_hung_source(|scratch, tower| {
        let start = Instant::now();
        let output = scratch.run(["umount", tower.top.to_str().unwrap(), "--force", "--deadline", "1s"]);
        output.expect(7, &["1.0 MiB could not be written back", "is kept in", "mount"]);
        ended_soon(tower, start).expect(7, &["by force", "1.0 MiB not written back", "to write it back"]);
    });
}

#[test]
fn the_third_interrupt_ends_the_process_over_a_hung_source() {
    with_a_hung_source(|_, tower| {
        // A file is open.
        tower.upper.process.signal(Signal::INT);
        wait_until("the unmount has failed", || tower.upper.said("Still mounted") == 1);
        tower.upper.process.signal(Signal::INT);
        // The search for names in the source has not ended.
        wait_until("it explains", || tower.upper.said("Not yet written back") == 1);
        let start = Instant::now();
        tower.upper.process.signal(Signal::INT);
        ended_soon(tower, start).expect(1, &["Given up: 1.0 MiB not written back"]);
    });
}

#[test]
fn p03_sigterm_ends_a_process_whose_source_hangs() {
    with_a_hung_source(|_, tower| {
        tower.upper.process.signal(Signal::TERM);
        tower.upper.wait().expect(7, &["by force", "1.0 MiB not written back", "to write it back"]);
    });
}

/// After umount(2), only the flush still waits for the source.
#[test]
fn force_ends_the_flush_after_umount2() {
    with_a_hung_source(|scratch, tower| {
        crate::rig::run({
            let mut umount = std::process::Command::new("umount");
            umount.args(["--lazy", tower.top.to_str().unwrap()]);
            umount
        })
        .expect(0, &[]);
        let start = Instant::now();
        scratch.run(["umount", tower.top.to_str().unwrap(), "--force", "--deadline", "1s"]).expect(7, &["is kept in"]);
        ended_soon(tower, start).expect(7, &["by force"]);
    });
}

/// Mounts, and starts a process whose own mount namespace keeps a copy of the mount.
const HELD_ELSEWHERE: &str = "
    $MOUNT
    unshare --mount --propagation private sh -c 'echo > run/ready; exec sleep 1000' & holder=$!
    while ! [ -e run/ready ]; do sleep 0.02; done
    echo written > mount/file
    fails 3 ./slackwater umount mount
    echo later > /proc/$holder/root/$SANDBOX/mount/file
";

const NOTHING_LEFT: &str = "
    ended
    [ \"$(cat source/file)\" = later ]
    fails 2 ls /proc/$holder/root/$SANDBOX/mount
    kill $holder
";

#[test]
fn force_ends_a_volume_that_another_mount_namespace_holds() {
    need_fuse();
    let output =
        Sandbox::new().run_as_root(&format!("{HELD_ELSEWHERE}\n./slackwater umount mount --force\n{NOTHING_LEFT}"));
    output.expect(0, &["in use elsewhere"]);
}

#[test]
fn sigterm_ends_a_volume_that_another_mount_namespace_holds() {
    need_fuse();
    let end = "kill $(./slackwater status --json | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p')";
    Sandbox::new().run_as_root(&format!("{HELD_ELSEWHERE}\n{end}\n{NOTHING_LEFT}")).expect(0, &["in use elsewhere"]);
}

#[test]
fn p03_park_keeps_the_rest_for_the_next_mount() {
    with_a_hung_source(|scratch, tower| {
        let top = tower.top.to_str().unwrap();
        let park = ["umount", top, "--park", "--deadline", "1s"];
        // A file is open.
        scratch.run(park).expect(3, &["is in use by"]);
        let start = Instant::now();
        let output = scratch.run([&park[..], &["--force"]].concat());
        output.expect(0, &["1.0 MiB could not be written back", "is kept in", "to write it back"]);
        ended_soon(tower, start).expect(7, &["by force", "1.0 MiB not written back"]);
    });
}
