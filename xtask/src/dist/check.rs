//! Checks of the artefacts.
//!
//! `cargo xtask dist` checks artefacts without object volumes, because a release build with them takes ten minutes on two
//! CPUs. Before a release, `cargo xtask dist DIR --check` checks those that are released.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::command::output;
use super::{Artefacts, Release, TARGETS, build, checksums, make, pack, trial};
use crate::cargo::target_directory;
use crate::folders::{self, cannot};
use crate::packages;
use crate::suites::is_installed;

/// Makes artefacts without object volumes in the target directory, and checks them.
pub(crate) fn step() -> Result<(), String> {
    packages::install(packages::FOR_PACKAGES);
    trial::prepare(); // beside the build
    let folder = target_directory()?.join("dist");
    folders::remove(&folder)?;
    let release = Release::new(&TARGETS[0], false)?;
    let artefacts = make(&release, &folder)?;
    check(&release, &artefacts, &folder)
}

/// The artefacts are the same when they are packed again, they name no directory of this machine, tools of others accept
/// them, and the package installs, works and goes.
pub(super) fn check(release: &Release, artefacts: &Artefacts, folder: &Path) -> Result<(), String> {
    is_reproducible(release, &artefacts.built, folder)?;
    names_no_folder(&artefacts.binary)?;
    let image = format!("oci:{}", artefacts.image.display());
    check_with("skopeo", &[Path::new("inspect"), Path::new(&image)])?;
    if let Some(rpm) = &artefacts.rpm {
        check_with("rpm", &[Path::new("--checksig"), Path::new("--nosignature"), rpm])?;
    }
    match &artefacts.deb {
        Some(deb) => {
            check_with("lintian", &[Path::new("--fail-on=error,warning"), deb])?;
            trial::run(deb, artefacts.rpm.as_deref())
        }
        None => Ok(()),
    }
}

/// Packs once more, in another directory.
fn is_reproducible(release: &Release, built: &Path, folder: &Path) -> Result<(), String> {
    let again = release.work.join("again");
    folders::remove(&again)?;
    fs::create_dir_all(&again).map_err(|error| cannot(&again, &error))?;
    pack(release, built, &again)?;
    let sums = |folder: &Path| checksums(folder, &folder.join("SHA256SUMS"));
    let (first, second) = (sums(folder)?, sums(&again)?);
    if first != second {
        return Err(format!("packed twice, the artefacts differ:\n{first}\n{second}"));
    }
    println!("packed twice: the same bytes");
    folders::remove(&again)
}

/// The binary must not depend on the directory of its build.
fn names_no_folder(binary: &Path) -> Result<(), String> {
    for folder in build::folders()? {
        let mut grep = Command::new("grep");
        let found = grep.args(["--quiet", "--text", "--fixed-strings", "--"]).arg(&folder).arg(binary).status();
        // 1 is the status for no match.
        if found.map_err(|error| format!("grep: {error}"))?.code() != Some(1) {
            return Err(format!("{} contains the path {}", binary.display(), folder.display()));
        }
    }
    println!("the binary names no directory of its build");
    Ok(())
}

/// Runs a checker of another project, if it is installed.
fn check_with(program: &str, arguments: &[&Path]) -> Result<(), String> {
    if !is_installed(program) {
        println!("skipped: {program} is not installed");
        return Ok(());
    }
    let said = output(Command::new(program).args(arguments))?;
    println!("{program}: passed, {} lines", said.lines().count());
    Ok(())
}
