//! The programs that the keeper starts (K5).
//!
//! A package upgrade replaces the file of a program while the program runs. The keeper has each program open and starts
//! it through `/proc/PID/fd`, which reaches a file that has no name any more. So the successor of a crashed server is
//! the program that has served the mount before, until `slackwater upgrade` names another one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use slackwater_control::protocol::FailedUpgrade;
use slackwater_host::Printable as _;

/// A program, by its open file.
#[derive(Debug)]
pub(crate) struct Program {
    /// The path in messages.
    path: PathBuf,
    file: OwnedFd,
}

impl Program {
    /// Opens the file at `at`, which messages call `path`.
    ///
    /// # Errors
    /// The file cannot be opened, or is no regular file.
    pub(crate) fn open(at: &Path, path: PathBuf) -> io::Result<Self> {
        let file = open(at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile {
            true => Ok(Self { path, file }),
            false => Err(io::Error::other("it is not a file")),
        }
    }

    /// The program with this descriptor.
    pub(super) fn of(path: PathBuf, file: OwnedFd) -> Self {
        Self { path, file }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The program of the next server.
#[derive(Debug)]
pub(super) struct Programs {
    /// The program that has served the mount last; at first the keeper's own.
    proven: Program,
    /// The program to upgrade to, until a server of it has taken the mount over or has failed.
    upgrade: Option<Program>,
    failed: Option<FailedUpgrade>,
}

impl Programs {
    /// The program of this process.
    ///
    /// # Errors
    /// `/proc` is not mounted, or there are no descriptors left.
    pub(super) fn of_this_process() -> io::Result<Self> {
        let own = "/proc/self/exe";
        let path = std::fs::read_link(own)?;
        Ok(Self { proven: Program::open(Path::new(own), path)?, upgrade: None, failed: None })
    }

    /// A command that runs the program of the next server.
    pub(super) fn command(&self) -> Command {
        let program = self.upgrade.as_ref().unwrap_or(&self.proven);
        // Under `self`, the interpreter of a script would look among its own descriptors.
        let mut command = Command::new(format!("/proc/{}/fd/{}", std::process::id(), program.file.as_raw_fd()));
        command.arg0("slackwater");
        command
    }

    /// Tries another program.
    pub(super) fn begin_upgrade(&mut self, to: Program) {
        (self.upgrade, self.failed) = (Some(to), None);
    }

    /// Whether the program has not served the mount yet.
    pub(super) fn is_upgrading(&self) -> bool {
        self.upgrade.is_some()
    }

    /// A server serves the mount.
    pub(super) fn note_success(&mut self) {
        if let Some(program) = self.upgrade.take() {
            self.proven = program;
        }
    }

    /// A server has ended before it served the mount. Goes back to the program before, if this was an upgrade, and
    /// returns a message about that.
    pub(super) fn note_failure(&mut self, why: &str) -> Option<String> {
        let program = self.upgrade.take()?;
        let failed = FailedUpgrade { program: program.path, error: format!("its process {why}") };
        let before = self.proven.path.printable();
        let message = format!(
            "The upgrade to {} failed: {}. {before} serves the mount again.",
            failed.program.printable(),
            failed.error
        );
        self.failed = Some(failed);
        Some(message)
    }

    /// The last upgrade, if it failed.
    pub(super) fn failed(&self) -> Option<&FailedUpgrade> {
        self.failed.as_ref()
    }
}
