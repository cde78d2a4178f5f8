//! Directories that cannot have a quota, and the reasons that are given.

use std::fs;
use std::path::Path;

use rustix::mount::{MountFlags, mount};

use crate::disk::{Disk, Kind};
use crate::quota::{Quota, QuotaError};
use crate::rig::{Scratch, need_fuse};

#[track_caller]
fn assert_unsupported(path: &Path, words: [&str; 2]) {
    let Err(QuotaError::Unsupported(failure)) = Quota::of(path) else { panic!("{} has quotas", path.display()) };
    let text = failure.to_string();
    assert!(text.contains(path.to_str().unwrap()) && words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn file_systems_without_project_quotas_are_named() {
    need_fuse();
    let scratch = Scratch::new();
    let path = scratch.dir("tmpfs", 0o755);
    mount("tmpfs", &path, "tmpfs", MountFlags::empty(), None).unwrap();
    assert_unsupported(&path, ["tmpfs", "ext4 or XFS"]);
    let layers = ["lower", "upper", "work"].map(|name| path.join(name));
    layers.iter().for_each(|layer| fs::create_dir(layer).unwrap());
    let [lower, upper, work] = layers.map(|layer| layer.display().to_string());
    let overlay = scratch.dir("overlay", 0o755);
    let options = std::ffi::CString::new(format!("lowerdir={lower},upperdir={upper},workdir={work}")).unwrap();
    mount("overlay", &overlay, "overlay", MountFlags::empty(), Some(options.as_c_str())).unwrap();
    assert_unsupported(&overlay, ["overlayfs", "ext4 or XFS"]);
}

#[test]
fn an_ext4_without_the_feature_is_told_how_to_get_it() {
    need_fuse();
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, Kind::PlainExt4, "rw").unwrap();
    assert_unsupported(&disk.path, ["has no project quotas", "tune2fs -O project,quota"]);
}

#[test]
fn an_xfs_that_is_mounted_without_quotas_is_told_the_option() {
    need_fuse();
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, Kind::Xfs, "rw").unwrap();
    assert_unsupported(&disk.path, ["mounted without project quotas", "prjquota"]);
}

#[test]
fn what_is_no_directory_is_an_error() {
    let scratch = Scratch::new();
    fs::write(scratch.path.join("file"), "").unwrap();
    std::os::unix::fs::symlink("run", scratch.path.join("link")).unwrap();
    for name in ["file", "absent", "link"] {
        let Err(QuotaError::Failed(failure)) = Quota::of(&scratch.path.join(name)) else { panic!("{name}") };
        assert!(failure.what.contains(name), "{failure}");
    }
}
