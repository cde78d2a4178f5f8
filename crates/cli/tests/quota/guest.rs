//! A kernel with quotas, where the running one has none: user-mode Linux, from Debian's package of that name.
//!
//! It is a process. Its root is the file system of this machine, with empty directories for temporary files, so it runs
//! the same test program. A test in it may do what the machine's kernel refuses.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};

use crate::rig::{self, Scratch};

const INSIDE: &str = "SLACKWATER_TEST_GUEST";
const PROGRAM: &str = "linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";
/// Modules that the tests need, in the order in which they depend on each other.
const NEEDED: [&str; 4] = ["quota_tree.ko", "quota_v2.ko", "loop.ko", "fuse.ko"];
/// An empty directory of every Debian.
const TEMPORARY: &str = "/mnt";

pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Loads the modules of a guest, if this is one.
pub(crate) fn prepare() {
    for name in NEEDED.into_iter().filter(|_| is_inside()) {
        let path = find(Path::new(MODULES), name).unwrap_or_else(|| panic!("{name} is not below {MODULES}"));
        let module = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        // It is loaded already if this is not the first call.
        let _ = rustix::system::finit_module(&module, c"", 0);
    }
}

/// Runs the test with this name in a guest; or skips it, if there is no such program.
#[track_caller]
pub(crate) fn run(test: &str) {
    if Command::new(PROGRAM).arg("--version").output().is_err() {
        eprintln!("skipped: neither this kernel nor {PROGRAM} (package user-mode-linux) has project quotas");
        return;
    }
    let scratch = Scratch::new();
    let (init, report) = (scratch.path.join("init"), scratch.path.join("report"));
    let program = std::env::current_exe().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let script = format!(
        "#!/bin/sh
        export PATH='{path}' TMPDIR={TEMPORARY} {INSIDE}=1
        mount -t proc proc /proc
        mount -t sysfs sysfs /sys
        mount -t tmpfs tmpfs /run
        mount -t tmpfs tmpfs {TEMPORARY}
        mkdir -p /dev/shm
        mount -t tmpfs tmpfs /dev/shm
        '{}' --exact '{test}' --nocapture --test-threads 1 > '{}' 2>&1
        sync
        echo o > /proc/sysrq-trigger
        sleep 60\n",
        program.display(),
        report.display(),
    );
    fs::write(&init, script).unwrap();
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
    let mut guest = Command::new("unshare");
    guest
        .args(["--pid", "--fork", "--kill-child", PROGRAM, "mem=1G", "rootfstype=hostfs", "rootflags=/", "rw"])
        .arg(format!("init={}", init.display()))
        .args(["con=null", "con0=null,fd:1", "quiet"]);
    let console = rig::run(guest).text;
    let report = fs::read_to_string(&report).unwrap_or_default();
    assert!(report.contains("1 passed"), "{console}\n{report}");
    eprintln!("in {PROGRAM}: {report}");
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    fs::read_dir(directory).ok()?.flatten().find_map(|entry| match entry.path() {
        path if path.is_dir() => find(&path, name),
        path => path.ends_with(name).then_some(path),
    })
}
