//! File handles: access to a file without its name or a cache, as NFS servers use it.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use libc::{O_DIRECTORY, O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR};
use rustix::io::Errno;
use slackwater::Tunables;

use crate::programs::until;
use crate::rig::{Rig, Tmpfs, new_home};
use crate::sys::Handle;

/// ext4, XFS and btrfs.
const KNOWN: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// Runs a test on file systems whose handles have a known format: a tmpfs, and the temporary directory's if it is one.
fn on_each_file_system(test: impl Fn(Rig)) {
    let new_rig = |home: &Path| {
        let source = home.join("source");
        fs::create_dir(&source).unwrap();
        Rig::over(home.into(), source, 32 << 20, Tunables::default())
    };
    let tmpfs = Tmpfs::new(new_home());
    test(new_rig(&tmpfs.0));
    let home = new_home();
    if KNOWN.contains(&rustix::fs::statfs(&home).unwrap().f_type) {
        test(new_rig(&home));
    } else {
        fs::remove_dir(home).unwrap();
    }
}

/// Makes kernel and engine drop all unused nodes. The root remains, and a directory that still had known entries when
/// the kernel was asked.
fn forget(rig: &Rig) {
    until("the unused nodes are dropped", || {
        rig.engine.shrink(0);
        rig.mounted.super_block().status().inodes <= 2
    });
}

fn path_of(file: &File) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

/// Opens by handle everything that [`fill`] created.
fn check(rig: &Rig, handles: &[Handle; 5], inos: [u64; 5]) {
    let mount = File::open(&rig.path).unwrap();
    let [root, folder, file, link, deep] = handles;
    let file = file.open(&mount, O_RDWR).unwrap();
    let mut found = String::new();
    (&file).read_to_string(&mut found).unwrap();
    assert_eq!(found, "text");
    let folder = folder.open(&mount, O_RDONLY | O_DIRECTORY).unwrap();
    let deep = deep.open(&mount, O_RDONLY | O_DIRECTORY).unwrap();
    assert_eq!(path_of(&deep), rig.file("upper/deep"), "connected to the root");
    let link = link.open(&mount, O_PATH | O_NOFOLLOW).unwrap();
    let root = root.open(&mount, O_RDONLY | O_DIRECTORY).unwrap();
    assert_eq!([root, folder, file, link, deep].map(|file| file.metadata().unwrap().ino()), inos);
}

fn fill(rig: &Rig) -> ([Handle; 5], [u64; 5]) {
    fs::create_dir_all(rig.file("upper/deep")).unwrap();
    fs::create_dir(rig.file("folder")).unwrap();
    fs::write(rig.file("file"), "text").unwrap();
    symlink("folder", rig.file("link")).unwrap();
    let paths = ["", "folder", "file", "link", "upper/deep"].map(|path| rig.file(path));
    let handles = paths.each_ref().map(|path| Handle::of(path).unwrap());
    (handles, paths.map(|path| fs::symlink_metadata(path).unwrap().ino()))
}

#[test]
fn p13_a_handle_finds_its_file_after_all_caches_dropped_it_and_after_a_remount() {
    on_each_file_system(|mut rig| {
        let (handles, inos) = fill(&rig);
        check(&rig, &handles, inos);
        rig.mounted.sync().unwrap();
        forget(&rig);
        check(&rig, &handles, inos);
        rig.mount_again();
        check(&rig, &handles, inos);
        // A renamed file is found by its old handle and its new name, as one file.
        fs::rename(rig.file("file"), rig.file("upper/moved")).unwrap();
        rig.mount_again();
        let mount = File::open(&rig.path).unwrap();
        let file = handles[2].open(&mount, O_RDWR).unwrap();
        file.write_all_at(b"TE", 0).unwrap();
        assert_eq!(fs::read_to_string(rig.file("upper/moved")).unwrap(), "TExt");
        drop((file, mount));
        rig.umount().unwrap();
        assert_eq!(fs::read_to_string(rig.stored("upper/moved")).unwrap(), "TExt");
    });
}

#[test]
fn p13_a_handle_of_a_removed_file_is_stale() {
    on_each_file_system(|mut rig| {
        let (handles, _) = fill(&rig);
        fs::remove_dir_all(rig.file("upper")).unwrap();
        fs::remove_dir(rig.file("folder")).unwrap();
        fs::remove_file(rig.file("file")).unwrap();
        fs::remove_file(rig.file("link")).unwrap();
        for number in 0..50 {
            fs::write(rig.file(number.to_string()), "another file, perhaps of the same number").unwrap();
        }
        let are_stale = |rig: &Rig| {
            let mount = File::open(&rig.path).unwrap();
            for handle in &handles[1..] {
                assert_eq!(handle.open(&mount, O_PATH).err(), Some(Errno::STALE));
            }
        };
        are_stale(&rig);
        rig.mount_again();
        are_stale(&rig);
    });
}

#[test]
fn p13_a_forged_handle_is_stale() {
    on_each_file_system(|rig| {
        let (handles, _) = fill(&rig);
        rig.mounted.sync().unwrap();
        forget(&rig);
        let mount = File::open(&rig.path).unwrap();
        let opened = |words: &[u32]| handles[2].clone().with_words(words).open(&mount, O_PATH).map(drop);
        // The upper and lower half of the number, and the generation.
        let [upper, lower, generation] = handles[2].words()[..] else {
            panic!("a handle with three words, as FUSE makes them")
        };
        assert_eq!(opened(&[upper, lower, generation]), Ok(()));
        forget(&rig);
        for words in [[upper, lower, 1], [upper ^ 1, lower, 0], [0, lower, 0], [0, 2, 0], [5, 99, 0], [7, 0, 0]] {
            assert_eq!(opened(&words), Err(Errno::STALE), "{words:?}");
        }
        // A directory of the same file system outside the source.
        let outside = rig.source.parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        let words = Handle::of(&outside).unwrap().words();
        let forged = if words.len() == 2 { [words[1], words[0], 0] } else { [words[0], words[1], 0] };
        let answer = opened(&forged);
        fs::remove_dir(&outside).unwrap();
        assert_eq!(answer, Err(Errno::STALE));
    });
}
