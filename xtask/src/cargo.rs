//! Calls of cargo, which can be run and can be printed so that a reader repeats them in a shell; and what they report.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A cargo command line with the environment it needs.
pub(crate) struct Cargo {
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
}

impl Cargo {
    /// Cargo with the words of `line` as arguments.
    pub(crate) fn new(line: &str) -> Cargo {
        Cargo { environment: Vec::new(), arguments: line.split_whitespace().map(str::to_owned).collect() }
    }

    /// Adds one environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Cargo {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets Clippy compile our packages, and refuse warnings. It is the compiler with more lints, so this saves checking all
    /// packages and dependencies once more. Its artifacts are apart from those of cargo without it.
    pub(crate) fn linted(self) -> Cargo {
        self.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", "-Dwarnings")
    }

    /// Adds the words of `line` as further arguments.
    pub(crate) fn args(mut self, line: &str) -> Cargo {
        self.arguments.extend(line.split_whitespace().map(str::to_owned));
        self
    }

    /// Adds one argument as it is, which may be a path.
    pub(crate) fn arg(mut self, argument: &Path) -> Cargo {
        self.arguments.push(argument.display().to_string());
        self
    }

    /// Runs to the end and passes the output on. An error is the command to repeat.
    pub(crate) fn run(&self) -> Result<(), String> {
        println!("$ {self}");
        let status = self.command().status().map_err(|error| format!("{self}: {error}"))?;
        if status.success() { Ok(()) } else { Err(self.to_string()) }
    }

    /// Like [`Cargo::run`] for `cargo test`; also adds up what the test programs report.
    pub(crate) fn run_tests(&self) -> Result<TestCount, String> {
        let (passed, count, _) = self.test()?;
        if passed { Ok(count) } else { Err(self.to_string()) }
    }

    /// The same for tests that take seconds together: if some fail, all run once more, and passing then is enough.
    pub(crate) fn run_tests_again(&self) -> Result<Tested, String> {
        let (passed, count, output) = self.test()?;
        if passed {
            return Ok(count.into());
        }
        let mut tested = Tested::from(self.run_tests()?);
        tested.flaky.push(Flaky { name: self.to_string(), output });
        Ok(tested)
    }

    /// Runs `cargo test` and passes its output on. Returns whether it passed, the sum of what the test programs report, and
    /// the output.
    fn test(&self) -> Result<(bool, TestCount, String), String> {
        println!("$ {self}");
        let cannot = |error: std::io::Error| format!("{self}: {error}");
        let mut child = self.command().stdout(Stdio::piped()).spawn().map_err(cannot)?;
        let (mut count, mut said) = (TestCount::default(), String::new());
        let mut output = BufReader::new(child.stdout.take().expect("stdout was piped one line above"));
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).map_err(cannot)? > 0 {
            std::io::stdout().write_all(&line).map_err(cannot)?;
            let text = String::from_utf8_lossy(&line);
            count += TestCount::of_line(&text);
            said += &text;
            line.clear();
        }
        let status = child.wait().map_err(cannot)?;
        Ok((status.success(), count, said))
    }

    /// Runs to the end and returns what was written to standard output.
    pub(crate) fn output(&self) -> Result<Vec<u8>, String> {
        let output = self.command().stderr(Stdio::inherit()).output().map_err(|error| format!("{self}: {error}"))?;
        if output.status.success() { Ok(output.stdout) } else { Err(self.to_string()) }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl fmt::Display for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}='{value}' ")?;
        }
        write!(f, "cargo {}", self.arguments.join(" "))
    }
}

/// The output of `cargo metadata` with these arguments.
pub(crate) fn metadata(arguments: &str) -> Result<Value, String> {
    let text = Cargo::new("metadata --format-version 1").args(arguments).output()?;
    serde_json::from_slice(&text).map_err(|error| format!("cargo metadata: {error}"))
}

/// Where cargo builds this checkout.
pub(crate) fn target_directory() -> Result<PathBuf, String> {
    let metadata = metadata("--no-deps")?;
    metadata["target_directory"].as_str().map(PathBuf::from).ok_or_else(|| "cargo names no target directory".into())
}

/// Sum of the `test result:` lines of test programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestCount {
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl TestCount {
    pub(crate) fn of_line(line: &str) -> TestCount {
        let mut count = TestCount::default();
        let Some(result) = line.strip_prefix("test result: ") else { return count };
        let words: Vec<&str> = result.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse() else { continue };
            match pair[1] {
                "passed" => count.passed = number,
                "failed" => count.failed = number,
                "ignored" => count.ignored = number,
                _ => {}
            }
        }
        count
    }

    /// Counts all that failed as passed, since they have passed alone. A test that runs itself in a process of its own has
    /// failed twice.
    pub(crate) fn have_passed(&mut self) {
        self.passed += std::mem::take(&mut self.failed);
    }
}

impl AddAssign for TestCount {
    fn add_assign(&mut self, other: TestCount) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl fmt::Display for TestCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.failed == 0 { "ok" } else { "FAILED" };
        write!(f, "{verdict}. {} passed; {} failed; {} ignored", self.passed, self.failed, self.ignored)
    }
}

/// The results of a check: how many tests passed and failed, and which were flaky.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tested {
    pub(crate) count: TestCount,
    /// The tests that passed only when they ran once more.
    pub(crate) flaky: Vec<Flaky>,
}

/// Tests that failed and then passed alone, and what they printed when they failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flaky {
    pub(crate) name: String,
    pub(crate) output: String,
}

impl From<TestCount> for Tested {
    fn from(count: TestCount) -> Tested {
        Tested { count, flaky: Vec::new() }
    }
}

impl AddAssign for Tested {
    fn add_assign(&mut self, other: Tested) {
        self.count += other.count;
        self.flaky.extend(other.flaky);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_prints_as_a_shell_reads_it() {
        let command = Cargo::new("test --release").env("RUSTFLAGS", "--cfg x").args("--test loom_cell");
        assert_eq!(command.to_string(), "RUSTFLAGS='--cfg x' cargo test --release --test loom_cell");
    }

    #[test]
    fn result_lines_add_up_and_other_lines_count_nothing() {
        let mut sum = TestCount::default();
        for line in [
            "test result: ok. 12 passed; 0 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.10s\n",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s\n",
            "test units::tests::pages_round_up ... ok\n",
        ] {
            sum += TestCount::of_line(line);
        }
        assert_eq!(sum.to_string(), "ok. 13 passed; 0 failed; 2 ignored");
        sum += TestCount::of_line("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n");
        assert_eq!(sum.to_string(), "FAILED. 14 passed; 2 failed; 2 ignored");
        sum.have_passed();
        assert_eq!(sum.to_string(), "ok. 16 passed; 0 failed; 2 ignored");
    }
}
