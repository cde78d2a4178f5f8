//! The quota of a directory: its limits, its figures, and the files that were there before.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::fs::statvfs;

use crate::disk::{Disk, Kind};
use crate::quota::{Quota, QuotaError};
use crate::rig::{Scratch, bytes, run, wait_until};
use crate::sys::{self, Figures};
use crate::{MIB, assert_is_quota, limited, on_each_disk, write_until_refused};

/// The first number of ours, as in the module under test.
const FIRST: u64 = 0x5300_0000;

/// Usage and limits of the project of `path`; a limit of 0 is none.
fn usage(path: &Path) -> Figures {
    let directory = File::open(path).unwrap();
    // Delayed allocation counts blocks of the file system's maps later.
    directory.sync_all().unwrap();
    sys::figures(&directory, sys::attributes(&directory).unwrap().project).unwrap()
}

fn write(path: &Path, count: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(&bytes(1, count as usize)).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn bytes_and_inodes_are_limited_and_shown() {
    on_each_disk("directory::bytes_and_inodes_are_limited_and_shown", |_, disk| {
        let (path, _) = limited(disk, 8 * MIB, Some(20));
        let shown = statvfs(&path).unwrap();
        assert_eq!((shown.f_blocks * shown.f_frsize, shown.f_files), (8 * MIB, 20));
        // The directory is one of them.
        for nth in 0..19 {
            File::create(path.join(nth.to_string())).unwrap();
        }
        assert_is_quota(&File::create(path.join("one more")).unwrap_err());
        assert_is_quota(&fs::create_dir(path.join("a directory")).unwrap_err());
        let (_, accepted) = write_until_refused(&path.join("0"));
        assert!((7 * MIB..=8 * MIB).contains(&(accepted.len() as u64)), "{}", accepted.len());
        assert!(statvfs(&path).unwrap().f_bavail * shown.f_frsize < MIB / 8);
        let usage = usage(&path);
        assert_eq!((usage.bytes_max, usage.inodes, usage.inodes_max), (8 * MIB, 20, 20));
        assert!((7 * MIB..=8 * MIB).contains(&usage.bytes), "{usage:?}");
        // Nothing else is limited.
        write(&disk.path.join("beside"), 16 * MIB);
    });
}

#[test]
fn files_that_exist_are_counted_and_new_ones_are_too() {
    on_each_disk("directory::files_that_exist_are_counted_and_new_ones_are_too", |_, disk| {
        let path = disk.path.join("full");
        fs::create_dir_all(path.join("a/b/c")).unwrap();
        write(&path.join("a/b/file"), 4 * MIB);
        write(&path.join("a/other"), MIB);
        fs::hard_link(path.join("a/other"), path.join("link")).unwrap();
        write(&disk.path.join("outside"), MIB);
        symlink("../outside", path.join("out")).unwrap();
        let quota = Quota::of(&path).unwrap();
        assert_eq!(sys::attributes(File::open(&path).unwrap()).unwrap().project, 0);
        quota.set(Some(8 * MIB), None).unwrap();
        let before = usage(&path);
        assert_eq!((before.inodes, before.bytes_max, before.inodes_max), (6, 8 * MIB, 0), "{before:?}");
        assert!((5 * MIB..6 * MIB).contains(&before.bytes), "{before:?}");
        fs::create_dir(path.join("a/b/c/d")).unwrap();
        write(&path.join("a/b/c/d/new"), MIB);
        assert_eq!(usage(&path).inodes, 8);
        write_until_refused(&path.join("a/b/c/d/more"));

        quota.remove().unwrap();
        quota.remove().unwrap();
        write(&path.join("a/b/c/d/more"), 16 * MIB);
        assert_eq!(fs::read(path.join("a/b/file")).unwrap(), bytes(1, 4 * MIB as usize));
        quota.set(Some(64 * MIB), None).unwrap();
        assert_eq!(usage(&path).inodes, 9);
        // A directory that is deleted leaves its number free.
        let project = sys::attributes(File::open(&path).unwrap()).unwrap().project;
        quota.remove().unwrap();
        drop(quota);
        fs::remove_dir_all(&path).unwrap();
        let root = File::open(&disk.path).unwrap();
        wait_until("its inodes are gone", || sys::figures(&root, project).unwrap() == Figures::default());
    });
}

#[test]
fn a_quota_is_raised_and_lowered() {
    on_each_disk("directory::a_quota_is_raised_and_lowered", |_, disk| {
        let (path, quota) = limited(disk, 4 * MIB, None);
        quota.set(Some(4 * MIB), None).unwrap();
        // A name may need a block as well.
        File::create(path.join("two")).unwrap();
        write_until_refused(&path.join("one"));
        quota.set(Some(8 * MIB), Some(3)).unwrap();
        assert_is_quota(&File::create(path.join("three")).unwrap_err());
        let (_, accepted) = write_until_refused(&path.join("two"));
        assert!((3 * MIB..=5 * MIB).contains(&(accepted.len() as u64)), "{}", accepted.len());
        // Below what it uses: nothing is lost, and nothing is added.
        quota.set(Some(MIB), None).unwrap();
        let mut file = File::options().append(true).open(path.join("two")).unwrap();
        assert_is_quota(&file.write_all(&[1; 64 << 10]).unwrap_err());
        assert!(fs::read(path.join("two")).unwrap() == accepted, "other bytes than written");
        quota.set(None, None).unwrap();
        write(&path.join("three"), 16 * MIB);
        assert_eq!(usage(&path).bytes_max, 0);
    });
}

#[test]
fn directories_never_share_a_project() {
    on_each_disk("directory::directories_never_share_a_project", |_, disk| {
        let make = |name: String| {
            let path = disk.path.join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let paths: Vec<_> = (0..24).map(|nth| make(format!("volume{nth}"))).collect();
        // Something else has the first choice of every other one.
        for path in paths.iter().step_by(2) {
            let taken = make(format!("{}-taken", path.file_name().unwrap().to_str().unwrap()));
            let inode = fs::metadata(path).unwrap().ino();
            chattr(&["-p", &(FIRST + inode).to_string()], &taken);
        }
        thread::scope(|scope| {
            for path in &paths {
                for _ in 0..2 {
                    scope.spawn(|| Quota::of(path).unwrap().set(Some(MIB), None).unwrap());
                }
            }
        });
        for path in &paths {
            assert_eq!(usage(path).inodes, 1, "{}", path.display());
        }
    });
}

#[test]
fn a_project_of_someone_else_is_refused() {
    on_each_disk("directory::a_project_of_someone_else_is_refused", |_, disk| {
        let theirs = disk.path.join("theirs");
        fs::create_dir(&theirs).unwrap();
        chattr(&["-p", "4711", "+P"], &theirs);
        fs::create_dir(theirs.join("below")).unwrap();
        let (ours, _) = limited(disk, MIB, None);
        fs::create_dir(ours.join("below")).unwrap();
        for path in [&theirs, &theirs.join("below"), &ours.join("below")] {
            let Err(QuotaError::Unsupported(failure)) = Quota::of(path).unwrap().set(Some(1), None) else {
                panic!("{} got a quota", path.display());
            };
            assert!(failure.what.contains("belongs to project"), "{failure}");
        }
        assert_eq!(usage(&ours).bytes_max, MIB);
    });
}

#[track_caller]
fn chattr(words: &[&str], path: &Path) {
    let mut command = Command::new("chattr");
    command.args(words).arg(path);
    run(command).expect(0, &[]);
}

#[test]
fn accounting_without_limits_is_no_quota() {
    on_each_disk("directory::accounting_without_limits_is_no_quota", |_, disk| {
        let scratch = Scratch::new();
        let options = if disk.kind == Kind::Xfs { "pqnoenforce" } else { "noquota" };
        let counting = Disk::new(&scratch, disk.kind, options).unwrap();
        let Err(QuotaError::Unsupported(failure)) = Quota::of(&counting.path) else { panic!("there are no limits") };
        assert!(failure.what.contains("without limits"), "{failure}");
        assert!(failure.advice[0].contains("prjquota"), "{failure}");
    });
}
