//! The programs that tests run and that packages are made with: installed from Debian's packages where that is possible.
//!
//! Root on a machine with apt installs them. Elsewhere the tests that need a missing one are skipped and listed.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use crate::suites::{is_installed, is_root};

/// A program and the package that has it.
type Program = (&'static str, &'static str);

/// The programs that tests of the gate run.
pub(crate) const FOR_TESTS: &[Program] = &[
    ("setfacl", "acl"),
    ("setfattr", "attr"),
    ("bindfs", "bindfs"),
    ("busybox", "busybox-static"),
    ("curl", "curl"),
    ("fio", "fio"),
    ("fuser", "psmisc"),
    ("fusermount3", "fuse3"),
    ("git", "git"),
    ("openssl", "openssl"),
    ("pip3", "python3-pip"),
    ("python3", "python3"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("strace", "strace"),
    ("mkfs.xfs", "xfsprogs"),
];

/// The large programs, which only tests marked `long` run.
pub(crate) const FOR_LONG_TESTS: &[Program] = &[
    ("chromium", "chromium"),
    ("crun", "crun"),
    ("pg_ctlcluster", "postgresql"),
    // 40 MB with crun and busybox. The same test runs with Docker where it is installed; its package docker.io has 250 MB.
    ("podman", "podman"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("stress-ng", "stress-ng"),
    ("linux.uml", "user-mode-linux"),
];

/// The programs that packages are made and tried with.
pub(crate) const FOR_PACKAGES: &[Program] =
    &[("mmdebstrap", "mmdebstrap"), ("musl-gcc", "musl-tools"), ("rpmbuild", "rpm")];

/// The package manager that every Debian has.
const ESSENTIAL: &[Program] =
    &[("setpriv", "util-linux"), ("tar", "tar"), ("timeout", "coreutils"), ("umount", "mount")];

/// The package that has a program.
pub(crate) fn package_of(program: &str) -> Option<&'static str> {
    let mut listed = FOR_TESTS.iter().chain(FOR_LONG_TESTS).chain(ESSENTIAL);
    listed.find(|(name, _)| *name == program).map(|(_, package)| *package)
}

/// Installs those of `programs` that are missing, or says why it cannot.
pub(crate) fn install(programs: &[Program]) {
    let mut missing: Vec<_> =
        programs.iter().filter(|(program, _)| !is_installed(program)).map(|(_, package)| *package).collect();
    missing.dedup();
    if missing.is_empty() {
        return;
    }
    let names = missing.join(" ");
    if !is_root() || !is_installed("apt-get") {
        println!("not installed: {names}; tests that need them are skipped (root on Debian has them installed)");
        return;
    }
    println!("installing {names}");
    let _no_services = NoServices::begin();
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

/// Keeps packages such as `prometheus` from starting their services while it exists, by a policy that Debian's scripts
/// ask. A policy that the machine already has stays.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    const POLICY: &str = "/usr/sbin/policy-rc.d";

    fn begin() -> Self {
        let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(Self::POLICY);
        let is_ours = made.and_then(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n")).is_ok();
        if !is_ours && !Path::new(Self::POLICY).exists() {
            println!("{} cannot be written: packages may start services", Self::POLICY);
        }
        Self { is_ours }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            // A policy that is left over starts no service; the administrator sees it.
            let _ = fs::remove_file(Self::POLICY);
        }
    }
}
