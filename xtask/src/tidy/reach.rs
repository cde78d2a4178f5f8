//! Rules on the use of threads and clocks, and on printing names.

use super::Finding;
use super::scan::{Named, named};
use super::tree::Tree;

const SHIM: &str = "crates/sync/src/shim";
const CLOCK: &str = "crates/backends/src/clock.rs";

/// Atomics that lie in the mapped file: plain ones in every build, or a model checker would put its own
/// bookkeeping into the file.
const MAPPED_WORDS: [&str; 2] = ["crates/arena/src/word.rs", "crates/mount/src/takeover/word.rs"];

/// Tools, experiments, the command, its plugins and the C interface: they run beside the engine, never under a model checker.
const OUTSIDE: [&str; 7] = [
    "xtask/",
    "crates/capi/",
    "crates/cli/",
    "crates/containers/",
    "crates/control/",
    "crates/lab/",
    "crates/s3-server/",
];

/// The shim alone names a scheduler, so that model checkers see every lock, thread and atomic; tests may use the standard one,
/// but reach a model checker through the shim too. One file reads the clock and sleeps, so that tests own time.
pub(super) fn scheduler_and_clock(tree: &Tree) -> Vec<Finding> {
    const CHECKERS: [&str; 2] = ["loom", "shuttle"];
    const STANDARD: [&str; 4] = ["std::sync", "std::thread", "core::sync", "alloc::sync"];
    const CLOCKS: [&str; 3] = ["Instant::now", "SystemTime::now", "thread::sleep"];
    /// Tests can stop the clock of the asynchronous runtime.
    const STOPPABLE: &str = "tokio::time::Instant::now";
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !file.path.starts_with(SHIM)) {
        for Named { line, path, is_test } in named(&file.lines) {
            let is_product = !is_test && !file.is_in(&OUTSIDE);
            let root = |roots: &[&'static str]| roots.iter().copied().find(|root| is_below(&path, root));
            let standard = || root(&STANDARD).filter(|_| is_product && !MAPPED_WORDS.contains(&&*file.path));
            let is_clock = is_product && path != STOPPABLE && file.path != CLOCK;
            let message = if let Some(root) = root(&CHECKERS).or_else(standard) {
                format!("`{root}` belongs to {SHIM}: use `slackwater_sync`")
            } else if let Some(call) = CLOCKS.iter().find(|call| is_clock && path.ends_with(**call)) {
                format!("`{call}` belongs to {CLOCK}: take a `Clock`")
            } else {
                continue;
            };
            findings.push(Finding::new(&file.path, line, message));
        }
    }
    // A `use` with braces names the same root many times.
    findings.dedup();
    findings
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Names from outside the project reach a terminal or a log only through the function that escapes them.
pub(super) fn printable(tree: &Tree) -> Vec<Finding> {
    const PRINTS: [&str; 5] =
        ["crates/cli/src/", "crates/containers/src/", "crates/control/src/", "crates/fuse/src/", "crates/mount/src/"];
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.is_in(&PRINTS)) {
        for (number, _) in file.product_lines().filter(|(_, line)| line.code.contains(".display()")) {
            let message = "a path may hold anything: print it with `.printable()` of `slackwater_host::Printable`";
            findings.push(Finding::new(&file.path, number, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn only_the_shim_names_a_scheduler() {
        let text = "use std::{\n    fmt,\n    sync::Arc,\n};\n// std::sync in prose\nfn f(x: loom::sync::Arc<u8>) {}\n\
                    #[cfg(test)]\nmod tests {\n    use std::thread;\n}\n";
        let files = [
            ("crates/sync/src/shim/std.rs", text),
            ("crates/sync/src/rcu/mod.rs", text),
            ("crates/engine/tests/model_x.rs", "use loom::model;\nuse std::thread;\n"),
            ("crates/lab/src/main.rs", "use std::sync::mpsc;\n"),
        ];
        let expected =
            ["crates/sync/src/rcu/mod.rs:1", "crates/sync/src/rcu/mod.rs:6", "crates/engine/tests/model_x.rs:1"];
        assert_eq!(places(scheduler_and_clock, &files), expected);
    }

    #[test]
    fn only_the_system_clock_reads_the_clock() {
        let text =
            "use std::time::Instant;\nlet t = Instant::now();\nshim::thread::sleep(d);\ntokio::time::Instant::now();\n";
        let files = [(CLOCK, text), ("crates/engine/src/clock.rs", text), ("crates/engine/tests/a.rs", text)];
        assert_eq!(
            places(scheduler_and_clock, &files),
            ["crates/engine/src/clock.rs:2", "crates/engine/src/clock.rs:3"]
        );
    }

    #[test]
    fn paths_are_printed_by_one_way() {
        let text = "say!(\"{}\", path.display());\nsay!(\"{}\", path.printable());\n#[cfg(test)]\nmod tests {\n    p.display();\n}\n";
        let files = [("crates/cli/src/a.rs", text), ("crates/fuse/src/b.rs", text), ("crates/engine/src/c.rs", text)];
        assert_eq!(places(printable, &files), ["crates/cli/src/a.rs:1", "crates/fuse/src/b.rs:1"]);
    }
}
