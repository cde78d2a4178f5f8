//! A program that a suite runs: with a time limit, without a terminal, with its output in a log.

use crate::folders::cannot;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Time limit unless a suite sets another.
const SECONDS: u32 = 120;
/// How much of a log is shown when a program fails.
const LINES_SHOWN: usize = 60;
/// The ordinary user and its group.
pub(super) const NOBODY: u32 = 65534;

/// The user that runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    Root,
    /// Cannot read the checkout: runs programs of the system, in directories below /tmp.
    Nobody,
}

/// A command line, and how it is run.
#[derive(Clone)]
pub(super) struct Program {
    words: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: PathBuf,
    input: Vec<u8>,
    seconds: u32,
    user: User,
}

impl Program {
    pub(super) fn new(program: impl AsRef<OsStr>) -> Program {
        Program {
            words: vec![program.as_ref().to_owned()],
            environment: Vec::new(),
            directory: PathBuf::from("/"),
            input: Vec::new(),
            seconds: SECONDS,
            user: User::Root,
        }
    }

    /// A script of the shell, which ends at the first command that fails.
    pub(super) fn shell(script: &str) -> Program {
        Program::new("bash").args("-e -u -o pipefail -c").arg(script)
    }

    /// Adds one argument as it is.
    pub(super) fn arg(mut self, argument: impl AsRef<OsStr>) -> Program {
        self.words.push(argument.as_ref().to_owned());
        self
    }

    /// Adds the words of `line`.
    pub(super) fn args(mut self, line: &str) -> Program {
        self.words.extend(line.split_whitespace().map(OsString::from));
        self
    }

    pub(super) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Program {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    pub(super) fn within(mut self, directory: &Path) -> Program {
        self.directory = directory.to_owned();
        self
    }

    pub(super) fn input(mut self, text: impl Into<Vec<u8>>) -> Program {
        self.input = text.into();
        self
    }

    pub(super) fn seconds(mut self, seconds: u32) -> Program {
        self.seconds = seconds;
        self
    }

    pub(super) fn user(mut self, user: User) -> Program {
        self.user = user;
        self
    }

    /// Runs to the end; the output is appended to `log`.
    ///
    /// # Errors
    /// The end of the log, when it cannot be started, fails, or exceeds its time.
    pub(super) fn run(&self, log: &Path) -> Result<(), String> {
        self.start(log)?.end()
    }

    /// Starts it; the output is appended to `log`.
    pub(super) fn start(&self, log: &Path) -> Result<Running, String> {
        let (child, _) = self.spawn(log, false)?;
        Ok(Running { child, line: self.to_string(), seconds: self.seconds, log: log.to_owned() })
    }

    /// Runs to the end and returns its standard output; the rest goes to `log`.
    pub(super) fn output(&self, log: &Path) -> Result<String, String> {
        let (output, is_success) = self.output_of_any_end(log)?;
        if is_success { Ok(output) } else { Err(format!("{self}: failed\n{}", tail(log))) }
    }

    /// Like [`Program::output`], for programs that report failures in their output: also whether it succeeded.
    pub(super) fn output_of_any_end(&self, log: &Path) -> Result<(String, bool), String> {
        let (child, mut file) = self.spawn(log, true)?;
        let output = child.wait_with_output().map_err(|error| format!("{self}: {error}"))?;
        file.write_all(&output.stdout).map_err(|error| cannot(log, &error))?;
        Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
    }

    /// Starts it with its input, and its output in `log`, apart from the standard output if that is `piped`.
    fn spawn(&self, log: &Path, piped: bool) -> Result<(Child, File), String> {
        let mut file = OpenOptions::new().create(true).append(true).open(log).map_err(|e| cannot(log, &e))?;
        writeln!(file, "$ {self}").map_err(|error| cannot(log, &error))?;
        let output = || file.try_clone().map(Stdio::from).map_err(|error| cannot(log, &error));
        let mut command = self.command();
        command.stdout(if piped { Stdio::piped() } else { output()? }).stderr(output()?);
        let mut child = command.spawn().map_err(|error| format!("{self}: {error}"))?;
        if let Some(mut pipe) = child.stdin.take() {
            // It must read all of it before it writes much.
            pipe.write_all(&self.input).map_err(|error| format!("{self}: does not read its input: {error}"))?;
        }
        Ok((child, file))
    }

    fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.arg("--kill-after=10").arg(self.seconds.to_string());
        if self.user == User::Nobody {
            command.args(["setpriv", "--clear-groups"]);
            command.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={NOBODY}")).arg("--");
        }
        command.args(&self.words).current_dir(&self.directory);
        command.env("LC_ALL", "C").envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        command
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.user == User::Nobody {
            write!(f, "(nobody) ")?;
        }
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        write!(f, "{}", words.join(" "))
    }
}

/// A running program.
pub(super) struct Running {
    child: Child,
    line: String,
    seconds: u32,
    log: PathBuf,
}

impl Running {
    /// Waits for its end.
    pub(super) fn end(mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|error| format!("{}: {error}", self.line))?;
        let what = match status.code() {
            Some(0) => return Ok(()),
            Some(124 | 137) => format!("not done within {} s", self.seconds),
            _ => status.to_string(),
        };
        Err(format!("{}: {what}\n{}", self.line, tail(&self.log)))
    }
}

/// The end of a log, and where it is.
pub(super) fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
    format!("    {}\n    (all of it: {})", shown.join("\n    "), log.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("slackwater-xtask-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn a_failure_shows_the_end_of_the_log() {
        let log = log("failure");
        let message = Program::shell("echo one; echo two >&2; exit 3").run(&log).unwrap_err();
        assert!(message.contains("one") && message.contains("two") && message.contains("exit status: 3"), "{message}");
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_program_without_an_end_is_ended() {
        let log = log("endless");
        let message = Program::new("sleep").arg("60").seconds(1).run(&log).unwrap_err();
        assert!(message.contains("not done within 1 s"), "{message}");
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn input_arrives_and_output_comes_back() {
        let log = log("input");
        assert_eq!(Program::new("cat").input("x y").output(&log).unwrap(), "x y");
        assert!(Program::shell("cat; false").input("x").output(&log).is_err());
        fs::remove_file(log).unwrap();
    }
}
