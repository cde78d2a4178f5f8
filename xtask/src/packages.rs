//! The programs that tests run and that packages are made with: installed from Debian's packages where that is possible.
//!
//! Root on a machine with apt installs them. Elsewhere the tests that need a missing one are skipped and listed.

use std::process::Command;

use crate::suites::{is_installed, is_root};

/// A program and the package that has it.
const PROGRAMS: [(&str, &str); 15] = [
    ("setfacl", "acl"),
    ("setfattr", "attr"),
    ("bindfs", "bindfs"),
    ("fio", "fio"),
    ("fusermount3", "fuse3"),
    ("git", "git"),
    ("mmdebstrap", "mmdebstrap"),
    ("musl-gcc", "musl-tools"),
    ("python3", "python3"),
    ("rpmbuild", "rpm"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("strace", "strace"),
    ("stress-ng", "stress-ng"),
    ("mkfs.xfs", "xfsprogs"),
];

/// The package manager that every Debian has.
const ESSENTIAL: [(&str, &str); 4] =
    [("setpriv", "util-linux"), ("tar", "tar"), ("timeout", "coreutils"), ("umount", "mount")];

/// The package that has a program.
pub(crate) fn package_of(program: &str) -> Option<&'static str> {
    let mut listed = PROGRAMS.iter().chain(&ESSENTIAL);
    listed.find(|(name, _)| *name == program).map(|(_, package)| *package)
}

/// Installs the missing programs, or says why it cannot.
pub(crate) fn install() {
    let missing: Vec<_> =
        PROGRAMS.iter().filter(|(program, _)| !is_installed(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return;
    }
    let names = missing.join(" ");
    if !is_root() || !is_installed("apt-get") {
        println!("not installed: {names}; tests that need them are skipped (root on Debian has them installed)");
        return;
    }
    println!("installing {names}");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        command.status().is_ok_and(|status| status.success())
    };
    let install = [&["install", "-y", "-qq", "--no-install-recommends"][..], &missing].concat();
    if !(apt(&["update", "-qq"]) && apt(&install)) {
        println!("apt-get failed: tests that need a missing program are skipped");
    }
}
