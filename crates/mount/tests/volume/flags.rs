//! Inode flags, as set by `chattr`.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use slackwater::Tunables;
use slackwater_testkit::pattern;

use crate::acls::as_user;
use crate::programs::until;
use crate::rig::{Rig, Tmpfs, assert_same, new_home};

/// Runs a test with a source on a tmpfs, which supports flags since Linux 6.6; skips it on older kernels.
fn with_flags(test: impl FnOnce(&Rig)) {
    let tmpfs = Tmpfs::new(new_home());
    let source = tmpfs.0.join("source");
    fs::create_dir(&source).unwrap();
    fs::set_permissions(&tmpfs.0, Permissions::from_mode(0o755)).unwrap();
    let rig = Rig::over(tmpfs.0.clone(), source, 32 << 20, Tunables::default());
    match flags_of(&rig.source) {
        Err(Errno::NOTTY) => println!("skipped: tmpfs does not support flags here"),
        found => {
            assert_eq!(found, Ok(IFlags::empty()));
            test(&rig);
        }
    }
}

fn flags_of(path: &Path) -> Result<IFlags, Errno> {
    ioctl_getflags(File::open(path).unwrap())
}

fn set_flags(path: &Path, flags: IFlags) -> Result<(), Errno> {
    ioctl_setflags(File::open(path).unwrap(), flags)
}

fn opened(path: &Path, options: &OpenOptions) -> Result<(), Errno> {
    options.open(path).map(drop).map_err(|error| Errno::from_io_error(&error).unwrap())
}

#[test]
fn flags_are_those_of_the_source() {
    with_flags(|rig| {
        fs::write(rig.file("file"), "text").unwrap();
        fs::create_dir(rig.file("dir")).unwrap();
        for name in ["file", "dir"] {
            set_flags(&rig.file(name), IFlags::NODUMP | IFlags::NOATIME).unwrap();
            for path in [rig.file(name), rig.stored(name)] {
                assert_eq!(flags_of(&path), Ok(IFlags::NODUMP | IFlags::NOATIME));
            }
            set_flags(&rig.file(name), IFlags::NODUMP).unwrap();
            assert_eq!(flags_of(&rig.stored(name)), Ok(IFlags::NODUMP));
            // Changing this flag needs more rights than the kernel checks.
            let journalled = set_flags(&rig.file(name), IFlags::NODUMP | IFlags::JOURNALING);
            assert_eq!(journalled, Err(Errno::OPNOTSUPP));
        }
        set_flags(&rig.file("dir"), IFlags::APPEND).unwrap();
        fs::write(rig.file("dir/stays"), "").unwrap();
        assert_eq!(
            fs::remove_file(rig.file("dir/stays")).unwrap_err().raw_os_error(),
            Some(Errno::PERM.raw_os_error())
        );
        set_flags(&rig.file("dir"), IFlags::empty()).unwrap();
        fs::remove_file(rig.file("dir/stays")).unwrap();
    });
}

/// It was seen when the kernel's attributes had expired, after a second.
#[test]
fn a_change_of_flags_is_seen_in_the_ctime_at_once() {
    with_flags(|rig| {
        let path = rig.file("file");
        fs::write(&path, "text").unwrap();
        let ctime = || {
            let metadata = fs::metadata(&path).unwrap();
            (metadata.ctime(), metadata.ctime_nsec())
        };
        let before = ctime();
        // The clock of a file system may have a step of 10 ms.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(ctime(), before);
        set_flags(&path, IFlags::NODUMP).unwrap();
        assert!(ctime() > before);
    });
}

#[test]
fn written_data_is_in_the_source_before_a_file_becomes_immutable() {
    with_flags(|rig| {
        let (path, write) = (rig.file("file"), OpenOptions::new().write(true).clone());
        let wanted = pattern(1, 1_000_001);
        fs::write(&path, &wanted).unwrap();
        set_flags(&path, IFlags::IMMUTABLE).unwrap();
        assert_same(&fs::read(rig.stored("file")).unwrap(), &wanted);
        assert_eq!(opened(&path, &write), Err(Errno::PERM));
        assert_eq!(opened(&path, write.clone().truncate(true)), Err(Errno::PERM));
        for refused in [
            fs::remove_file(&path),
            fs::rename(&path, rig.file("other")),
            fs::set_permissions(&path, Permissions::from_mode(0o600)),
        ] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
        }
        assert_same(&fs::read(&path).unwrap(), &wanted);
        set_flags(&path, IFlags::empty()).unwrap();
        fs::write(&path, "again").unwrap();
        rig.umount().unwrap();
        assert_eq!(fs::read(rig.stored("file")).unwrap(), b"again");
    });
}

#[test]
fn a_file_open_for_writing_cannot_be_made_immutable() {
    with_flags(|rig| {
        let path = rig.file("file");
        let mut file = File::create(&path).unwrap();
        for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
            assert_eq!(set_flags(&path, flag), Err(Errno::BUSY));
            assert_eq!(flags_of(&rig.stored("file")), Ok(IFlags::empty()));
        }
        file.write_all(b"text").unwrap();
        drop(file);
        set_flags(&path, IFlags::APPEND).unwrap();
        assert_eq!(opened(&path, OpenOptions::new().write(true)), Err(Errno::PERM));
        assert_eq!(opened(&path, OpenOptions::new().append(true)), Err(Errno::OPNOTSUPP));
        set_flags(&path, IFlags::empty()).unwrap();
        // Directly in the source.
        set_flags(&rig.stored("file"), IFlags::IMMUTABLE).unwrap();
        until("the flag is noticed", || opened(&path, OpenOptions::new().write(true)) == Err(Errno::PERM));
        set_flags(&rig.stored("file"), IFlags::empty()).unwrap();
        until("the flag is noticed", || opened(&path, OpenOptions::new().write(true)) == Ok(()));
        rig.umount().unwrap();
        assert_eq!(fs::read(rig.stored("file")).unwrap(), b"text");
    });
}

#[test]
fn a_user_who_may_not_set_a_flag_cannot_set_it_through_a_mount() {
    with_flags(|rig| {
        let path = rig.file("file");
        fs::write(&path, "text").unwrap();
        chown(&path, Some(65_534), None).unwrap();
        let set = |uid: u32, flags: IFlags| as_user(uid, uid, || set_flags(&path, flags));
        assert_eq!(set(65_534, IFlags::IMMUTABLE), Err(Errno::PERM));
        assert_eq!(set(65_534, IFlags::NODUMP), Ok(()));
        assert_eq!(set(65_533, IFlags::empty()), Err(Errno::PERM));
        set_flags(&path, IFlags::IMMUTABLE).unwrap();
        assert_eq!(set(65_534, IFlags::empty()), Err(Errno::PERM));
        set_flags(&path, IFlags::empty()).unwrap();
    });
}
