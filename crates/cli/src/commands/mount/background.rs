//! A mount in the background.
//!
//! The command starts itself again before it has any thread, waits for the announcement of the new process, and passes
//! it on. The new process then leaves the session and writes to a log.
//!
//! # Invariants
//! B1. Until the new process has detached, it ends as on SIGTERM when its starter ends. So interrupting the command
//!     interrupts the start, and nothing half-made is left.
//! B2. The new process has only the descriptors that it opens and the standard three. A lock that a script holds, or
//!     the end of a pipe, would otherwise stay open as long as the mount.
//! B3. Every step of detaching that can fail comes before the mount; afterwards an error could not be reported.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use humantime::format_duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::arguments::MountArguments;
use crate::exit::{Failure, Reason};
use crate::log;
use crate::os::sys;

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
    command.arg0("slackwater").args(command_line(arguments, &["--detached"]));
    sys::keep_descriptors_from_programs(); // B2
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

/// The command line for a process with the same mount and these hidden flags. The struct is destructured without `..`, so that a new option cannot be
/// forgotten.
pub(crate) fn command_line(arguments: &MountArguments, flags: &[&str]) -> Vec<OsString> {
    let MountArguments {
        source,
        mountpoint,
        cache,
        dirty_ratio,
        tenant_by,
        tenant_limit,
        dontcache,
        tenant_dontcache,
        dirty_expire,
        read_only,
        take_over,
        follow,
        upload_limit,
        credentials,
        allow_other,
        transport,
        nosuid,
        nodev,
        noexec,
        foreground: _,
        background: _,
        keep,
        metrics,
        arena,
        wait,
        options,
        daemon: _,
        name: _,
        at: _,
        detached: _,
        kept: _,
    } = arguments;
    let mut line: Vec<OsString> = vec!["mount".into()];
    line.extend(flags.iter().map(OsString::from));
    let mut add = |name: &str, value: OsString| line.extend([OsString::from(name), value]);
    if let Some(bytes) = cache {
        add("--cache", bytes.to_string().into());
    }
    if let Some(arena) = arena {
        add("--arena", arena.into());
    }
    if let Some(address) = metrics {
        add("--metrics", address.to_string().into());
    }
    if let Some(percent) = dirty_ratio {
        add("--dirty-ratio", percent.to_string().into());
    }
    if let Some(by) = tenant_by {
        add("--tenant-by", by.to_string().into());
    }
    for (tenant, bytes) in tenant_limit {
        let mut limit = tenant.clone().into_os_string();
        limit.push(format!("={bytes}"));
        add("--tenant-limit", limit);
    }
    for (tenant, dontcache) in tenant_dontcache {
        let mut word = tenant.clone().into_os_string();
        word.push(if *dontcache { "=on" } else { "=off" });
        add("--tenant-dontcache", word);
    }
    if let Some(age) = follow {
        add("--follow", format_duration(*age).to_string().into());
    }
    if let Some(bytes) = upload_limit {
        add("--upload-limit", bytes.to_string().into());
    }
    if let Some(path) = credentials {
        add("--credentials", path.into());
    }
    if let Some(age) = dirty_expire {
        add("--dirty-expire", format_duration(*age).to_string().into());
    }
    add("--transport", transport.to_string().into());
    options.iter().for_each(|list| add("-o", list.into()));
    let flags = [
        (read_only, "--read-only"),
        (take_over, "--take-over"),
        (allow_other, "--allow-other"),
        (nosuid, "--nosuid"),
        (nodev, "--nodev"),
        (noexec, "--noexec"),
        (dontcache, "--dontcache"),
        (wait, "--wait"),
        (keep, "--keep"),
    ];
    line.extend(flags.into_iter().filter(|(set, _)| **set).map(|(_, name)| name.into()));
    line.push("--".into());
    line.extend([source.into(), mountpoint.into()]);
    line
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::command_line;
    use crate::arguments::{Arguments, Command};

    #[test]
    fn another_process_gets_the_same_arguments() {
        let line = [
            "slackwater",
            "mount",
            "--background",
            "--cache",
            "1.5GiB",
            "--metrics",
            "[::1]:9810",
            "--dirty-ratio",
            "7",
            "--dirty-expire",
            "1.0625h",
            "--tenant-by",
            "uid",
            "--tenant-limit",
            "uid:1=64MiB",
            "--tenant-limit",
            "uid:2=5000",
            "--dontcache",
            "--tenant-dontcache",
            "uid:1=on",
            "--tenant-dontcache",
            "uid:3=off",
            "--follow",
            "1500ms",
            "--upload-limit",
            "50MiB",
            "--credentials",
            "/etc/keys",
            "--take-over",
        ];
        let flags =
            ["--read-only", "--allow-other", "--nosuid", "--nodev", "--noexec", "--wait", "--keep", "-o", "nofail"];
        let parse = |line: Vec<std::ffi::OsString>| {
            let Command::Mount(arguments) = Arguments::parse_from(line).command else { panic!("the line says mount") };
            *arguments
        };
        let first = parse(
            line.iter()
                .chain(&flags)
                .chain(&["--arena", "/dev/shm/x", "--", "a b", "-c"])
                .map(|word| (*word).into())
                .collect(),
        );
        let mut second =
            parse(std::iter::once("slackwater".into()).chain(command_line(&first, &["--detached"])).collect());
        assert!(second.detached);
        (second.detached, second.background) = (false, true);
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}
