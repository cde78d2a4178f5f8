//! The log of a mount in the background: few lines of one kind, and a maximum size.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::rig::{Scratch, need_fuse, run, wait_until};

const MIB: u64 = 1 << 20;
/// Rounds of work, which fill the log several times.
const ROUNDS: usize = 1000;

/// Starts a mount in the background. Returns its log.
fn start(scratch: &Scratch, source: &Path, mountpoint: &Path, level: &str) -> PathBuf {
    let arena = scratch.arena("a");
    let mut command = scratch.command(["mount", "--background", "--cache", "32MiB", "--arena"]);
    command.arg(arena).args([source, mountpoint]).env("SLACKWATER_LOG", level);
    run(command).expect(0, &["Mounted"]);
    let logs = fs::read_dir(scratch.path.join("run")).unwrap().map(|entry| entry.unwrap().path());
    logs.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "log")).unwrap()
}

#[test]
fn the_log_of_a_mount_is_bounded() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    mount("tmpfs", &source, "tmpfs", MountFlags::empty(), None).unwrap();
    let log = start(&scratch, &source, &mountpoint, "trace");
    let mut longest = 0;
    let is_shorter = (0..ROUNDS).any(|_| {
        for nth in 0..100 {
            fs::write(mountpoint.join(format!("f{nth}")), [1; 100]).unwrap();
            File::open(mountpoint.join(format!("f{nth}"))).unwrap().sync_all().unwrap();
        }
        let len = fs::metadata(&log).unwrap().len();
        longest = longest.max(len);
        len < longest
    });
    assert!(is_shorter, "the log has {longest} bytes and was never full");
    assert!((4 * MIB..9 * MIB).contains(&longest), "{longest} bytes");
    assert!(fs::read_to_string(&log).unwrap().starts_with("... earlier lines were dropped"));
    scratch.umount(&mountpoint);
    wait_until("no process uses it", || unmount(&source, UnmountFlags::empty()).is_ok());
}

/// Many files fail, again and again; the log gets only a few lines.
#[test]
fn the_log_has_few_lines_of_one_kind() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    mount("tmpfs", &source, "tmpfs", MountFlags::empty(), Some(c"size=4m")).unwrap();
    let name = |nth: u32| format!("f{nth}");
    for nth in 0..100 {
        File::create(source.join(name(nth))).unwrap().set_len(4096).unwrap();
    }
    let log = start(&scratch, &source, &mountpoint, "warn");
    let mut filler = File::create(source.join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    for nth in 0..100 {
        // Writes into a hole; the cache does not know that it is one.
        let mut file = File::options().write(true).open(mountpoint.join(name(nth))).unwrap();
        file.write_all(&[2; 4096]).unwrap();
    }
    for _ in 0..3 {
        let synced = scratch.run(["sync", mountpoint.to_str().unwrap()]);
        assert_ne!(synced.code, Some(0), "{}", synced.text);
    }
    let text = fs::read_to_string(&log).unwrap();
    let lines = text.lines().filter(|line| line.contains("write-back failed")).count();
    assert!((1..=20).contains(&lines), "{lines} of: {text}");
    fs::remove_file(source.join("filler")).unwrap();
    drop(filler);
    scratch.run(["sync", mountpoint.to_str().unwrap()]).expect(0, &[]);
    scratch.umount(&mountpoint);
    assert!((0..100).all(|nth| fs::read(source.join(name(nth))).unwrap() == [2; 4096]));
    wait_until("no process uses it", || unmount(&source, UnmountFlags::empty()).is_ok());
}
