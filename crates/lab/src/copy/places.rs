//! The source and the destination of the copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use slackwater_arena::size;

use super::plan::Plan;
use crate::scratch::Scratch;

/// Where the copy goes.
pub(crate) enum Destination {
    /// A directory that the user has named; it is kept.
    Named(PathBuf),
    /// A directory of ours, removed unless `--keep`.
    Temporary(Scratch, PathBuf),
}

impl Destination {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Named(path) | Self::Temporary(_, path) => path,
        }
    }
}

/// The directory to copy: `wanted`, or documentation that most machines have.
///
/// # Errors
/// It does not exist or is not a directory.
pub(crate) fn source(wanted: Option<&Path>) -> Result<PathBuf> {
    let Some(wanted) = wanted else {
        let documentation = toolchain_documentation().into_iter().chain([PathBuf::from("/usr/share")]);
        let first = documentation.into_iter().find(|path| path.is_dir());
        return first.context("found neither the toolchain's documentation nor /usr/share: name a SOURCE");
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

/// The directory to copy to: `wanted`, which is made if it does not exist, or a new one in `folder`.
///
/// # Errors
/// It is not empty, is not a directory, or is inside `source`.
pub(crate) fn destination(wanted: Option<&Path>, folder: &Path, source: &Path) -> Result<Destination> {
    let destination = match wanted {
        None => {
            let scratch = Scratch::in_folder(folder)?;
            let path = scratch.tree("copy")?;
            Destination::Temporary(scratch, path)
        }
        Some(wanted) => {
            refuse_inside(source, wanted)?;
            fs::create_dir_all(wanted).with_context(|| format!("cannot create DEST {}", wanted.display()))?;
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

/// Refuses a destination below the source, even if it does not exist yet.
fn refuse_inside(source: &Path, destination: &Path) -> Result<()> {
    let absolute = std::path::absolute(destination)?;
    let existing = absolute.ancestors().find_map(|path| path.canonicalize().ok());
    if existing.is_some_and(|path| path.starts_with(source)) {
        bail!("DEST {} is inside SOURCE {}: the copy would copy itself", destination.display(), source.display());
    }
    Ok(())
}

/// Refuses `copies` of the tree, with a block for every name, if they do not fit.
///
/// # Errors
/// The file system of `destination` has too little space.
pub(crate) fn refuse_too_much(plan: &Plan, destination: &Path, copies: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(destination).context("statvfs")?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let needed = (plan.bytes + plan.entries.len() as u64 * 4096) * copies;
    if needed > free {
        let (needed, free) = (size::text(needed), size::text(free));
        bail!("{} has {free} free, and the copy needs about {needed}", destination.display());
    }
    Ok(())
}
