//! File systems in files.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use crate::rig::{Scratch, run};

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Ext4,
    /// Ext4 without the features that quotas need.
    PlainExt4,
    Xfs,
}

/// A file system, mounted until the scratch directory is dropped.
pub(crate) struct Disk {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
}

impl Disk {
    /// `None` if the kernel does not mount it with these options.
    #[track_caller]
    pub(crate) fn new(scratch: &Scratch, kind: Kind, options: &str) -> Option<Self> {
        let (image, path) = (scratch.path.join("image"), scratch.dir("disk", 0o755));
        File::create(&image).unwrap().set_len(320 << 20).unwrap();
        let words: &[&str] = match kind {
            Kind::Ext4 => &["mkfs.ext4", "-q", "-F", "-O", "project,quota", "-E", "lazy_itable_init=1"],
            Kind::PlainExt4 => &["mkfs.ext4", "-q", "-F"],
            Kind::Xfs => &["mkfs.xfs", "-q"],
        };
        let mut mkfs = Command::new(words[0]);
        mkfs.args(&words[1..]).arg(&image);
        run(mkfs).expect(0, &[]);
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("loop,{options}")]).args([&image, &path]);
        (run(mount).code == Some(0)).then_some(Self { path, kind })
    }
}
