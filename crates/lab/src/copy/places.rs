//! Which directory is copied, and where to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use slackwater_size as size;

use super::plan::Plan;
use crate::scratch::Scratch;

/// Where the copy goes.
pub(crate) enum Destination {
    /// A directory that the user named; it stays.
    Named(PathBuf),
    /// A directory of ours; it goes, unless it is to be kept.
    Temporary(Scratch, PathBuf),
}

impl Destination {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Named(path) | Self::Temporary(_, path) => path,
        }
    }
}

/// The directory to copy: `wanted`, or documentation that is there on most machines.
///
/// # Errors
/// It is not there, or not a directory.
pub(crate) fn source(wanted: Option<&Path>) -> Result<PathBuf> {
    let Some(wanted) = wanted else {
        let documentation = toolchain_documentation().into_iter().chain([PathBuf::from("/usr/share")]);
        let first = documentation.into_iter().find(|path| path.is_dir());
        return first.context("neither the toolchain's documentation nor /usr/share is here: name a SOURCE");
    };
    let path = wanted.canonicalize().with_context(|| format!("there is no SOURCE {}", wanted.display()))?;
    if !path.is_dir() {
        bail!("SOURCE {} is not a directory", wanted.display());
    }
    Ok(path)
}

fn toolchain_documentation() -> Option<PathBuf> {
    let answer = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let sysroot = String::from_utf8(answer.stdout).ok()?;
    Some(Path::new(sysroot.trim()).join("share/doc")).filter(|path| path.is_dir())
}

/// The directory to copy to: `wanted`, which is made if it is not there, or a new one in `folder`.
///
/// # Errors
/// It is not empty, is no directory, or lies inside `source`.
pub(crate) fn destination(wanted: Option<&Path>, folder: &Path, source: &Path) -> Result<Destination> {
    let destination = match wanted {
        None => {
            let scratch = Scratch::in_folder(folder)?;
            let path = scratch.tree("copy")?;
            Destination::Temporary(scratch, path)
        }
        Some(wanted) => {
            refuse_inside(source, wanted)?;
            fs::create_dir_all(wanted).with_context(|| format!("cannot make DEST {}", wanted.display()))?;
            let path = wanted.canonicalize().with_context(|| format!("cannot find DEST {}", wanted.display()))?;
            let mut entries = fs::read_dir(&path).with_context(|| format!("cannot list DEST {}", path.display()))?;
            if entries.next().is_some() {
                bail!("DEST {} is not empty", wanted.display());
            }
            Destination::Named(path)
        }
    };
    refuse_inside(source, destination.path())?;
    Ok(destination)
}

/// Refuses a destination below the source, also one that does not exist yet.
fn refuse_inside(source: &Path, destination: &Path) -> Result<()> {
    let absolute = std::path::absolute(destination)?;
    let existing = absolute.ancestors().find_map(|path| path.canonicalize().ok());
    if existing.is_some_and(|path| path.starts_with(source)) {
        bail!("DEST {} is inside SOURCE {}: the copy would copy itself", destination.display(), source.display());
    }
    Ok(())
}

/// Refuses what does not fit: `copies` of the tree, with a block for every name.
///
/// # Errors
/// There is less room on the file system of `destination`.
pub(crate) fn refuse_too_much(plan: &Plan, destination: &Path, copies: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(destination).context("statvfs")?;
    let room = stat.f_bavail.saturating_mul(stat.f_frsize);
    let needed = (plan.bytes + plan.entries.len() as u64 * 4096) * copies;
    if needed > room {
        let (needed, room) = (size::text(needed), size::text(room));
        bail!("{} has room for {room}, and about {needed} are needed", destination.display());
    }
    Ok(())
}
