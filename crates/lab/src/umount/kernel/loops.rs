//! ext4 in files, mounted by loop devices that go when they are unmounted.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::programs::run;

const IMAGE_BYTES: u64 = 32 << 20;

/// A file with an empty ext4 in it, and where it is mounted.
pub(crate) struct Image {
    file: PathBuf,
    mountpoint: PathBuf,
}

/// A mount, unmounted when dropped.
pub(crate) struct LoopMount(Option<PathBuf>);

impl Image {
    pub(crate) fn new(folder: &Path, number: usize) -> Result<Self> {
        let (file, mountpoint) = (folder.join(format!("image-{number}")), folder.join(format!("mnt-{number}")));
        fs::create_dir(&mountpoint).with_context(|| format!("cannot make {}", mountpoint.display()))?;
        File::create_new(&file)?.set_len(IMAGE_BYTES)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&file))?;
        Ok(Self { file, mountpoint })
    }

    pub(crate) fn mount(&self) -> Result<LoopMount> {
        run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).args([&self.file, &self.mountpoint]))?;
        Ok(LoopMount(Some(self.mountpoint.clone())))
    }
}

impl LoopMount {
    pub(crate) fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    /// The system call, and nothing else.
    pub(crate) fn umount(mut self) -> Result<()> {
        unmount(self.path(), UnmountFlags::empty()).context("umount")?;
        self.0 = None;
        Ok(())
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        match unmount(path, UnmountFlags::DETACH) {
            // Gone with its directory, on the second interrupt.
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
            Err(error) => eprintln!("cannot unmount {}: {error}", path.display()),
        }
    }
}
