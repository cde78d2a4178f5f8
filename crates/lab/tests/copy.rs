//! The command `copy`, as a user calls it.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

/// A directory that is removed at the end of the test.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-copy-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(dir: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackwater-lab"));
    command.arg("copy").args(arguments).args(["--cache", "16MiB"]).current_dir(&dir.0);
    command.output().expect("the program can be started")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Files of unusual sizes, links, unusual modes and old times.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("empty/below")).expect("made");
    fs::write(root.join("nothing"), "").expect("made");
    fs::write(root.join("short"), "slack water").expect("made");
    fs::write(root.join("page"), vec![1; 4096]).expect("made");
    let large: Vec<u8> = (0..3_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(root.join("empty/large"), large).expect("made");
    let sparse = File::create(root.join("sparse")).expect("made");
    sparse.write_all_at(b"far out", 5 << 20).expect("written");
    sparse.set_len((6 << 20) + 123).expect("extended");
    for number in 0..50 {
        fs::write(root.join(format!("empty/{number:02}")), vec![number; 100 * usize::from(number)]).expect("made");
    }
    symlink("short", root.join("link")).expect("made");
    symlink("/nowhere/at all", root.join("empty/dangling")).expect("made");
    fs::set_permissions(root.join("short"), Permissions::from_mode(0o4711)).expect("permitted");
    fs::set_permissions(root.join("page"), Permissions::from_mode(0o444)).expect("permitted");
    fs::set_permissions(root.join("empty/below"), Permissions::from_mode(0o555)).expect("permitted");
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for name in ["short", "empty/large", "empty"] {
        File::open(root.join(name)).and_then(|file| file.set_modified(old)).expect("times can be set");
    }
}

#[test]
fn a_tree_is_copied_byte_for_byte() {
    let dir = TempDir::new("tree");
    make_tree(&dir.path("from"));
    let output = copy(&dir, &["from", "to", "--json", "result.json"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("every type, mode, time, link and byte is the same"), "{}", text(&output));

    let (from, to) = (dir.path("from"), dir.path("to"));
    assert_eq!(fs::read(from.join("empty/large")).expect("there"), fs::read(to.join("empty/large")).expect("there"));
    assert_eq!(fs::read(from.join("sparse")).expect("there"), fs::read(to.join("sparse")).expect("there"));
    assert_eq!(fs::read_link(to.join("link")).expect("there"), Path::new("short"));
    assert_eq!(fs::metadata(to.join("short")).expect("there").mode() & 0o7777, 0o4711);
    assert_eq!(fs::metadata(to.join("empty")).expect("there").mtime_nsec(), 123_456_789);
    let json = fs::read_to_string(dir.path("result.json")).expect("written");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["figures"]["differences"], 0);
    assert_eq!(json["figures"]["files"], 55);
}

#[test]
fn a_temporary_copy_leaves_nothing_behind_unless_it_is_kept() {
    let dir = TempDir::new("temporary");
    make_tree(&dir.path("from"));
    let output = copy(&dir, &["from"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(!dir.path("target").exists(), "target/lab was made for it and is removed");
    let output = copy(&dir, &["from", "--keep", "--quick"]);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(fs::read_dir(dir.path("target/lab")).expect("kept").count(), 1);
}

#[test]
fn bad_input_is_refused_with_the_reason() {
    let dir = TempDir::new("bad");
    make_tree(&dir.path("from"));
    for (arguments, words) in [
        (&["nowhere"][..], "there is no SOURCE nowhere"),
        (&["from/short"], "is not a directory"),
        (&["from", "from"], "is inside SOURCE"),
        (&["from", "from/empty/new"], "is inside SOURCE"),
        (&["from", "."], "is not empty"),
        (&["from", "to", "--threads", "0"], "0 is not in 1..=256"),
    ] {
        let output = copy(&dir, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output));
        assert!(text(&output).contains(words), "{arguments:?}: {}", text(&output));
    }
    for (cache, words) in [("1KiB", "too small"), ("9999TiB", "cannot create a cache"), ("much", "write for example")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackwater-lab"));
        let output = command.args(["copy", "from", "to", "--cache", cache]).current_dir(&dir.0).output();
        let output = output.expect("the program can be started");
        assert_eq!(output.status.code(), Some(2), "{cache}: {}", text(&output));
        assert!(text(&output).contains(words), "{cache}: {}", text(&output));
    }
    assert!(!dir.path("to").exists() && !dir.path("from/empty/new").exists(), "a refusal creates nothing");
}
