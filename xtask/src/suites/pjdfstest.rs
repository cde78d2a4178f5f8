//! pjdfstest: the rules of POSIX for system calls on names and attributes, as root and as two ordinary users.

use crate::folders::cannot;
use std::collections::BTreeMap;
use std::fs;

use super::ground::Ground;
use super::program::{Program, tail};
use super::tools::CargoTool;
use super::{Effort, Suite};

pub(super) const SUITE: Suite =
    Suite { name: "pjdfstest", about: "POSIX semantics of names and attributes", needs: &[], run };

const TOOL: CargoTool = CargoTool { name: "pjdfstest", version: "0.2.2" };

/// `naptime` is above the step of the kernel's coarse clock, which stamps files.
const CONFIGURATION: &str = "\
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.05
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// The tests that do not run, one per line, each with the place and the reason.
const SKIPPED: &str = include_str!("pjdfstest-skipped.txt");

fn run(ground: &mut Ground, _effort: &Effort) -> Result<String, String> {
    let configuration = ground.beside().join("pjdfstest.toml");
    fs::write(&configuration, CONFIGURATION).map_err(|error| cannot(&configuration, &error))?;
    let mut program = Program::new(TOOL.program()?).arg("-c").arg(&configuration).arg("-p").arg(ground.path());
    if ground.is_mounted() {
        program = program.arg("-s").arg(ground.beside());
    }
    let (output, is_success) = program.output_of_any_end(ground.log())?;
    let found = Outcome::of(&output);
    if !is_success || found.count("FAILED") > 0 || found.count("ok") == 0 {
        return Err(format!("{}\n{}", found.failures().join("\n"), tail(ground.log())));
    }
    let surprises = found.surprises(&expected(ground.is_mounted()));
    if !surprises.is_empty() {
        return Err(format!("{}\nsee xtask/src/suites/pjdfstest-skipped.txt", surprises.join("\n")));
    }
    Ok(format!("{} passed, {} skipped as expected", found.count("ok"), found.count("skipped")))
}

fn expected(is_mounted: bool) -> Vec<&'static str> {
    let place = if is_mounted { "mounted" } else { "plain" };
    let lines = SKIPPED.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace());
    let listed = lines.filter_map(|mut words| Some((words.next()?, words.next()?)));
    listed.filter(|(_, at)| ["always", place].contains(at)).map(|(name, _)| name).collect()
}

/// The result of each test, and for a failed one the next line.
struct Outcome<'a>(BTreeMap<&'a str, (&'a str, &'a str)>);

impl<'a> Outcome<'a> {
    fn of(output: &'a str) -> Outcome<'a> {
        let mut tests = BTreeMap::new();
        let mut lines = output.lines().peekable();
        while let Some(line) = lines.next() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [name, verdict @ ("ok" | "FAILED" | "skipped")] = words[..]
                && name.contains("::")
            {
                let reason = lines.peek().filter(|next| next.starts_with('\t')).map_or("", |next| next.trim());
                tests.insert(name, (verdict, reason));
            }
        }
        Outcome(tests)
    }

    fn count(&self, verdict: &str) -> usize {
        self.0.values().filter(|(own, _)| *own == verdict).count()
    }

    fn failures(&self) -> Vec<String> {
        let failed = self.0.iter().filter(|(_, (verdict, _))| *verdict == "FAILED");
        failed.map(|(name, (_, reason))| format!("{name}: {reason}")).collect()
    }

    /// Tests that were skipped and should not be, and the reverse.
    fn surprises(&self, expected: &[&str]) -> Vec<String> {
        let skipped = |name: &str| self.0.get(name).is_some_and(|(verdict, _)| *verdict == "skipped");
        let new = self.0.iter().filter(|(name, (verdict, _))| *verdict == "skipped" && !expected.contains(name));
        let new = new.map(|(name, (_, reason))| format!("skipped, and not listed: {name} ({reason})"));
        let gone = expected.iter().filter(|name| !skipped(name));
        new.chain(gone.map(|name| format!("listed, and not skipped: {name}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "chmod::eloop    ok\nlink::exdev_target     skipped\n\tNo secondary\n\
                          open::x::dir     FAILED\n\tassertion failed\nBacktrace:\n   0: main\n\nSummary: 1 failed\n";

    #[test]
    fn every_test_has_its_outcome() {
        let outcome = Outcome::of(OUTPUT);
        assert_eq!([outcome.count("ok"), outcome.count("skipped"), outcome.count("FAILED")], [1, 1, 1]);
        assert_eq!(outcome.failures(), ["open::x::dir: assertion failed"]);
    }

    #[test]
    fn skipped_tests_are_those_of_the_list() {
        let outcome = Outcome::of(OUTPUT);
        assert!(outcome.surprises(&["link::exdev_target"]).is_empty());
        assert_eq!(outcome.surprises(&[]), ["skipped, and not listed: link::exdev_target (No secondary)"]);
        let gone = outcome.surprises(&["link::exdev_target", "chmod::eloop"]);
        assert_eq!(gone, ["listed, and not skipped: chmod::eloop"]);
    }

    #[test]
    fn the_list_says_where_and_why() {
        for line in SKIPPED.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert!(words.len() > 4 && ["always", "mounted", "plain"].contains(&words[1]), "{line}");
        }
        assert!(expected(false).contains(&"rename::exdev_target") && !expected(true).contains(&"rename::exdev_target"));
    }
}
