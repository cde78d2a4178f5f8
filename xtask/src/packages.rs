//! The programs that tests run on a mounted directory: installed from Debian's packages where that is possible.
//!
//! Root on a machine with apt installs them. Elsewhere the tests that need a missing one are skipped and listed.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::suites::{is_installed, is_root};

/// A program and the package that has it.
const PROGRAMS: [(&str, &str); 13] = [
    ("setfacl", "acl"),
    ("setfattr", "attr"),
    ("bindfs", "bindfs"),
    ("fio", "fio"),
    ("fusermount3", "fuse3"),
    ("git", "git"),
    ("python3", "python3"),
    ("psql", "postgresql"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("strace", "strace"),
    ("stress-ng", "stress-ng"),
    ("mkfs.xfs", "xfsprogs"),
];

/// The package manager that every Debian has.
const ESSENTIAL: [(&str, &str); 4] =
    [("setpriv", "util-linux"), ("tar", "tar"), ("timeout", "coreutils"), ("umount", "mount")];

/// Settings that the package reads when it is installed. Without them it makes a database, and starts a server of its own.
const POSTGRESQL_SETTINGS: &str = "/etc/postgresql-common";

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
    if missing.contains(&"postgresql") {
        let _ = fs::create_dir_all(POSTGRESQL_SETTINGS).and_then(|()| {
            fs::write(Path::new(POSTGRESQL_SETTINGS).join("createcluster.conf"), "create_main_cluster = false\n")
        });
    }
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
