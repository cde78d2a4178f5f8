//! ext4 in files, mounted by loop devices that go when they are unmounted.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::mount::{UnmountFlags, unmount};

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
        run("mkfs.ext4", ["-q".as_ref(), "-F".as_ref(), file.as_os_str()])?;
        Ok(Self { file, mountpoint })
    }

    pub(crate) fn mount(&self) -> Result<LoopMount> {
        let (file, mountpoint) = (self.file.as_os_str(), self.mountpoint.as_os_str());
        run("mount", ["-t".as_ref(), "ext4".as_ref(), "-o".as_ref(), "loop".as_ref(), file, mountpoint])?;
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
        if let Some(path) = &self.0
            && let Err(error) = unmount(path, UnmountFlags::DETACH)
        {
            eprintln!("cannot unmount {}: {error}", path.display());
        }
    }
}

fn run<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    let mut command = Command::new(program);
    let output = command.args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
