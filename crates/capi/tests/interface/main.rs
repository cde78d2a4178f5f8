//! The header declares what the library exports, and the examples run: in C, and in Python.
//!
//! They need `cc` and `python3`; a test without its program is skipped.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod header;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../../../mount/tests/needs/mod.rs"]
mod needs;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::header::{declared, exported};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Folder for the files of one test, and the arena beside it.
struct Scratch {
    folder: PathBuf,
    arena: PathBuf,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("slackwater-capi-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(folder.join("data")).unwrap();
        Self { folder, arena: Path::new("/dev/shm").join(name + ".arena") }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn notes(&self) -> String {
        fs::read_to_string(self.data().join("notes.txt")).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        let _ = fs::remove_file(&self.arena);
    }
}

/// The folder with the shared library, which cargo has built for this test.
fn library_folder() -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    folder.pop();
    assert!(folder.join("libslackwater_c.so").is_file(), "no library in {}", folder.display());
    folder
}

#[track_caller]
fn stdout_of(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_header_declares_what_is_exported() {
    let header = fs::read_to_string(Path::new(HERE).join("include/slackwater.h")).unwrap();
    let source = fs::read_to_string(Path::new(HERE).join("src/sys.rs")).unwrap();
    assert_eq!(declared(&header), exported(&source));
    assert_eq!(declared(&header).len(), 13);
    let constants =
        [("CREATE", "calls.rs"), ("EXCLUSIVE", "calls.rs"), ("TRUNCATE", "calls.rs"), ("VERSION", "sys.rs")];
    for (name, file) in constants {
        let rust = fs::read_to_string(Path::new(HERE).join("src").join(file)).unwrap();
        let value = rust.split_once(&format!("const {name}: u32 = ")).unwrap().1.split_once(';').unwrap().0;
        assert!(header.contains(&format!("#define SLACKWATER_{name} {value}u")), "{name} is {value}");
    }
}

#[test]
fn the_example_in_c_writes_and_finds_what_a_killed_process_left() {
    if needs::are_missing(&["cc"]) {
        return;
    }
    let scratch = Scratch::new("c");
    let (library, program) = (library_folder(), scratch.folder.join("notes"));
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]);
    cc.arg("-I").arg(Path::new(HERE).join("include")).arg(Path::new(HERE).join("examples/notes.c"));
    cc.arg("-L").arg(&library).args(["-lslackwater_c", "-o"]).arg(&program);
    stdout_of(&cc.output().unwrap());

    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg(scratch.data()).args(words).env("LD_LIBRARY_PATH", &library).output().unwrap()
    };
    assert_eq!(stdout_of(&run(&["one"])), "4 bytes:\none\n");
    assert_eq!(scratch.notes(), "one\n");

    let arena = scratch.arena.to_str().unwrap();
    assert_eq!(run(&["two", arena, "killed"]).status.signal(), Some(9));
    assert_eq!(scratch.notes(), "one\n", "the line is only in the arena");
    assert_eq!(stdout_of(&run(&["three", arena])), "14 bytes:\none\ntwo\nthree\n");
    assert_eq!(scratch.notes(), "one\ntwo\nthree\n");
    assert!(!scratch.arena.exists(), "an engine without data removes its arena");
}

#[test]
fn the_example_in_python_gets_errors_as_exceptions() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let scratch = Scratch::new("python");
    let mut python = Command::new("python3");
    python.arg(Path::new(HERE).join("examples/notes.py")).arg(scratch.data()).arg("one");
    python.env("LIBRARY", library_folder().join("libslackwater_c.so"));
    let said = stdout_of(&python.output().unwrap());
    assert!(said.starts_with("as expected: ") && said.ends_with("4 bytes:\none\n"), "{said}");
    assert_eq!(scratch.notes(), "one\n");
}
