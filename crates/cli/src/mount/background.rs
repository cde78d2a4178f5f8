//! A mount that stays behind when the command returns.
//!
//! The command starts itself again before it has any thread, waits for the announcement of that process, and passes it
//! on. The new process leaves the session, and writes to a log from then on.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::arguments::MountArguments;
use crate::exit::{Failure, Reason};

/// Starts the mount in a process of its own. Returns when it is mounted, or with its failure.
///
/// # Errors
/// When the process cannot be started.
///
/// # Blocking
/// Until it is mounted.
pub(crate) fn start(arguments: &MountArguments) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot start the mount process: {error}"));
    // By its name, so that it is listed under it; by the link where the file was replaced meanwhile.
    let own = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(own.as_deref().unwrap_or(Path::new("/proc/self/exe")));
    command.arg0("slackwater").args(command_line(arguments));
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
    // Nobody may be there to read it; it is mounted all the same.
    let _ = io::stdout().write_all(&announcement);
    Ok(ExitCode::SUCCESS)
}

/// What makes another process do the same.
fn command_line(arguments: &MountArguments) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["mount".into(), "--detached".into()];
    let mut add = |name: &str, value: OsString| line.extend([OsString::from(name), value]);
    if let Some(bytes) = arguments.cache {
        add("--cache", bytes.to_string().into());
    }
    if let Some(arena) = &arguments.arena {
        add("--arena", arena.into());
    }
    add("--dirty-ratio", arguments.dirty_ratio.to_string().into());
    add("--dirty-expire", format!("{}ms", arguments.dirty_expire.as_millis()).into());
    let flags =
        [(arguments.read_only, "--read-only"), (arguments.allow_other, "--allow-other"), (arguments.wait, "--wait")];
    line.extend(flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name.into()));
    line.push("--".into());
    line.extend([arguments.source.clone().into(), arguments.mountpoint.clone().into()]);
    line
}

/// Leaves the terminal and the session; what is printed from now on goes to `log`.
///
/// # Errors
/// When the log cannot be made.
pub(crate) fn detach(log: &Path) -> io::Result<()> {
    let nothing = OpenOptions::new().read(true).open("/dev/null")?;
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(log)?;
    io::stdout().flush()?;
    // Fails for the leader of a process group only, who has been detached by somebody else.
    let _ = setsid();
    std::env::set_current_dir("/")?;
    dup2_stdin(&nothing)?;
    dup2_stderr(&log)?;
    // Last: who started us takes its end for the end of the announcement.
    Ok(dup2_stdout(&log)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::command_line;
    use crate::arguments::{Arguments, Command};

    #[test]
    fn another_process_gets_the_same_arguments() {
        let line = ["slackwater", "mount", "--background", "--cache", "1.5GiB", "--read-only", "--dirty-expire", "2s"];
        let parse = |line: Vec<std::ffi::OsString>| {
            let Command::Mount(arguments) = Arguments::parse_from(line).command else { panic!("the line says mount") };
            *arguments
        };
        let first = parse(
            line.iter().chain(&["--arena", "/dev/shm/x", "--", "a b", "-c"]).map(|word| (*word).into()).collect(),
        );
        let mut second = parse(std::iter::once("slackwater".into()).chain(command_line(&first)).collect());
        assert!(second.detached);
        (second.detached, second.background) = (false, true);
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}
