//! The processes of `isolation`, as it starts them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A directory that is removed at the end of the test.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-client-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn start(role: &str, file: &Path, threads: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackwater-lab"));
    command.args(["client", role]).arg(file).args(["--bytes", "1048576", "--threads", threads]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program can be started")
}

/// Lets it work until it reports a `wanted` line, ends it, and returns all its lines.
fn work(mut child: Child, wanted: impl Fn(&serde_json::Value) -> bool) -> Vec<serde_json::Value> {
    let mut input = child.stdin.take().expect("piped");
    input.write_all(b"start\n").expect("it reads");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut reported = Vec::new();
    while !reported.last().is_some_and(&wanted) {
        let line = lines.next().expect("it works until its input ends").expect("text");
        reported.push(serde_json::from_str(&line).expect("JSON"));
    }
    drop(input);
    lines.for_each(drop);
    assert!(child.wait().expect("it ends").success());
    reported
}

#[test]
fn a_victim_reports_each_write() {
    let home = TempDir::new("victim");
    for role in ["sync", "write"] {
        let file = home.0.join(role);
        let reported = work(start(role, &file, "1"), |line| line["whole_ms"].is_number());
        assert!(reported.iter().all(|line| line["whole_ms"].as_f64() >= line["write_ms"].as_f64()), "{reported:?}");
        assert_eq!(fs::metadata(file).expect("written").len() % (64 << 10), 0);
    }
}

#[test]
fn a_hog_reports_its_progress() {
    let home = TempDir::new("hog");
    for role in ["overwrite", "extend", "truncate"] {
        let reported = work(start(role, &home.0.join(role), "1"), |line| line["bytes"].as_u64() > Some(0));
        let bytes: Vec<u64> = reported.iter().filter_map(|line| line["bytes"].as_u64()).collect();
        assert!(bytes.is_sorted() && bytes.len() == reported.len(), "{reported:?}");
    }
    work(start("overwrite", &home.0.join("several"), "3"), |line| line["bytes"].as_u64() > Some(0));
    for number in 0..3 {
        assert!(home.0.join(format!("several-{number}")).exists());
    }
}

#[test]
fn a_process_that_is_never_started_writes_nothing() {
    let home = TempDir::new("idle");
    let mut child = start("overwrite", &home.0.join("file"), "1");
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    assert!(!home.0.join("file").exists());
}
