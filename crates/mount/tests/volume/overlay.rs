//! A union file system whose upper directory is on a mount.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::rig::Rig;

#[test]
fn a_rename_can_leave_a_whiteout() {
    let rig = Rig::new();
    let rename = |from: &str, to: &str| renameat_with(CWD, rig.file(from), CWD, rig.file(to), RenameFlags::WHITEOUT);
    fs::write(rig.file("a"), "new").unwrap();
    fs::write(rig.file("b"), "old").unwrap();
    rename("a", "b").unwrap();
    assert_eq!(rename("nothing", "c"), Err(Errno::NOENT));
    assert_eq!(fs::read_to_string(rig.file("b")).unwrap(), "new");
    for path in [rig.file("a"), rig.stored("a")] {
        let found = fs::symlink_metadata(path).unwrap();
        assert!(found.file_type().is_char_device() && found.rdev() == 0);
    }
    rig.umount().unwrap();
    assert_eq!(fs::read_to_string(rig.stored("b")).unwrap(), "new");
}

#[test]
fn an_overlay_works_with_its_upper_directory_on_a_mount() {
    let rig = Rig::new();
    for dir in ["lower", "lower/dir", "upper", "work", "union"] {
        fs::create_dir(rig.file(dir)).unwrap();
    }
    for name in ["removed", "renamed", "changed", "dir/inner"] {
        fs::write(rig.file("lower").join(name), name).unwrap();
    }
    let [lower, upper, work, union] = ["lower", "upper", "work", "union"].map(|dir| rig.file(dir));
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let options = std::ffi::CString::new(options).unwrap();
    match mount("overlay", &union, "overlay", MountFlags::empty(), options.as_c_str()) {
        Err(Errno::NODEV) => return println!("skipped: this kernel has no overlayfs"),
        mounted => mounted.unwrap(),
    }
    let act = || -> std::io::Result<Vec<String>> {
        fs::remove_file(union.join("removed"))?;
        fs::rename(union.join("renamed"), union.join("new name"))?;
        fs::write(union.join("changed"), "otherwise")?;
        fs::remove_dir_all(union.join("dir"))?;
        fs::create_dir(union.join("dir"))?;
        let mut names: Vec<_> = fs::read_dir(&union)?
            .map(|entry| Ok(entry?.file_name().into_string().unwrap()))
            .collect::<std::io::Result<_>>()?;
        names.sort();
        names.push(fs::read_to_string(union.join("new name"))?);
        names.push(fs::read_to_string(union.join("changed"))?);
        names.push(fs::read_dir(union.join("dir"))?.count().to_string());
        Ok(names)
    };
    let found = act();
    unmount(&union, UnmountFlags::DETACH).unwrap();
    assert_eq!(found.unwrap(), ["changed", "dir", "new name", "renamed", "otherwise", "0"]);
    rig.umount().unwrap();
    assert!(fs::symlink_metadata(rig.stored("upper/removed")).unwrap().file_type().is_char_device());
}
