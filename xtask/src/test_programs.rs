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

use crate::cargo::{Cargo, Flaky, TestCount, Tested, target_directory};
use crate::folders::cannot;
use crate::suites::{build_all, is_root};

/// The variable by which test programs know how many tests to run at once.
const THREADS: &str = "RUST_TEST_THREADS";

const PROGRAMS_AT_ONCE: usize = 2;

/// The longest time of a test program, as timeout(1) reads it: a test that hangs fails its program, not the whole run. On a
/// machine that is busy otherwise, the slowest takes a third of it.
const LIMIT: &str = "25m";
/// The status of timeout(1) for a program that it has ended.
const TIMED_OUT: i32 = 124;

/// The program whose tests compute, some of them under the time limits of a store.
const COMPUTES: &str = "slackwater_object";

/// The words before a command that give it a mount namespace of its own, which takes root. A namespace that another process
/// makes would have copies of its mounts otherwise, and hold them when they are unmounted.
pub(crate) fn private_mounts() -> &'static [&'static str] {
    if is_root() { &["unshare", "--mount", "--"] } else { &[] }
}

/// A built test program, and how to run it.
#[derive(Clone, Debug)]
pub(crate) struct TestProgram {
    path: PathBuf,
    /// The directory of the program's package, in which cargo runs it.
    folder: PathBuf,
    /// The target of the program: the name of the test, or of the library or program whose unit tests it has.
    name: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl TestProgram {
    /// Builds the test programs that `cargo test` with these arguments runs, doc tests aside.
    pub(crate) fn build(cargo: Cargo) -> Result<Vec<TestProgram>, String> {
        TestProgram::built(cargo.args("--no-run"), |message| message["profile"]["test"] == true)
    }

    /// Builds the examples, which are tests: each ends with status 0.
    pub(crate) fn examples() -> Result<Vec<TestProgram>, String> {
        TestProgram::built(build_all(), |message| message["target"]["kind"][0] == "example")
    }

    fn built(cargo: Cargo, is_one: fn(&Value) -> bool) -> Result<Vec<TestProgram>, String> {
        let cargo = cargo.args("--message-format json-render-diagnostics");
        println!("$ {cargo}");
        let messages = cargo.output()?;
        let one_of = |message: &str| TestProgram::of_message(message, is_one);
        Ok(String::from_utf8_lossy(&messages).lines().filter_map(one_of).collect())
    }

    /// The program that a message of cargo names, if it is one of those looked for.
    fn of_message(message: &str, is_one: fn(&Value) -> bool) -> Option<TestProgram> {
        let message: Value = serde_json::from_str(message).ok()?;
        let path = message["executable"].as_str().filter(|_| is_one(&message))?;
        Some(TestProgram {
            path: path.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.into(),
            name: message["target"]["name"].as_str()?.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        })
    }

    /// Whether it is the target `name`, or `name` has its package too, as `PACKAGE/NAME`.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name
            || self.folder.file_name().is_some_and(|package| Path::new(package).join(&self.name) == Path::new(name))
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

    /// The package, the name and the arguments of the program.
    fn title(&self) -> String {
        let package = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let arguments = self.arguments.iter().map(|argument| format!(" {argument}"));
        format!("{package}/{}{}", self.name, arguments.collect::<String>())
    }

    /// The command for a shell that runs the program with `arguments`.
    fn line(&self, arguments: &[String]) -> String {
        let variables = self.environment.iter().map(|(name, value)| format!("{name}='{value}' "));
        let (variables, folder) = (variables.collect::<String>(), self.folder.display());
        format!("cd {folder}; {variables}{} {}", self.path.display(), arguments.join(" "))
    }

    /// Two tests for each CPU, since tests of mounts use a third of the time of two CPUs.
    fn threads(&self) -> String {
        let for_each_cpu = if self.is(COMPUTES) { 1 } else { 2 };
        (for_each_cpu * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)).to_string()
    }

    /// Runs it to the end with `arguments`; returns whether it passed, and all that it printed.
    fn run(&self, log: &Path, arguments: &[String], threads: &str) -> Result<(bool, String), String> {
        let file = File::create(log).map_err(|error| cannot(log, &error))?;
        let errors = file.try_clone().map_err(|error| cannot(log, &error))?;
        // Signals that the run ignores, as under nohup, would be ignored by all programs that the tests start.
        let mut command = Command::new("timeout");
        command
            // In the foreground, so that Ctrl-C reaches the tests.
            .args(["--foreground", "--kill-after=10s", LIMIT])
            .args(private_mounts())
            .args(["env", "--default-signal=HUP,INT,QUIT"])
            .arg(&self.path)
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        command.env(THREADS, threads).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let status = command.status().map_err(|error| cannot(&self.path, &error))?;
        let said = fs::read(log).map_err(|error| cannot(log, &error))?;
        let mut said = String::from_utf8_lossy(&said).into_owned();
        if status.code() == Some(TIMED_OUT) {
            said.push_str(&format!("\n{} was ended after {LIMIT}: a test hangs\n", self.title()));
        }
        Ok((status.success(), said))
    }

    /// Runs the failed tests of `said`, its output, once more: one at a time, while nothing else runs. If it ended without a
    /// list of them, such as after an abort, all its tests run again.
    fn run_again(&self, said: String, log: &Path) -> Result<Vec<Flaky>, String> {
        let failed = failed_tests(&said);
        let title = self.title();
        if failed.is_empty() {
            println!("again: {title}");
            let (passed, again) = self.run(log, &self.arguments, "1")?;
            println!("{again}");
            return if passed {
                Ok(vec![Flaky { name: title, output: said }])
            } else {
                Err(self.line(&self.arguments))
            };
        }
        let mut flaky = Vec::new();
        for test in failed {
            let arguments = ["--exact", "--include-ignored", test].map(str::to_owned);
            println!("again: {title}: {test}");
            let (passed, again) = self.run(log, &arguments, "1")?;
            println!("{again}");
            if !passed {
                return Err(self.line(&arguments));
            }
            flaky.push(Flaky { name: format!("{title}: {test}"), output: output_of(&said, test) });
        }
        Ok(flaky)
    }
}

