//! stress-ng: each of its file system stressors, for one second.
//!
//! Some fail on any file system or in any container. A stressor that fails here runs again on the file
//! system below; if it fails there too, it is not counted.

use std::collections::BTreeSet;

use super::ground::{Ground, make_open_directory};
use super::program::{Program, tail};
use super::{Effort, Suite};

pub(super) const SUITE: Suite =
    Suite { name: "stress", about: "every file-system stressor of stress-ng for a second", needs: &["stress-ng"], run };

/// verity needs a file system with keys; lockofd fails because it cannot lock enough memory.
const CLASS: &str = "--class filesystem --sequential 1 --exclude verity,lockofd";
/// Seconds for each.
const SECONDS: (u32, u32) = (5, 1);

fn run(ground: &mut Ground, effort: &Effort) -> Result<String, String> {
    let seconds = effort.pick(SECONDS.0, SECONDS.1);
    let log = ground.log().to_owned();
    let stress = |what: &str, path: &std::path::Path, limit: u32| {
        let options = format!("{what} --timeout {seconds}s --stdout --metrics-brief --temp-path");
        Program::new("stress-ng").args(&options).arg(path).within(path).seconds(limit)
    };
    let (output, is_success) = stress(CLASS, ground.path(), seconds * 60 + 120).output_of_any_end(&log)?;
    let failed = failed(&output);
    // A stressor that never ends prints nothing at all.
    let is_whole = output.contains("run completed in ");
    if !is_whole || (failed.is_empty() && !is_success) {
        let last = stressors(&output).into_iter().rfind(|name| output.contains(&format!("] {name}: ")));
        let last = last.unwrap_or("none");
        return Err(format!("stress-ng does not come to its end; the last to say something: {last}\n{}", tail(&log)));
    }
    if !ground.is_mounted() {
        return Ok(format!("for comparison only; failed: {}", listed(&failed)));
    }
    let below = ground.beside().join("stress");
    make_open_directory(&below)?;
    let mut ours = BTreeSet::new();
    for name in &failed {
        let (output, _) = stress(&format!("--{name} 1"), &below, seconds + 60).output_of_any_end(&log)?;
        if self::failed(&output).is_empty() {
            ours.insert(name.clone());
        }
    }
    if ours.is_empty() {
        let ran = stressors(&output).len();
        return Ok(format!("{ran} stressors; failed here and on the file system below: {}", listed(&failed)));
    }
    Err(format!("failed here and not on the file system below: {}\n{}", listed(&ours), messages(&output, &ours)))
}

fn listed(names: &BTreeSet<String>) -> String {
    if names.is_empty() { "none".to_owned() } else { names.iter().map(String::as_str).collect::<Vec<_>>().join(", ") }
}

/// Names of the stressors that found a fault, or gave up because something was missing.
fn failed(output: &str) -> BTreeSet<String> {
    output.lines().filter_map(failed_in).map(str::to_owned).collect()
}

/// `stress-ng: fail:  [12] name: what`, and `stress-ng: warn:  [1] process [12] (name) aborted early, why`.
fn failed_in(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("stress-ng: ")?;
    let (kind, rest) = rest.split_once(':')?;
    let (_, text) = rest.split_once("] ")?;
    if kind == "fail" {
        return text.split_once(':').map(|(name, _)| name.trim());
    }
    let is_end = ["terminated", "aborted", "killed"].iter().any(|word| text.contains(word));
    let (_, named) = text.strip_prefix("process ").filter(|_| is_end)?.split_once('(')?;
    named.split_once(')').map(|(name, _)| name)
}

/// The verdicts on some stressors.
fn messages(output: &str, names: &BTreeSet<String>) -> String {
    let told = output.lines().filter(|line| failed_in(line).is_some_and(|name| names.contains(name)));
    told.map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// The stressors that were started.
fn stressors(output: &str) -> Vec<&str> {
    let hogs = output.lines().find_map(|line| line.split_once("dispatching hogs: "));
    hogs.map_or_else(Vec::new, |(_, hogs)| hogs.split(", ").map(|hog| hog.trim_start_matches("1 ")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
stress-ng: info:  [1] dispatching hogs: 1 access, 1 binderfs, 1 chmod
stress-ng: fail:  [3] access: access 200 on chmod mode 400 failed
stress-ng: info:  [2] binderfs: binderfs not supported, errno=19 (No such device), skipping stress test
stress-ng: warn:  [1] process [2] (binderfs) aborted early, out of system resources
stress-ng: error: [1] process [3] (access) terminated with an error, exit status=2 (stressor failed)
stress-ng: info:  [1] unsuccessful run completed in 3.02s
";

    #[test]
    fn stressors_that_fail_are_named_once() {
        let names = failed(OUTPUT);
        assert_eq!(listed(&names), "access, binderfs");
        assert_eq!(messages(OUTPUT, &names).lines().count(), 3);
        assert_eq!(stressors(OUTPUT), ["access", "binderfs", "chmod"]);
        assert!(failed("stress-ng: info:  [1] successful run completed in 3.02s\n").is_empty());
    }
}
