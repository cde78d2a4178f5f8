//! The Debian package, made by `dpkg-deb`, which every Debian has.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Release;
use super::command::output;
use super::tree::{CONFIGURATION, Tree, read};

const MAINTAINER: &str = "The Slackwater Contributors <maintainers@slackwater.invalid>";

const DESCRIPTION: &str = "write-back page cache in user space, mounted through FUSE
 Slackwater mounts a directory or a volume in an object store through a cache of
 its own. Writes complete in memory; dirty data is written back in the
 background, within limits of size and age that each container can have for
 itself.
 .
 This package has the command, the helpers of mount(8) and a service for many
 volumes, which is not enabled.
";

/// The package in `folder`.
pub(super) fn make(release: &Release, tree: &Tree, folder: &Path) -> Result<PathBuf, String> {
    let version = format!("{}-1", release.version);
    let path = folder.join(format!("slackwater_{version}_{}.deb", release.target.debian));
    let mut tree = tree.clone();
    tree.add_for_zsh(release, "usr/share/zsh/vendor-completions")?;
    tree.add("usr/share/doc/slackwater/copyright", copyright(&release.date("+%Y")?)?.into_bytes(), 0o644);
    tree.add_compressed("usr/share/doc/slackwater/changelog.gz", &read(Path::new("CHANGELOG.md"))?)?;
    let date = release.date("+%a, %d %b %Y %H:%M:%S +0000")?;
    let changelog = format!(
        "slackwater ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {MAINTAINER}  {date}\n"
    );
    tree.add_compressed("usr/share/doc/slackwater/changelog.Debian.gz", changelog.as_bytes())?;
    tree.add("usr/share/lintian/overrides/slackwater", read(Path::new("dist/debian/lintian-overrides"))?, 0o644);

    let root = release.work.join("deb");
    tree.write(&root)?;
    // dpkg verifies all but links and configuration.
    let verified = tree.files().map(|(path, _)| path).filter(|path| *path != CONFIGURATION);
    let sums = output(Command::new("md5sum").arg("--").args(verified).current_dir(&root))?;
    let control = fields(&version, release.target.debian, tree.kib());
    tree.add("DEBIAN/control", control.into_bytes(), 0o644);
    tree.add("DEBIAN/conffiles", format!("/{CONFIGURATION}\n").into_bytes(), 0o644);
    tree.add("DEBIAN/md5sums", sums.into_bytes(), 0o644);
    for script in ["postinst", "prerm", "postrm"] {
        tree.add(&format!("DEBIAN/{script}"), read(&Path::new("dist/debian").join(script))?, 0o755);
    }
    tree.write(&root)?;
    let mut build = Command::new("dpkg-deb");
    // One thread, because the number of threads may change the bytes.
    build.args(["--root-owner-group", "--threads-max=1", "-Zxz", "-z3", "--build"]).arg(&root).arg(&path);
    output(release.dated(&mut build))?;
    Ok(path)
}

fn fields(version: &str, architecture: &str, kib: usize) -> String {
    format!(
        "Package: slackwater\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {kib}\nRecommends: fuse3\nSection: admin\nPriority: optional\nDescription: {DESCRIPTION}"
    )
}

/// The copyright file in Debian's machine-readable format, with the text of the licences that are not on every Debian.
fn copyright(year: &str) -> Result<String, String> {
    let mit = String::from_utf8_lossy(&read(Path::new("LICENSE-MIT"))?).into_owned();
    let terms = mit.split_once("\n\nPermission").map_or(mit.as_str(), |(_, rest)| rest);
    let terms = format!("Permission{terms}");
    let terms: String = terms.lines().map(|line| format!(" {}\n", if line.is_empty() { "." } else { line })).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: slackwater\n\
         Comment: The command contains libraries of others. Their licences are in third-party-licences.gz.\n\n\
         Files: *\nCopyright: {year} The Slackwater Contributors\nLicense: Expat or Apache-2.0\n\n\
         License: Expat\n{terms}\n\
         License: Apache-2.0\n On Debian systems, the text of the Apache License, Version 2.0, is in\n \
         /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_end_with_the_description() {
        let fields = fields("1.2.3-1", "amd64", 7);
        assert!(fields.contains("\nVersion: 1.2.3-1\nArchitecture: amd64\n"), "{fields}");
        assert!(fields.ends_with("is not enabled.\n") && fields.lines().all(|line| line.len() <= 80), "{fields}");
    }
}