/// The tests that the output of a test program lists as failed, at its end.
fn failed_tests(said: &str) -> Vec<&str> {
    let Some((_, list)) = said.rsplit_once("\nfailures:\n") else { return Vec::new() };
    list.lines().map_while(|line| line.strip_prefix("    ")).collect()
}

/// The output of one failed test, from that of its program.
fn output_of(said: &str, test: &str) -> String {
    let Some((_, output)) = said.split_once(&format!("\n---- {test} stdout ----\n")) else { return said.to_owned() };
    let end = output.find("\n---- ").or_else(|| output.find("\nfailures:\n")).unwrap_or(output.len());
    output[..end].trim_end().to_owned()
}

/// Runs all of them, the largest first, since those tend to take longest. All run even if some fail. Failed tests run
/// once more at the end; an error has the commands of those that fail again.
pub(crate) fn run(mut programs: Vec<TestProgram>) -> Result<Tested, String> {
    let logs = target_directory()?.join("test-output");
    fs::create_dir_all(&logs).map_err(|error| cannot(&logs, &error))?;
    programs.sort_by_key(|program| program.path.metadata().map_or(0, |file| file.len()));
    let total = programs.len();
    let waiting = Mutex::new(programs);
    let outcome = Mutex::new((Tested::default(), Vec::new()));
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
            let ended = program.run(&log, &program.arguments, &program.threads());
            let mut outcome = outcome.lock().expect("no worker panics");
            let seconds = start.elapsed().as_secs_f64();
            let (passed, said) = ended.unwrap_or_else(|error| (false, error));
            println!("\n{said}\nend {}: {seconds:.1} s", program.title());
            said.lines().for_each(|line| outcome.0.count += TestCount::of_line(line));
            if !passed {
                outcome.1.push((program, said));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..PROGRAMS_AT_ONCE {
            scope.spawn(worker);
        }
    });
    let (mut tested, failed) = outcome.into_inner().expect("no worker panics");
    let log = logs.join("again.txt");
    let mut failed_again = Vec::new();
    for (program, said) in failed {
        match program.run_again(said, &log) {
            Ok(flaky) => tested.flaky.extend(flaky),
            Err(line) => failed_again.push(line),
        }
    }
    if !failed_again.is_empty() {
        return Err(failed_again.join("\n"));
    }
    tested.count.have_passed();
    Ok(tested)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn messages_name_test_programs() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/p/crates/fuse/Cargo.toml",
            "target":{"name":"volume"},"profile":{"test":true},"executable":"/p/target/volume-1"}"#;
        let is_test: fn(&Value) -> bool = |message| message["profile"]["test"] == true;
        let program = TestProgram::of_message(message, is_test).unwrap();
        assert_eq!((program.folder.as_path(), program.is("volume")), (Path::new("/p/crates/fuse"), true));
        assert!(program.is("fuse/volume") && !program.is("cli/volume"));
        let program = program.env("A", "1").args("kills:: --ignored");
        assert_eq!(program.title(), "fuse/volume kills:: --ignored");
        assert_eq!(program.line(&program.arguments), "cd /p/crates/fuse; A='1' /p/target/volume-1 kills:: --ignored");
        let other = message.replace("\"test\":true", "\"test\":false");
        assert!(TestProgram::of_message(&other, is_test).is_none());
        assert!(TestProgram::of_message("not JSON", is_test).is_none());
    }

    const OUTPUT: &str = "running 3 tests\ntest a ... ok\ntest b::c ... FAILED\ntest d ... FAILED\n\nfailures:\n\n\
        ---- b::c stdout ----\nfailures:\n    of c\n\n---- d stdout ----\nof d\n\n\nfailures:\n    b::c\n    d\n\n\
        test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s\n";

    #[test]
    fn failed_tests_and_what_they_printed_are_found_in_the_output() {
        assert_eq!(failed_tests(OUTPUT), ["b::c", "d"]);
        assert_eq!(output_of(OUTPUT, "b::c"), "failures:\n    of c");
        assert_eq!(output_of(OUTPUT, "d"), "of d");
        assert_eq!(failed_tests("running 3 tests\ntest a ... ok\n"), [""; 0], "a program that was killed");
    }

    /// A program of this name that is a script.
    fn script(name: &str, text: &str) -> (TestProgram, PathBuf) {
        let folder = std::env::temp_dir().join(format!("slackwater-xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("program");
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let program =
            TestProgram { path, folder: folder.clone(), name: name.into(), arguments: vec![], environment: vec![] };
        (program, folder)
    }

    #[test]
    fn a_test_that_passes_alone_is_flaky_and_one_that_does_not_fails_the_run() {
        let (program, folder) = script("flaky", "case $3 in d) exit 1; esac\n");
        let again = |said: &str| program.run_again(said.into(), &folder.join("log"));
        let only_c = OUTPUT.replace("    d\n", "");
        let flaky = Flaky { name: format!("{}: b::c", program.title()), output: "failures:\n    of c".into() };
        assert_eq!(again(&only_c), Ok(vec![flaky]));
        assert_eq!(again(OUTPUT), Err(program.line(&["--exact", "--include-ignored", "d"].map(str::to_owned))));
        let killed = "running 3 tests\n";
        assert_eq!(again(killed), Ok(vec![Flaky { name: program.title(), output: killed.into() }]));
        fs::remove_dir_all(folder).unwrap();
    }
}
