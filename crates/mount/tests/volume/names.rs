//! Operations on names, through system calls of programs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, linkat, mknodat, open, renameat_with};
use rustix::io::Errno;

use crate::needs;
use crate::rig::Rig;

#[test]
fn directories_links_and_special_files_are_created_and_removed() {
    let rig = Rig::new();
    fs::create_dir(rig.file("d")).unwrap();
    symlink("d/a b", rig.file("s")).unwrap();
    fs::write(rig.file("d/a b"), b"x").unwrap();
    assert_eq!(fs::read(rig.file("s")).unwrap(), b"x");
    assert_eq!(fs::read_link(rig.file("s")).unwrap().to_str(), Some("d/a b"));
    mknodat(CWD, rig.file("fifo"), FileType::Fifo, Mode::from(0o600), 0).unwrap();
    mknodat(CWD, rig.file("null"), FileType::CharacterDevice, Mode::from(0o666), rustix::fs::makedev(1, 3)).unwrap();
    assert!(fs::metadata(rig.file("fifo")).unwrap().file_type().is_fifo());
    fs::write(rig.file("null"), b"into the void").unwrap();
    assert_eq!(fs::metadata(rig.stored("null")).unwrap().rdev(), rustix::fs::makedev(1, 3));
    let error = fs::remove_dir(rig.file("d")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    for name in ["d/a b", "s", "fifo", "null"] {
        fs::remove_file(rig.file(name)).unwrap();
    }
    fs::remove_dir(rig.file("d")).unwrap();
    assert_eq!(fs::read_dir(&rig.source).unwrap().count(), 0);
    rig.umount().unwrap();
}

#[test]
fn two_names_of_a_file_are_one_file() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"one").unwrap();
    fs::hard_link(rig.file("a"), rig.file("b")).unwrap();
    let (a, b) = (fs::metadata(rig.file("a")).unwrap(), fs::metadata(rig.file("b")).unwrap());
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    fs::write(rig.file("b"), b"another").unwrap();
    assert_eq!(fs::read(rig.file("a")).unwrap(), b"another");
    fs::remove_file(rig.file("a")).unwrap();
    assert_eq!(fs::metadata(rig.file("b")).unwrap().nlink(), 1);
    assert_eq!(fs::read(rig.file("b")).unwrap(), b"another");
    // Names that exist before they are looked up lead to one inode as well.
    fs::write(rig.stored("c"), b"c").unwrap();
    fs::hard_link(rig.stored("c"), rig.stored("d")).unwrap();
    let (c, d) = (File::options().write(true).open(rig.file("c")).unwrap(), File::open(rig.file("d")).unwrap());
    std::os::unix::fs::FileExt::write_all_at(&c, b"changed", 0).unwrap();
    let mut found = [0; 7];
    std::os::unix::fs::FileExt::read_exact_at(&d, &mut found, 0).unwrap();
    assert_eq!(&found, b"changed");
}

#[test]
fn a_rename_replaces_refuses_or_exchanges() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = Rig::new();
    let (a, b) = (rig.file("a"), rig.file("b"));
    let rename = |flags| renameat_with(CWD, &a, CWD, &b, flags);
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert!(!a.exists());
    fs::create_dir(rig.file("d")).unwrap();
    fs::rename(&b, rig.file("d/c")).unwrap();
    assert_eq!(fs::read(rig.file("d/c")).unwrap(), b"b");
}

#[test]
fn a_file_that_replaces_another_is_written_back_before() {
    let rig = Rig::new();
    fs::write(rig.file("conf"), b"old").unwrap();
    rig.mounted.sync().unwrap();
    fs::write(rig.file("conf.new"), b"new").unwrap();
    fs::rename(rig.file("conf.new"), rig.file("conf")).unwrap();
    assert_eq!(fs::read(rig.stored("conf")).unwrap(), b"new");
}

#[test]
fn a_change_in_a_directory_changes_its_times_at_once() {
    let rig = Rig::new();
    fs::create_dir(rig.file("d")).unwrap();
    let old = SystemTime::now() - Duration::from_secs(1000);
    let age = |change: &dyn Fn()| {
        File::open(rig.file("d")).unwrap().set_modified(old).unwrap();
        assert_eq!(fs::metadata(rig.file("d")).unwrap().modified().unwrap(), old);
        change();
        fs::metadata(rig.file("d")).unwrap().modified().unwrap() > old + Duration::from_secs(500)
    };
    assert!(age(&|| drop(File::create(rig.file("d/a")).unwrap())), "create");
    assert!(age(&|| fs::hard_link(rig.file("d/a"), rig.file("d/b")).unwrap()), "link");
    assert!(age(&|| fs::rename(rig.file("d/b"), rig.file("d/c")).unwrap()), "rename");
    assert!(age(&|| fs::remove_file(rig.file("d/c")).unwrap()), "unlink");
    assert!(age(&|| fs::create_dir(rig.file("d/e")).unwrap()), "mkdir");
    assert_eq!(fs::metadata(rig.file("d")).unwrap().nlink(), fs::metadata(rig.stored("d")).unwrap().nlink());
    assert!(age(&|| fs::remove_dir(rig.file("d/e")).unwrap()), "rmdir");
}

