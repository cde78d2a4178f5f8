//! Temporary directories and files.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};
use slackwater_host::MountInfo;

/// The directories that exist, each with the folders that were made for it, for an end of the process without unwinding.
static LIVE: Mutex<Vec<(PathBuf, Vec<PathBuf>)>> = Mutex::new(Vec::new());

/// Attempts to remove a directory in which threads may still create files.
const ATTEMPTS: u32 = 5;

/// A new directory, removed with everything in it when dropped. The folder it is in is also removed, unless it existed before
/// or contains something else.
pub(crate) struct Scratch {
    path: PathBuf,
    made: Vec<PathBuf>,
}

impl Scratch {
    /// A directory in `folder`, which is made if it does not exist.
    pub(crate) fn in_folder(folder: &Path) -> Result<Self> {
        let made = missing_ancestors(folder);
        fs::create_dir_all(folder).with_context(|| format!("cannot create the directory {}", folder.display()))?;
        let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
        let pid = std::process::id();
        for number in 0_u32.. {
            let path = folder.join(format!("slackwater-lab-{pid}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    live().push((path.clone(), made.clone()));
                    return Ok(Self { path, made });
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display())),
            }
        }
        unreachable!("there are fewer directories than numbers")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A new directory in it.
    pub(crate) fn subdirectory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        make_directory(&path)?;
        Ok(path)
    }
}

/// Makes a new directory.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("cannot create {}", path.display()))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
        live().retain(|(live, _)| *live != self.path);
        remove_if_empty(&self.made);
    }
}

#[cfg(test)]
impl Scratch {
    /// Fails if something is mounted in it.
    pub(crate) fn assert_nothing_is_mounted(&self) {
        assert_eq!(mounts_below(&self.path), [""; 0].map(PathBuf::from));
    }
}

/// An open file without a name, on the file system of `folder`.
pub(crate) fn nameless_file(folder: &Path) -> Result<File> {
    nameless(folder, OpenOptions::new().read(true).write(true).create_new(true))
}

/// The same with other options, which must create the file.
pub(crate) fn nameless(folder: &Path, options: &OpenOptions) -> Result<File> {
    let scratch = Scratch::in_folder(folder)?;
    options.open(scratch.path().join("file")).with_context(|| format!("cannot create a file in {}", folder.display()))
}

/// Removes everything that exists, for an end of the process without unwinding.
pub(crate) fn remove_all() {
    for (path, made) in live().drain(..).rev() {
        let _ = (0..ATTEMPTS).map(|_| remove(&path)).find(Result::is_ok);
        remove_if_empty(&made);
    }
}

/// Removes a tree, including read-only directories. Mounts in it are unmounted first.
fn remove(path: &Path) -> std::io::Result<()> {
    for point in mounts_below(path).iter().rev() {
        let _ = unmount(point, UnmountFlags::DETACH); // if this fails, so does the removal
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            permit(path)?;
            fs::remove_dir_all(path)
        }
        outcome => outcome,
    }
}

/// Mount points below `path`, each after the mount that it is on.
fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    MountInfo::all(&mounts).map(|mount| mount.point).filter(|point| point.starts_with(path)).collect()
}

fn permit(directory: &Path) -> std::io::Result<()> {
    fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            permit(&entry.path())?;
        }
    }
    Ok(())
}

fn remove_if_empty(folders: &[PathBuf]) {
    for folder in folders {
        let _ = fs::remove_dir(folder); // fails if it is not empty, as it should
    }
}

fn live() -> std::sync::MutexGuard<'static, Vec<(PathBuf, Vec<PathBuf>)>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The directories that have to be made for `folder`, deepest first.
fn missing_ancestors(folder: &Path) -> Vec<PathBuf> {
    let ancestors = folder.ancestors().filter(|path| !path.as_os_str().is_empty());
    ancestors.take_while(|path| !path.exists()).map(Path::to_path_buf).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_is_removed() {
        let outer = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let inner = Scratch::in_folder(&outer.path().join("a/b")).unwrap();
        let path = inner.path().to_path_buf();
        fs::write(path.join("file"), "x").unwrap();
        drop(inner);
        assert!(!path.exists() && !outer.path().join("a").exists() && outer.path().exists());
    }
}
