//! A mount that stays behind when the command returns.
//!
//! The command starts itself again before it has any thread, waits for the announcement of that process, and passes it
//! on. The new process leaves the session, and writes to a log from then on.
//!
//! # Invariants
//! B1. Until the new process has left, the end of the one that started it asks it to end, as SIGTERM does. So whoever
//!     interrupts the command interrupts the start, and nothing that is half made stays behind.
//! B2. It has no descriptor but those it opens and the standard three: a lock that a script holds, or the end of a
//!     pipe, would be kept as long as the mount.
//! B3. What may fail of leaving is done before the mount; afterwards nobody could be told.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
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

/// Starts the mount in a process of its own. Returns when it is mounted, or with its failure. `announces` passes on what that
/// process says of it.
///
/// # Errors
/// When the process cannot be started.
///
/// # Blocking
/// Until it is mounted.
pub(crate) fn start(arguments: &MountArguments, announces: bool) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot start the mount process: {error}"));
    // By its name, so that it is listed under it; by the link where the file was replaced meanwhile.
    let own = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(own.as_deref().unwrap_or(Path::new("/proc/self/exe")));
    command.arg0("slackwater").args(command_line(arguments));
    sys::keep_descriptors_from_programs(); // B2
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut announcement = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut announcement).map_err(failed)?;
    }
    if announcement.is_empty() {
        // It has said why. A signal leaves no status.
        let status = child.wait().map_err(failed)?.code().and_then(|code| u8::try_from(code).ok());
        return Ok(ExitCode::from(status.unwrap_or(Reason::Failed.status())));
    }
    if announces {
        // Nobody may be there to read it; it is mounted all the same.
        let _ = io::stdout().write_all(&announcement);
    }
    Ok(ExitCode::SUCCESS)
}

/// What makes another process do the same. Taken apart without `..`: what is new must be passed on too.
fn command_line(arguments: &MountArguments) -> Vec<OsString> {
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
        allow_other,
        nosuid,
        nodev,
        noexec,
        foreground: _,
        background: _,
        metrics,
        arena,
        wait,
        options,
        daemon: _,
        name: _,
        at: _,
        detached: _,
    } = arguments;
    let mut line: Vec<OsString> = vec!["mount".into(), "--detached".into()];
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
    add("--dirty-ratio", dirty_ratio.to_string().into());
    add("--tenant-by", tenant_by.to_string().into());
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
    add("--dirty-expire", format_duration(*dirty_expire).to_string().into());
    options.iter().for_each(|list| add("-o", list.into()));
    let flags = [
        (read_only, "--read-only"),
        (allow_other, "--allow-other"),
        (nosuid, "--nosuid"),
        (nodev, "--nodev"),
        (noexec, "--noexec"),
        (dontcache, "--dontcache"),
        (wait, "--wait"),
    ];
    line.extend(flags.into_iter().filter(|(set, _)| **set).map(|(_, name)| name.into()));
    line.push("--".into());
    line.extend([source.into(), mountpoint.into()]);
    line
}

/// Ends with the process that started this one, until [`Departure::leave`] (B1).
///
/// # Errors
/// It has ended already.
pub(crate) fn end_with_starter() -> Result<(), Failure> {
    let failed = |errno: Errno| Failure::failed(format!("cannot watch the command that started the mount: {errno}"));
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    // It may have ended before it was watched: then nobody reads the pipe any more.
    let stdout = io::stdout();
    let mut pipe = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut pipe, Some(&Timespec::default())).map_err(failed)?;
    match pipe[0].revents().contains(PollFlags::ERR) {
        true => Err(Failure::failed("the command that started the mount has ended")),
        false => Ok(()),
    }
}

/// What it takes to leave the terminal.
pub(crate) struct Departure {
    nothing: File,
    log: File,
}

impl Departure {
    /// Makes it possible to leave; what is printed afterwards goes to `log`.
    ///
    /// # Errors
    /// When the log cannot be made.
    pub(crate) fn prepare(log: &Path) -> io::Result<Self> {
        let nothing = File::open("/dev/null")?;
        let log = log::file::open(log)?;
        std::env::set_current_dir("/")?;
        // Fails for the leader of a process group only, who has been detached by somebody else.
        let _ = setsid();
        Ok(Self { nothing, log })
    }

    /// Leaves. Who started us takes it for the end of the announcement.
    pub(crate) fn leave(self) {
        // B3: none of these fails for descriptors that are open, and nobody may be there for the announcement.
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
        ];
        let flags = ["--read-only", "--allow-other", "--nosuid", "--nodev", "--noexec", "--wait", "-o", "nofail"];
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
        let mut second = parse(std::iter::once("slackwater".into()).chain(command_line(&first)).collect());
        assert!(second.detached);
        (second.detached, second.background) = (false, true);
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}
