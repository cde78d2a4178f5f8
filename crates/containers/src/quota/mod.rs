//! A quota of bytes and inodes for a directory: a project quota of ext4 or XFS.
//!
//! Each directory with a quota is a *project* of its own. Its files belong to the project, new ones inherit it, and the
//! kernel limits what the project uses. `statfs` of the directory then shows the quota as the size of the file system,
//! so a mount of it refuses a write that does not fit before it accepts the bytes, and usage needs no call of its own.
//!
//! ```text
//! projects  the number of a project, chosen so that no two directories share one
//! tree      the files of a directory that existed before its quota
//! sys       the kernel's calls
//! ```
//!
//! # Invariants
//! U1. Two directories never share a project, even if two processes choose at once ([`projects`]).
//! U2. Limits are set after every file of the directory belongs to the project. So a project with limits is complete, and
//!     one without is what a killed process has left: the next [`Quota::set`] completes it.
//! U3. Only projects with numbers of ours are changed. A directory of another project is refused.
//!
//! Symbolic links, sockets, pipes and devices that exist already stay outside, because the kernel changes the project
//! of open files only. They occupy an inode each and next to no bytes.

mod projects;
mod sys;
mod tree;

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fstatfs};
use slackwater_control::exit::Failure;
use slackwater_host::Printable as _;

const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;

/// Why there is no quota.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum QuotaError {
    /// The file system cannot limit this directory; the message says why, and how to change that.
    Unsupported(Failure),
    Failed(Failure),
}

impl From<QuotaError> for Failure {
    fn from(error: QuotaError) -> Self {
        match error {
            QuotaError::Unsupported(failure) | QuotaError::Failed(failure) => failure,
        }
    }
}

/// The quota of a directory, which may have none yet.
#[derive(Debug)]
pub(crate) struct Quota {
    path: PathBuf,
    directory: File,
    /// The project of the directory above, which a new directory inherits; 0 if none.
    inherited: u32,
}

impl Quota {
    /// The quota of a directory on a file system that has project quotas, and enforces them.
    ///
    /// # Errors
    /// [`QuotaError::Unsupported`] for every other file system.
    ///
    /// # Blocking
    /// For the file system, as all methods.
    pub(crate) fn of(path: &Path) -> Result<Self, QuotaError> {
        let open = |path: &Path| {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
            opened.map_err(failed(path, "cannot open it"))
        };
        let directory = open(path)?;
        check_support(path, &directory)?;
        let above = sys::attributes(open(&path.join(".."))?).map_or(0, |above| above.inherited_project());
        Ok(Self { path: path.to_owned(), directory, inherited: above })
    }

    /// Limits the directory, with everything in it. `None` is no limit. Repeating it changes the limits.
    ///
    /// # Errors
    /// The directory belongs to a project of someone else, or the file system refuses; for example, the process is not
    /// root.
    ///
    /// # Blocking
    /// The first time, until each file in the directory has been opened.
    pub(crate) fn set(&self, bytes_max: Option<u64>, inodes_max: Option<u64>) -> Result<(), QuotaError> {
        let failed = |why| failed(&self.path, why);
        let project = match self.own_project()? {
            Some(project) => project,
            None => projects::claim(&self.directory).map_err(failed("cannot give it a project"))?,
        };
        let figures = sys::figures(&self.directory, project).map_err(failed("cannot read its quota"))?;
        if (figures.bytes_max, figures.inodes_max) == (0, 0) {
            // U2.
            tree::assign(&self.directory, project).map_err(failed("cannot give its files a project"))?;
        }
        sys::limit(&self.directory, project, bytes_max.unwrap_or(0), inodes_max.unwrap_or(0))
            .map_err(failed("cannot limit it"))
    }

    /// Removes the limits, before the directory is deleted. With its last file its number is free again. Repeating it is
    /// harmless.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub(crate) fn remove(&self) -> Result<(), QuotaError> {
        let Some(project) = self.own_project()? else { return Ok(()) };
        sys::limit(&self.directory, project, 0, 0).map_err(failed(&self.path, "cannot remove its limits"))
    }

    /// The project of this directory, if it has one of its own (U3).
    fn own_project(&self) -> Result<Option<u32>, QuotaError> {
        let attributes = sys::attributes(&self.directory).map_err(failed(&self.path, "cannot read its project"))?;
        match attributes.project {
            0 => Ok(None),
            project if projects::is_ours(project) && project != self.inherited => Ok(Some(project)),
            project => Err(unsupported(
                &self.path,
                &format!("it belongs to project {project}, which has a quota of its own"),
                "use a directory below no other quota, or take it out of that project: chattr -R -P -p 0 DIRECTORY",
            )),
        }
    }
}

impl sys::Attributes {
    fn inherited_project(self) -> u32 {
        if self.flags & sys::INHERITED == 0 { 0 } else { self.project }
    }
}

/// Succeeds if limits of projects are enforced where `directory` is.
fn check_support(path: &Path, directory: &File) -> Result<(), QuotaError> {
    let stat = fstatfs(directory).map_err(|errno| failed(path, "cannot query its file system")(errno.into()))?;
    // The number has 32 bits, and is sign-extended if the field is wider.
    let magic = stat.f_type as u64 & u64::from(u32::MAX);
    let name = match magic {
        EXT4 => "ext4",
        XFS => "XFS",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794c_7630 => "overlayfs",
        0x6969 => "NFS",
        0x6573_5546 => "a FUSE file system",
        _ => "its file system",
    };
    if !matches!(magic, EXT4 | XFS) {
        let why = format!("Slackwater has no quotas on {name}");
        return Err(unsupported(path, &why, "use a pool on ext4 or XFS, mounted with the option prjquota"));
    }
    // Both say ENOSYS, or ESRCH, if they count nothing at all.
    let state = sys::state(directory).unwrap_or(0);
    let (why, advice) = match (state & sys::LIMITED != 0, state & sys::COUNTED != 0, magic) {
        (true, _, _) => return Ok(()),
        (false, true, _) => ("is mounted without limits for projects", "mount it with the option prjquota"),
        (false, false, EXT4) => (
            "has no project quotas",
            "unmount it, run `tune2fs -O project,quota -Q prjquota DEVICE`, and mount it with the option prjquota",
        ),
        (false, false, _) => (
            "is mounted without project quotas",
            "unmount it, and mount it with the option prjquota; for the root file system, boot with \
             rootflags=prjquota",
        ),
    };
    Err(unsupported(path, &format!("{name} {why}"), advice))
}

fn unsupported(path: &Path, why: &str, advice: &str) -> QuotaError {
    let what = format!("no quota for {}: {why}", path.printable());
    QuotaError::Unsupported(Failure::failed(what).advise(advice))
}

fn failed<'a>(path: &'a Path, why: &'a str) -> impl Fn(io::Error) -> QuotaError + 'a {
    move |error| {
        let failure = Failure::failed(format!("no quota for {}: {why}: {error}", path.printable()));
        let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
        QuotaError::Failed(if is_refused {
            failure.advise("only root can set quotas (CAP_SYS_ADMIN)")
        } else {
            failure
        })
    }
}
