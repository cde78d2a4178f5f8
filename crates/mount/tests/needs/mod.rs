//! Programs that tests need and a machine may not have. `cargo xtask test` installs them if possible, and otherwise
//! counts the skipped tests.

use std::fs::{self, OpenOptions};
use std::io::Write;

/// Environment variable with the path of a file that gets a line for each skipped test.
const SKIPPED_VARIABLE: &str = "SLACKWATER_SKIPPED_TESTS";

/// Whether the calling test must be skipped because one of `programs` is not installed; logs it.
pub(crate) fn are_missing(programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().copied().filter(|program| !is_installed(program)).collect();
    if !missing.is_empty() {
        skip(&format!("{} not installed", missing.join(", ")));
    }
    !missing.is_empty()
}

/// Logs that the calling test is skipped, and why.
pub(crate) fn skip(why: &str) {
    let line = format!("skipped: {}: {why}\n", std::thread::current().name().unwrap_or("a test"));
    print!("{line}");
    if let Some(path) = std::env::var_os(SKIPPED_VARIABLE) {
        // One write, so that lines of several test programs do not mix.
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list of skipped tests");
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.any(|folder| fs::metadata(folder.join(program)).is_ok_and(|file| file.is_file()))
}
