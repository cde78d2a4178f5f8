//! The rules of this project that no standard tool knows, checked by reading the text.
//!
//! [`tree`] reads the files and [`scan`] tells code from comments and tests; every other file here holds a group of
//! rules. A rule is a function from the tree to its findings, has its line in [`RULES`] and its own test
//! on small inline sources. A rule that refuses something names what to do instead.

mod api;
mod engine;
mod links;
mod names;
mod pages;
mod promises;
mod prose;
mod reach;
mod scan;
mod shape;
mod tree;

use std::path::Path;

pub(crate) use api::rewrite as rewrite_api;
use tree::Tree;

/// Where a rule is broken, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [(&str, Rule); 12] = [
    ("file", shape::files),
    ("name", names::names),
    ("printable", reach::printable),
    ("scheduler", reach::scheduler_and_clock),
    ("engine", engine::order),
    ("promise", promises::promises),
    ("api", api::listings),
    ("prose", prose::prose),
    ("link", links::links),
    ("summary", pages::summary),
    ("message", pages::messages),
    ("comparison", pages::comparison),
];

/// Checks the checkout in the current folder and prints every finding.
pub(crate) fn run() -> Result<(), String> {
    let tree = Tree::read(Path::new("."))?;
    let mut count = 0;
    for (name, rule) in RULES {
        for Finding { path, line, message } in rule(&tree) {
            println!("{path}:{line}: {name}: {message}");
            count += 1;
        }
    }
    if count > 0 {
        return Err(format!("{count} findings"));
    }
    println!("{} files, {} rules, no findings", tree.files.len(), RULES.len());
    Ok(())
}

/// The findings in a tree of inline sources, as `path:line`, for the tests of rules.
#[cfg(test)]
fn places(rule: Rule, files: &[(&str, &str)]) -> Vec<String> {
    rule(&Tree::of(files)).into_iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
}
