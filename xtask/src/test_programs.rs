//! Test programs, several at once.
//!
//! Cargo runs one test program after another. Ours wait for the kernel and for other processes much of the time, so two at
//! once leave fewer CPUs idle. The output of each is shown when it ends; until then it is in a file, for a run that hangs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use serde_json::Value;

use crate::cargo::{Cargo, TestCount};
use crate::folders::cannot;
use crate::suites::target_directory;

/// The variable by which test programs know how many tests to run at once.
const THREADS: &str = "RUST_TEST_THREADS";

const PROGRAMS_AT_ONCE: usize = 2;

/// Its tests compute, and some have time limits of a store.
const COMPUTES: &str = "slackwater_object";

/// A built test program, and how to run it.
#[derive(Clone, Debug)]
pub(crate) struct TestProgram {
    path: PathBuf,
    /// The directory of its package, in which cargo runs it.
    folder: PathBuf,
    /// Its target: the name of the test, or of the library or program whose unit tests it has.
    name: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl TestProgram {
    /// Builds the test programs that `cargo test` with these arguments runs, doc tests aside.
    pub(crate) fn build(cargo: Cargo) -> Result<Vec<TestProgram>, String> {
        let cargo = cargo.args("--no-run --message-format json-render-diagnostics");
        println!("$ {cargo}");
        let messages = cargo.output()?;
        Ok(String::from_utf8_lossy(&messages).lines().filter_map(TestProgram::of_message).collect())
    }

    /// The test program that a message of cargo names.
    fn of_message(message: &str) -> Option<TestProgram> {
        let message: Value = serde_json::from_str(message).ok()?;
        let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
        Some(TestProgram {
            path: path.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.into(),
            name: message["target"]["name"].as_str()?.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        })
    }

    /// Whether its name is `name`.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// Adds the words of `line` as arguments.
    pub(crate) fn args(mut self, line: &str) -> TestProgram {
        self.arguments.extend(line.split_whitespace().map(str::to_owned));
        self
    }

    /// Adds one environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> TestProgram {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Its package, its name and its arguments.
    fn title(&self) -> String {
        let package = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let arguments = self.arguments.iter().map(|argument| format!(" {argument}"));
        format!("{package}/{}{}", self.name, arguments.collect::<String>())
    }

    /// The command for a shell, after which the program runs again.
    fn line(&self) -> String {
        let variables = self.environment.iter().map(|(name, value)| format!("{name}='{value}' "));
        let (variables, folder) = (variables.collect::<String>(), self.folder.display());
        format!("cd {folder}; {variables}{} {}", self.path.display(), self.arguments.join(" "))
    }

    /// Two tests for each CPU, since tests of mounts use a third of the time of two CPUs.
    fn threads(&self) -> String {
        let for_each_cpu = if self.is(COMPUTES) { 1 } else { 2 };
        (for_each_cpu * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)).to_string()
    }

    /// Runs it to the end; returns whether it passed, and all that it printed.
    fn run(&self, log: &Path) -> Result<(bool, String), String> {
        let file = File::create(log).map_err(|error| cannot(log, &error))?;
        let errors = file.try_clone().map_err(|error| cannot(log, &error))?;
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env(THREADS, self.threads()).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let status = command.status().map_err(|error| cannot(&self.path, &error))?;
        let said = fs::read(log).map_err(|error| cannot(log, &error))?;
        Ok((status.success(), String::from_utf8_lossy(&said).into_owned()))
    }
}

/// Runs all of them, the largest first, since those tend to take longest. All run even if some fail.
pub(crate) fn run(mut programs: Vec<TestProgram>) -> Result<TestCount, String> {
    let logs = target_directory()?.join("test-output");
    fs::create_dir_all(&logs).map_err(|error| cannot(&logs, &error))?;
    programs.sort_by_key(|program| program.path.metadata().map_or(0, |file| file.len()));
    let total = programs.len();
    let waiting = Mutex::new(programs);
    let outcome = Mutex::new((TestCount::default(), Vec::new()));
    let worker = || {
        loop {
            let (program, number) = {
                let mut waiting = waiting.lock().expect("no worker panics");
                let number = total - waiting.len();
                let Some(program) = waiting.pop() else { return };
                (program, number)
            };
            let log = logs.join(format!("{number}.txt"));
            println!("begin {}, output in {}", program.title(), log.display());
            let start = Instant::now();
            let ended = program.run(&log);
            let mut outcome = outcome.lock().expect("no worker panics");
            let seconds = start.elapsed().as_secs_f64();
            let (passed, said) = ended.unwrap_or_else(|error| (false, error));
            println!("\n{said}\nend {}: {seconds:.1} s", program.title());
            said.lines().for_each(|line| outcome.0 += TestCount::of_line(line));
            if !passed {
                outcome.1.push(program.line());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..PROGRAMS_AT_ONCE {
            scope.spawn(worker);
        }
    });
    let (count, failed) = outcome.into_inner().expect("no worker panics");
    if failed.is_empty() { Ok(count) } else { Err(failed.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_test_programs() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/p/crates/fuse/Cargo.toml",
            "target":{"name":"volume"},"profile":{"test":true},"executable":"/p/target/volume-1"}"#;
        let program = TestProgram::of_message(message).unwrap();
        assert_eq!((program.folder.as_path(), program.is("volume")), (Path::new("/p/crates/fuse"), true));
        let program = program.env("A", "1").args("kills:: --ignored");
        assert_eq!(program.title(), "fuse/volume kills:: --ignored");
        assert_eq!(program.line(), "cd /p/crates/fuse; A='1' /p/target/volume-1 kills:: --ignored");
        let other = message.replace("\"test\":true", "\"test\":false");
        assert!(TestProgram::of_message(&other).is_none());
        assert!(TestProgram::of_message("not JSON").is_none());
    }
}
