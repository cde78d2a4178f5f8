//! Programs that a test runs and a machine may lack. `cargo xtask test` installs them where it can, and counts the tests
//! that are skipped where it cannot.

use std::fs::{self, OpenOptions};
use std::io::Write;

/// A file that is given a line for each test that is skipped.
const SKIPPED_VARIABLE: &str = "SLACKWATER_SKIPPED_TESTS";

/// Whether the test that calls this has to be skipped, since one of `programs` is not installed; it says so.
pub(crate) fn are_missing(programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().copied().filter(|program| !is_installed(program)).collect();
    if !missing.is_empty() {
        skip(&format!("{} not installed", missing.join(", ")));
    }
    !missing.is_empty()
}

/// Says that the test that calls this is skipped, and why.
pub(crate) fn skip(why: &str) {
    let line = format!("skipped: {}: {why}\n", std::thread::current().name().unwrap_or("a test"));
    print!("{line}");
    if let Some(path) = std::env::var_os(SKIPPED_VARIABLE) {
        // One write, so that lines of several test programs stay whole.
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list of skipped tests");
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.any(|folder| fs::metadata(folder.join(program)).is_ok_and(|file| file.is_file()))
}
