//! Rules on the use of threads, clocks, `unsafe` and fences.

use super::Finding;
use super::scan::{has_word, is_identifier, named};
use super::tree::Tree;

const SHIM: &str = "crates/sync/src/shim";
const CLOCK: &str = "crates/backends/src/clock.rs";

/// Atomics that lie in the mapped file: plain ones in every build, or a model checker would put its own
/// bookkeeping into the file.
const MAPPED_WORDS: [&str; 2] = ["crates/arena/src/word.rs", "crates/fuse/src/takeover/word.rs"];

/// Tools, experiments, the command and the C interface: they run beside the engine, never under a model checker.
const OUTSIDE: [&str; 5] = ["xtask/", "crates/capi/", "crates/cli/", "crates/lab/", "crates/s3-server/"];

/// The shim alone names a scheduler, so that model checkers see every lock, thread and atomic.
/// Tests may use the standard one, but reach a model checker through the shim too.
pub(super) fn scheduler(tree: &Tree) -> Vec<Finding> {
    const STANDARD: [&str; 4] = ["std::sync", "std::thread", "core::sync", "alloc::sync"];
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !file.path.starts_with(SHIM) && !MAPPED_WORDS.contains(&&*file.path)) {
        for named in named(&file.lines) {
            let is_below = |root: &str| {
                named.path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            let is_outside = named.is_test || file.is_in(&OUTSIDE);
            let standard = STANDARD.into_iter().find(|root| is_below(root) && !is_outside);
            let checker = ["loom", "shuttle"].into_iter().find(|root| is_below(root));
            if let Some(root) = standard.or(checker) {
                let message = format!("`{root}` belongs to {SHIM}: use `slackwater_sync`");
                findings.push(Finding::new(&file.path, named.line, message));
            }
        }
    }
    // A `use` with braces names the same root many times.
    findings.dedup();
    findings
}

/// One file reads the clock and sleeps, so that tests own time; the shim times its own model checks. The clock of an
/// asynchronous runtime may be read under its full name, because tests can stop it.
pub(super) fn clock(tree: &Tree) -> Vec<Finding> {
    const CALLS: [&str; 3] = ["Instant::now", "SystemTime::now", "thread::sleep"];
    const RUNTIME: &str = "tokio::time::Instant::now";
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.path != CLOCK && !file.is_in(&OUTSIDE) && !file.path.starts_with(SHIM)) {
        for named in named(&file.lines).iter().filter(|named| !named.is_test && named.path != RUNTIME) {
            if let Some(call) = CALLS.into_iter().find(|call| named.path.ends_with(call)) {
                findings.push(Finding::new(
                    &file.path,
                    named.line,
                    format!("`{call}` belongs to {CLOCK}: take a `Clock`"),
                ));
            }
        }
    }
    findings
}

/// Names from outside the project reach a terminal or a log only through the function that escapes them.
pub(super) fn printable(tree: &Tree) -> Vec<Finding> {
    const PRINTS: [&str; 2] = ["crates/cli/src/", "crates/fuse/src/"];
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.is_in(&PRINTS)) {
        for (number, _) in file.product_lines().filter(|(_, line)| line.code.contains(".display()")) {
            let message = "a path may hold anything: print it with `.printable()` of `slackwater_fuse::Printable`";
            findings.push(Finding::new(&file.path, number, message));
        }
    }
    findings
}

/// `unsafe` stays in two crates and in files that wrap system calls; each such file allows it and says why.
pub(super) fn unsafe_code(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let Some(line) = file.lines.iter().position(|line| has_word(&line.code, "unsafe")) else { continue };
        let code: String = file.lines.iter().flat_map(|line| line.code.split_whitespace()).collect();
        let allows = code
            .split_once("allow(unsafe_code")
            .is_some_and(|(_, rest)| rest.split(']').next().is_some_and(|arguments| arguments.contains("reason")));
        if !file.is_in(&["crates/sync/", "crates/arena/"]) && !file.path.ends_with("/sys.rs") {
            let message = "`unsafe` belongs to crates/sync, crates/arena and files named sys.rs";
            findings.push(Finding::new(&file.path, line + 1, message));
        } else if !allows {
            let message = "a file with `unsafe` carries `allow(unsafe_code, reason = \"...\")`";
            findings.push(Finding::new(&file.path, line + 1, message));
        }
    }
    findings
}

/// Fences come in pairs, and each pair is a type of `crates/sync` with its model check.
pub(super) fn fences(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !file.path.starts_with("crates/sync/")) {
        for (number, line) in (1..).zip(&file.lines) {
            let mut calls = line.code.match_indices("fence(").map(|(at, _)| &line.code[..at]);
            if calls.any(|before| !before.ends_with(is_identifier) || before.ends_with("compiler_")) {
                findings.push(Finding::new(&file.path, number, "a fence belongs to a barrier type of crates/sync"));
            }
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
        assert_eq!(places(scheduler, &files), expected);
    }

    #[test]
    fn only_the_system_clock_reads_the_clock() {
        let text =
            "use std::time::Instant;\nlet t = Instant::now();\nshim::thread::sleep(d);\ntokio::time::Instant::now();\n";
        let files = [(CLOCK, text), ("crates/engine/src/clock.rs", text), ("crates/engine/tests/a.rs", text)];
        assert_eq!(places(clock, &files), ["crates/engine/src/clock.rs:2", "crates/engine/src/clock.rs:3"]);
    }

    #[test]
    fn paths_are_printed_by_one_way() {
        let text = "say!(\"{}\", path.display());\nsay!(\"{}\", path.printable());\n#[cfg(test)]\nmod tests {\n    p.display();\n}\n";
        let files = [("crates/cli/src/a.rs", text), ("crates/fuse/src/b.rs", text), ("crates/engine/src/c.rs", text)];
        assert_eq!(places(printable, &files), ["crates/cli/src/a.rs:1", "crates/fuse/src/b.rs:1"]);
    }

    #[test]
    fn unsafe_has_its_places_and_a_reason() {
        let reasoned = "#![allow(\n    unsafe_code,\n    reason = \"x\"\n)]\nunsafe { y }\n";
        let files = [
            ("crates/sync/src/cell.rs", reasoned),
            ("crates/arena/src/map.rs", "#![allow(unsafe_code)]\nunsafe { y }\n"),
            ("crates/backends/src/sys.rs", reasoned),
            ("crates/engine/src/inode.rs", reasoned),
            ("crates/engine/src/lib.rs", "#![forbid(unsafe_code)]\n// unsafe\n"),
        ];
        assert_eq!(places(unsafe_code, &files), ["crates/arena/src/map.rs:2", "crates/engine/src/inode.rs:5"]);
    }

    #[test]
    fn fences_stay_in_the_sync_crate() {
        let text = "fence(SeqCst);\natomic::fence(SeqCst);\nwrite_fence(x);\ncompiler_fence(x);\n";
        let files = [("crates/sync/src/a.rs", text), ("crates/engine/src/a.rs", text)];
        let expected = ["crates/engine/src/a.rs:1", "crates/engine/src/a.rs:2", "crates/engine/src/a.rs:4"];
        assert_eq!(places(fences, &files), expected);
    }
}