#[test]
fn explicit_times_survive_a_later_write_back() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"data").unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    File::options().write(true).open(rig.file("a")).unwrap().set_modified(then).unwrap();
    assert_eq!(fs::metadata(rig.file("a")).unwrap().modified().unwrap(), then);
    rig.mounted.sync().unwrap();
    assert_eq!(fs::metadata(rig.stored("a")).unwrap().modified().unwrap(), then);
}

#[test]
fn access_times_change_only_when_set_and_the_mount_is_noatime() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"data").unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    let file = File::open(rig.file("a")).unwrap();
    file.set_times(std::fs::FileTimes::new().set_accessed(then)).unwrap();
    assert_eq!(fs::read(rig.file("a")).unwrap(), b"data");
    for path in [rig.file("a"), rig.stored("a")] {
        assert_eq!(fs::metadata(path).unwrap().accessed().unwrap(), then);
    }
    let flags = rustix::fs::statvfs(&rig.path).unwrap().f_flag;
    assert!(flags.contains(rustix::fs::StatVfsMountFlags::NOATIME));
}

#[test]
fn a_new_file_has_its_creators_owner_and_umask() {
    let rig = Rig::new();
    fs::create_dir(rig.file("d")).unwrap();
    fs::set_permissions(rig.file("d"), fs::Permissions::from_mode(0o1777)).unwrap();
    let script = format!("umask 027; cd {}; echo x > f; mkdir e", rig.file("d").display());
    let mut child = std::process::Command::new("setpriv");
    child.args(["--reuid=65534", "--regid=65533", "--clear-groups", "sh", "-c", &script]).current_dir("/");
    assert!(child.status().unwrap().success());
    for (name, mode) in [("d/f", 0o640), ("d/e", 0o750)] {
        for stat in [fs::metadata(rig.file(name)).unwrap(), fs::metadata(rig.stored(name)).unwrap()] {
            assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (65534, 65533, mode), "{name}");
        }
    }
    // A user without permission cannot.
    let script = format!("echo x > {}/d/f", rig.path.display());
    let mut child = std::process::Command::new("setpriv");
    child.args(["--reuid=4711", "--regid=4711", "--clear-groups", "sh", "-c", &script]).current_dir("/");
    assert!(!child.stderr(std::process::Stdio::null()).status().unwrap().success());
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let rig = Rig::new();
    let file = open(&rig.path, OFlags::TMPFILE | OFlags::RDWR, Mode::from(0o600)).unwrap();
    rustix::io::write(&file, b"nameless").unwrap();
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0);
    let fd = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    linkat(CWD, fd, CWD, rig.file("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(rig.file("named")).unwrap(), b"nameless");
    drop(file);
    rig.umount().unwrap();
    assert_eq!(fs::read(rig.stored("named")).unwrap(), b"nameless");
}

#[test]
fn exclusive_creation_is_exclusive_and_errors_have_the_right_errno() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"").unwrap();
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
    assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(rig.file("a")).unwrap_err()), Errno::EXIST);
    assert_eq!(errno(fs::read(rig.file("b")).unwrap_err()), Errno::NOENT);
    assert_eq!(errno(fs::read(rig.file("a/b")).unwrap_err()), Errno::NOTDIR);
    assert_eq!(errno(fs::write(rig.file("x".repeat(256)), b"").unwrap_err()), Errno::NAMETOOLONG);
    assert_eq!(errno(fs::create_dir(rig.file("a")).unwrap_err()), Errno::EXIST);
    assert_eq!(errno(fs::remove_dir(rig.file("a")).unwrap_err()), Errno::NOTDIR);
    assert_eq!(errno(fs::remove_file(&rig.path).unwrap_err()), Errno::ISDIR);
    let follow = OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(rig.file("a"));
    assert_eq!(errno(follow.unwrap_err()), Errno::NOTDIR);
}

#[test]
fn statfs_reports_the_space_of_the_source() {
    let rig = Rig::new();
    let (here, there) = (rustix::fs::statvfs(&rig.path).unwrap(), rustix::fs::statvfs(&rig.source).unwrap());
    assert_eq!((here.f_frsize, here.f_namemax), (there.f_frsize, there.f_namemax));
    assert_eq!(here.f_blocks, there.f_blocks);
}

#[test]
fn the_cache_probe_of_a_new_mount_leaves_no_file() {
    let rig = Rig::new();
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0);
    assert_eq!(fs::read_dir(&rig.source).unwrap().count(), 0);
    assert_eq!(rig.mounted.open_files(), 0);
    rig.umount().unwrap();
}
