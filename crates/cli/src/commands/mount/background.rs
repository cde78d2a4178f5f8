//! A mount in the background.
//!
//! The command starts itself again before it has any thread, waits for the announcement of the new process, and passes
//! it on. The new process then leaves the session and writes to a log.
//!
//! # Invariants
//! B1. Until the new process has detached, it ends as on SIGTERM when its starter ends. So interrupting the command
//!     interrupts the start, and nothing half-made is left.
//! B2. The new process has only the descriptors that it opens and the standard three; it reads its specification from
//!     one more and closes that first. A lock that a script holds, or the end of a pipe, would otherwise stay open as
//!     long as the mount.
//! B3. Every step of detaching that can fail comes before the mount; afterwards an error could not be reported.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use slackwater_control::exit::{Failure, Reason};

use crate::arguments::MountArguments;
use crate::log;
use crate::os::sys;
use crate::server::start::Start;

/// Starts the mount in a new process. Returns when it is mounted, or with its failure. `announces` says whether to pass
/// on its announcement.
///
/// # Errors
/// The process cannot be started.
///
/// # Blocking
/// Until it is mounted.
pub(crate) fn start(arguments: &MountArguments, announces: bool) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot start the mount process: {error}"));
    let mut command = Command::new(own_program());
    sys::keep_descriptors_from_programs(); // B2
    let arguments = MountArguments { detached: true, background: false, ..arguments.clone() };
    let specification = Start::Mount(Box::new(arguments)).inheritable().map_err(failed)?;
    command.arg0("slackwater").args(specification.words());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut announcement = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut announcement).map_err(failed)?;
    }
    if announcement.is_empty() {
        // The process has reported the error. A signal leaves no status.
        let status = child.wait().map_err(failed)?.code().and_then(|code| u8::try_from(code).ok());
        return Ok(ExitCode::from(status.unwrap_or(Reason::Failed.status())));
    }
    if announces {
        // If the reader is gone, the volume is mounted all the same.
        let _ = io::stdout().write_all(&announcement);
    }
    Ok(ExitCode::SUCCESS)
}

/// This program: by its path, so that it is listed under that name; through /proc/self/exe if the file was replaced
/// meanwhile.
pub(crate) fn own_program() -> PathBuf {
    let own = std::env::current_exe().ok().filter(|path| path.exists());
    own.unwrap_or_else(|| "/proc/self/exe".into())
}

/// Lets the death of the starting process end this one, until [`Departure::leave`] (B1).
///
/// # Errors
/// The starting process has already ended.
pub(crate) fn end_with_starter() -> Result<(), Failure> {
    let failed = |errno: Errno| Failure::failed(format!("cannot watch the command that started the mount: {errno}"));
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    // It may have ended before this call: then the pipe has no reader.
    let stdout = io::stdout();
    let mut pipe = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut pipe, Some(&Timespec::default())).map_err(failed)?;
    match pipe[0].revents().contains(PollFlags::ERR) {
        true => Err(Failure::failed("the command that started the mount has ended")),
        false => Ok(()),
    }
}

/// Everything that is needed to detach from the terminal.
pub(crate) struct Departure {
    nothing: File,
    log: File,
}

impl Departure {
    /// Prepares to detach; later output goes to `log`.
    ///
    /// # Errors
    /// The log cannot be created.
    pub(crate) fn prepare(log: &Path) -> io::Result<Self> {
        let nothing = File::open("/dev/null")?;
        let log = log::file::open(log)?;
        std::env::set_current_dir("/")?;
        // Fails only for the leader of a process group, which another process has detached.
        let _ = setsid();
        Ok(Self { nothing, log })
    }

    /// For the keeper of a mount that writes to `log`.
    pub(crate) fn with(nothing: File, log: File) -> Self {
        Self { nothing, log }
    }

    /// The log.
    pub(crate) fn log(&self) -> &File {
        &self.log
    }

    /// Detaches. The starting process takes this as the end of the announcement.
    pub(crate) fn leave(self) {
        // B3: none of these calls fails for open descriptors, and the reader of the announcement may be gone.
        let _ = set_parent_process_death_signal(None);
        let _ = dup2_stdin(&self.nothing);
        let _ = dup2_stderr(&self.log);
        let _ = io::stdout().flush();
        let _ = dup2_stdout(&self.log);
        log::bound(self.log);
    }
}
