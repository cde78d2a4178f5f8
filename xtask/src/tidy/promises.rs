//! Each documented promise has a test.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::Tree;

const SEMANTICS: &str = "docs/SEMANTICS.md";

/// Every promise of the semantics has a test named after it, and every such test its promise.
pub(super) fn promises(tree: &Tree) -> Vec<Finding> {
    let mut promised = BTreeMap::new();
    for (number, line) in tree.file(SEMANTICS).iter().flat_map(|file| file.numbered()) {
        if let Some(promise) = promise_of_line(line) {
            promised.entry(promise).or_insert(number);
        }
    }
    let mut untested = promised.clone();
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.path.starts_with("crates/")) {
        for (number, line) in (1..).zip(&file.lines).filter(|(_, line)| line.is_test) {
            let Some(promise) = promise_of_test(&line.code) else { continue };
            untested.remove(&promise);
            if !promised.contains_key(&promise) {
                findings.push(Finding::new(&file.path, number, format!("{SEMANTICS} holds no P{promise}")));
            }
        }
    }
    for (promise, number) in untested {
        findings.push(Finding::new(SEMANTICS, number, format!("no test is named `p{promise:02}_...`")));
    }
    findings
}

/// The number in a heading `## P7 ...` or a bold entry `**P7. ...**`, which may open a list item.
fn promise_of_line(line: &str) -> Option<u32> {
    let line = line.trim_start();
    let title = match line.trim_start_matches('#') {
        heading if heading.len() < line.len() => heading.trim_start(),
        entry => entry.trim_start_matches("- ").trim_start_matches("* ").strip_prefix("**")?,
    };
    let digits = title.strip_prefix('P')?;
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The number in `fn p07_...`.
fn promise_of_test(code: &str) -> Option<u32> {
    let (_, name) = code.split_once("fn p")?;
    let (digits, _) = name.split_once('_')?;
    if digits.len() >= 2 { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn promises_and_tests_match() {
        let semantics =
            "# Semantics\n\n## P1. Bytes stay\n\nAs P4 says.\n\n- **P2** Errors are told once.\n\n**P3.** Order.\n";
        let test = "#[test]\nfn p01_bytes_stay() {}\nfn p02_an_error_is_told_once() {}\nfn p09_nobody_promised() {}\n";
        let files = [
            (SEMANTICS, semantics),
            ("crates/engine/tests/semantics.rs", test),
            ("crates/a/src/b.rs", "fn p03_x() {}\n"),
        ];
        assert_eq!(places(promises, &files), ["crates/engine/tests/semantics.rs:4", "docs/SEMANTICS.md:9"]);
    }

    #[test]
    fn prose_is_no_promise() {
        for line in ["Page counts", "P", "As in P1", "P1 says", "**Plain**", "[P1](#p1)"] {
            assert_eq!(promise_of_line(line), None, "{line}");
        }
        for line in ["### P12: x", "**P12.** x", "* **P12** x", "- **P12 x**"] {
            assert_eq!(promise_of_line(line), Some(12), "{line}");
        }
    }
}
