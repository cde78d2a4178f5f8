//! The RPM package, made by `rpmbuild` from a spec that only lists the files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Release;
use super::command::output;
use super::tree::{Tree, read};
use crate::folders::{self, cannot};

/// The package in `folder`.
pub(super) fn make(release: &Release, tree: &Tree, folder: &Path) -> Result<PathBuf, String> {
    let mut tree = tree.clone();
    tree.add_for_zsh(release, "usr/share/zsh/site-functions")?;
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        tree.add(&format!("usr/share/licenses/slackwater/{name}"), read(Path::new(name))?, 0o644);
    }
    tree.add("usr/share/doc/slackwater/CHANGELOG.md", read(Path::new("CHANGELOG.md"))?, 0o644);
    let (source, top) = (release.work.join("rpm-files"), release.work.join("rpm"));
    tree.write(&source)?;
    folders::remove(&top)?;
    let define = |name: &str, value: &str| [String::from("--define"), format!("{name} {value}")];
    let architecture = release.target.rpm;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet", "--target", &format!("{architecture}-linux")]);
    for (name, value) in [
        ("_topdir", &*top.display().to_string()),
        ("folder", &source.display().to_string()),
        ("version", release.version),
        // The same bytes on every machine and at every time.
        ("_buildhost", "localhost"),
        ("use_source_date_epoch_as_buildtime", "1"),
        ("clamp_mtime_to_source_date_epoch", "1"),
        ("source_date_epoch_from_changelog", "0"),
        ("_binary_payload", "w3.xzdio"),
    ] {
        build.args(define(name, value));
    }
    build.arg("dist/rpm/slackwater.spec");
    output(release.dated(&mut build))?;
    let name = format!("slackwater-{}-1.{architecture}.rpm", release.version);
    let (built, path) = (top.join("RPMS").join(architecture).join(&name), folder.join(&name));
    fs::copy(&built, &path).map_err(|error| cannot(&built, &error))?;
    Ok(path)
}
