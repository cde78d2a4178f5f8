//! The programs that tests run and that packages are made with: installed from Debian's packages where that is possible.
//!
//! Root on a machine with apt installs them. Elsewhere the tests that need a missing one are skipped and listed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
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
/// ask. A policy that the machine already has stays. At the end, services that the packages enabled at boot are disabled.
struct NoServices {
    is_ours: bool,
    enabled_before: BTreeSet<PathBuf>,
}

impl NoServices {
    const POLICY: &str = "/usr/sbin/policy-rc.d";
    const UNITS: &str = "/etc/systemd/system";

    fn begin() -> Self {
        let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(Self::POLICY);
        let is_ours = made.and_then(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n")).is_ok();
        if !is_ours && !Path::new(Self::POLICY).exists() {
            println!("{} cannot be written: packages may start services", Self::POLICY);
        }
        Self { is_ours, enabled_before: enabled(Path::new(Self::UNITS)) }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            // A policy that is left over starts no service; the administrator sees it.
            let _ = fs::remove_file(Self::POLICY);
        }
        for link in enabled(Path::new(Self::UNITS)).difference(&self.enabled_before) {
            let unit = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match fs::remove_file(link) {
                Ok(()) => println!("{unit} is not started at boot (systemctl enable {unit} would change that)"),
                Err(error) => println!("{unit} is started at boot: {}: {error}", link.display()),
            }
        }
    }
}

/// The links by which units are enabled: those in the folders of the units that want or require them.
fn enabled(units: &Path) -> BTreeSet<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_of_links = |folder: &PathBuf| folder.extension().is_some_and(|end| end == "wants" || end == "requires");
    let links = entries(units).filter(is_of_links).flat_map(|folder| entries(&folder).collect::<Vec<_>>());
    links.filter(|path| path.is_symlink()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn enabled_units_are_links_in_folders_of_those_that_want_them() {
        let units = std::env::temp_dir().join(format!("slackwater-units-{}", std::process::id()));
        let wants = units.join("multi-user.target.wants");
        fs::create_dir_all(&wants).unwrap();
        symlink("/lib/systemd/system/x.service", wants.join("x.service")).unwrap();
        fs::write(wants.join("README"), "").unwrap();
        symlink("/dev/null", units.join("masked.service")).unwrap();
        assert_eq!(enabled(&units).into_iter().collect::<Vec<_>>(), [wants.join("x.service")]);
        assert!(enabled(&units.join("missing")).is_empty());
        fs::remove_dir_all(&units).unwrap();
    }
}
