//! Release artefacts: `cargo xtask dist DIR [--target TRIPLE] [--check]`.
//!
//! ```text
//! release    the commit, with its time and version
//! target     the platforms, and their names and programs elsewhere
//! build      the static binary
//! tree       the files of an installation; the packages and the image have them from here
//! deb, rpm   packages of Debian, and of Fedora and its relatives
//! image      the container image, as a directory in OCI layout
//! parts      the crates in the binary: the list of parts (SBOM), and their licences
//! trial      a fresh Debian on which the package is installed, used and removed
//! check      whether they are reproducible, accepted by the tools of others, and usable
//! command    running the system's programs
//! ```
//!
//! The artefacts are reproducible: the same commit and the same versions of the compiler and of the system's programs give
//! the same bytes, in any directory. All times in them are that of the last commit.

mod build;
mod check;
mod command;
mod deb;
mod image;
mod parts;
mod release;
mod rpm;
mod target;
mod tree;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use crate::folders::{cannot, files};
use command::sha256;
use parts::Parts;
use release::Release;
use target::{TARGETS, Target};
use tree::Tree;

use crate::{packages, suites};

pub(crate) use check::step;

/// The text of `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "cargo xtask dist DIR [OPTIONS]   static binary, packages and image in DIR\n\
         \x20   --check         and checks them; without DIR, smaller ones are checked\n\
         \x20   --target TRIPLE one of:\n",
    );
    for target in &TARGETS {
        text += &format!("                    {}\n", target.triple);
    }
    text
}

/// The static binary without object volumes, which builds in a quarter of the time; built if it is not.
pub(crate) fn command() -> Result<PathBuf, String> {
    build::binary(&TARGETS[0], false)
}

/// The options of the command line.
struct Request {
    folder: PathBuf,
    target: &'static Target,
    check: bool,
}

/// Makes the artefacts that `arguments` ask for.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let Request { folder, target, check } = parse(arguments)?;
    packages::install(packages::FOR_PACKAGES);
    let release = Release::new(target, true)?;
    let artefacts = make(&release, &folder)?;
    if check { check::check(&release, &artefacts, &folder) } else { Ok(()) }
}

fn parse(arguments: &[&str]) -> Result<Request, String> {
    let usage = || help();
    let (mut folder, mut target, mut check) = (None, &TARGETS[0], false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--check" => check = true,
            "--target" => {
                let triple = arguments.next().ok_or_else(usage)?;
                target = TARGETS.iter().find(|known| known.triple == *triple).ok_or_else(usage)?;
            }
            name if folder.is_none() && !name.starts_with('-') => folder = Some(PathBuf::from(name)),
            _ => return Err(usage()),
        }
    }
    Ok(Request { folder: folder.ok_or_else(usage)?, target, check })
}

/// All artefacts of a release, in `folder`; returns their paths.
fn make(release: &Release, folder: &Path) -> Result<Artefacts, String> {
    fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))?;
    let built = build::binary(release.target, release.has_objects)?;
    let artefacts = pack(release, &built, folder)?;
    list(folder)?;
    Ok(artefacts)
}

struct Artefacts {
    /// The binary with its symbols, in the target directory.
    built: PathBuf,
    binary: PathBuf,
    deb: Option<PathBuf>,
    rpm: Option<PathBuf>,
    image: PathBuf,
}

/// Whether a format of packages can be made here.
fn can(program: &str) -> bool {
    let is_here = suites::is_installed(program);
    if !is_here {
        println!("skipped: a package, because {program} is not installed");
    }
    is_here
}

/// Everything after the build.
fn pack(release: &Release, built: &Path, folder: &Path) -> Result<Artefacts, String> {
    let Release { target, version, .. } = release;
    let binary = folder.join(format!("slackwater-{version}-{}", target.triple));
    build::strip(target, built, &binary)?;
    let parts = Parts::new(release)?;
    let tree = Tree::new(release, &binary, &parts)?;
    let deb = if can("dpkg-deb") { Some(deb::make(release, &tree, folder)?) } else { None };
    let rpm = if can("rpmbuild") { Some(rpm::make(release, &tree, folder)?) } else { None };
    let image = image::make(release, &tree, folder)?;
    let list = folder.join(format!("slackwater-{version}-{}.cdx.json", target.triple));
    let text = parts.cyclonedx(version, &release.date("+%Y-%m-%dT%H:%M:%SZ")?);
    fs::write(&list, text).map_err(|error| cannot(&list, &error))?;
    let sums = folder.join("SHA256SUMS");
    fs::write(&sums, checksums(folder, &sums)?).map_err(|error| cannot(&sums, &error))?;
    Ok(Artefacts { built: built.to_owned(), binary, deb, rpm, image })
}

/// The checksums of all files of `folder` but `left_out`, as `sha256sum --check` reads them there.
fn checksums(folder: &Path, left_out: &Path) -> Result<String, String> {
    let mut lines = String::new();
    for path in files(folder)?.iter().filter(|path| *path != left_out) {
        let name = path.strip_prefix(folder).unwrap_or(path);
        lines += &format!("{}  {}\n", sha256(path)?, name.display());
    }
    Ok(lines)
}

fn list(folder: &Path) -> Result<(), String> {
    println!("\n{:>12}  in {}", "bytes", folder.display());
    for path in files(folder)? {
        let bytes = path.metadata().map_err(|error| cannot(&path, &error))?.len();
        println!("{bytes:>12}  {}", path.strip_prefix(folder).unwrap_or(&path).display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_in_any_order() {
        let arm = "aarch64-unknown-linux-musl";
        for arguments in [["out", "--check", "--target", arm], ["--target", arm, "--check", "out"]] {
            let request = parse(&arguments).unwrap();
            assert_eq!((request.folder.as_path(), request.target.triple), (Path::new("out"), arm));
            assert!(request.check);
        }
        let request = parse(&["out"]).unwrap();
        assert_eq!((request.target.triple, request.check), ("x86_64-unknown-linux-musl", false));
    }

    #[test]
    fn other_arguments_are_refused() {
        for arguments in [&["--target"][..], &["out", "--target", "pdp11"], &["--fast"], &["a", "b"], &["--check"]] {
            assert!(parse(arguments).map(drop).unwrap_err().contains("cargo xtask dist DIR"));
        }
    }
}
