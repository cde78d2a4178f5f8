//! One writer: a second mount is refused, or takes the volume over.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::rig::{Mount, Scratch, need_fuse, run, wait_until};
use crate::store::{Store, stores};

fn take_over(store: &Store, scratch: &Scratch, mountpoint: &Path) -> Mount {
    Mount::start(store.elsewhere(scratch, mountpoint, &["--take-over"]), mountpoint)
}

fn write(file: &mut File, text: &str) -> std::io::Result<()> {
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[test]
fn a_second_writer_is_refused_and_the_first_one_named() {
    need_fuse();
    let scratch = Scratch::new();
    scratch.dir("elsewhere", 0o700);
    for store in stores(&scratch) {
        let [first, second] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut mount = store.mount(&scratch, &first, &[]);
        let pid = format!("pid {}", mount.process.0.id());
        // This user's registry knows it.
        let known = store.refused(&scratch, &second, &["--upload-limit", "1MiB"]);
        known.expect(3, &["is already mounted at", first.to_str().unwrap(), &pid, "slackwater umount"]);
        // The store knows it.
        let claimed = run(store.elsewhere(&scratch, &second, &[]));
        claimed.expect(3, &[&store.url, &pid, "--read-only", "--take-over"]);
        fs::write(first.join("file"), "1").unwrap();
        scratch.umount(&first);
        mount.wait().expect(0, &[]);
        let again = store.mount(&scratch, &second, &[]);
        assert_eq!(fs::read(second.join("file")).unwrap(), b"1");
        scratch.umount(&second);
        drop(again);
    }
}

#[test]
fn a_mount_can_wait_for_the_writer() {
    need_fuse();
    let scratch = Scratch::new();
    scratch.dir("elsewhere", 0o700);
    for store in stores(&scratch) {
        let [first, second] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut mount = store.mount(&scratch, &first, &[]);
        let (waiting, at) = (store.elsewhere(&scratch, &second, &["--wait"]), second.clone());
        let waiting = std::thread::spawn(move || Mount::start(waiting, &at));
        fs::write(first.join("file"), "1").unwrap();
        scratch.umount(&first);
        mount.wait().expect(0, &[]);
        let waited = waiting.join().unwrap();
        assert_eq!(fs::read(second.join("file")).unwrap(), b"1");
        waited.process.signal(Signal::TERM);
        let mut waited = waited;
        waited.wait().expect(0, &[]);
    }
}

#[test]
fn a_fenced_writer_gets_estale_and_keeps_what_it_made_durable() {
    need_fuse();
    let scratch = Scratch::new();
    scratch.dir("elsewhere", 0o700);
    for store in stores(&scratch) {
        let [first, second] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut loser = store.mount(&scratch, &first, &["--dirty-expire", "1h"]);
        let mut file = File::create(first.join("durable")).unwrap();
        write(&mut file, "durable").unwrap();
        let mut other = OpenOptions::new().append(true).create(true).open(first.join("other")).unwrap();
        write(&mut other, "one").unwrap();

        let mut winner = take_over(&store, &scratch, &second);
        let error = write(&mut file, " and more").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()), "{error}");
        let error = write(&mut other, " and two").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()), "each open file learns it: {error}");
        drop((file, other));
        let by = format!("pid {}", winner.process.0.id());
        wait_until("the status names the winner", || {
            scratch.run(["status", first.to_str().unwrap()]).text.contains(&by)
        });
        scratch.run(["status", first.to_str().unwrap()]).expect(0, &["FENCED", "umount --discard"]);

        let refused = scratch.run(["umount", first.to_str().unwrap(), "--deadline", "1s"]);
        assert_ne!(refused.code, Some(0), "{}", refused.text);
        assert!(refused.text.contains("--discard"), "{}", refused.text);
        let unsure = scratch.run(["umount", first.to_str().unwrap(), "--discard"]);
        let lost = ["durable", "other"].map(|name| format!("{}/{name}", store.url));
        unsure.expect(2, &["would be LOST", "4.0 KiB", &lost[0], &lost[1], "--yes"]);
        scratch.umount_with(&first, &["--discard", "--yes"]);
        loser.wait();

        assert_eq!(fs::read(second.join("durable")).unwrap(), b"durable");
        assert_eq!(fs::read(second.join("other")).unwrap(), b"one");
        fs::write(second.join("after"), "after").unwrap();
        winner.process.signal(Signal::TERM);
        winner.wait().expect(0, &[]);
        assert_eq!(store.left(), Vec::<String>::new());
        store.fsck(&scratch);
    }
}

#[test]
fn sigterm_ends_a_fenced_mount() {
    need_fuse();
    let scratch = Scratch::new();
    scratch.dir("elsewhere", 0o700);
    let store = Store::directory(&scratch);
    let [first, second] = ["a", "b"].map(|name| scratch.dir(name, 0o755));
    store.mkfs(&scratch);
    let mut loser = store.mount(&scratch, &first, &["--dirty-expire", "1h"]);
    fs::write(first.join("lost"), "lost").unwrap();
    let mut winner = take_over(&store, &scratch, &second);
    fs::write(second.join("kept"), "kept").unwrap();
    loser.process.signal(Signal::TERM);
    let ended = loser.wait();
    ended.expect(7, &[&store.url, "has taken over", "is kept in"]);
    winner.process.signal(Signal::TERM);
    winner.wait().expect(0, &[]);

    // Its unwritten data is older than the volume, so no later mount writes it there.
    for _ in 0..2 {
        let refused = store.refused(&scratch, &first, &[]);
        refused.expect(1, &["overwrite newer data", "mv "]);
    }
    fs::remove_file(store.arena("a")).unwrap();
    wait_until("the volume can be mounted again", || {
        let mut mount = store.mount(&scratch, &first, &[]);
        let kept = fs::read(first.join("kept")).unwrap() == b"kept";
        scratch.umount(&first);
        mount.wait().expect(0, &[]);
        kept
    });
}
