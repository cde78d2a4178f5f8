//! The files of an installation, in memory. The formats of packages add their own and write all of them to a directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Release;
use super::command::{bytes, gzip};
use super::parts::Parts;
use super::target::Target;
use crate::folders::{self, cannot};

/// Where `dist/slackwater.service` and its drop-ins expect the command, and where packages have it.
const BY_HAND: &str = "/usr/local/bin/slackwater";
const PACKAGED: &str = "/usr/bin/slackwater";

/// The configuration, which an upgrade keeps.
pub(super) const CONFIGURATION: &str = "etc/slackwater.toml";

/// A file or a symbolic link. Paths begin without a slash.
#[derive(Clone)]
struct Entry {
    path: String,
    content: Content,
}

#[derive(Clone)]
enum Content {
    File { bytes: Vec<u8>, mode: u32 },
    Link(String),
}

/// The files of a package.
#[derive(Clone)]
pub(super) struct Tree {
    entries: Vec<Entry>,
    /// A directory for compressing, and for nothing that lasts.
    work: PathBuf,
}

/// The helpers of mount(8) and umount(8), which are links to the command.
const HELPERS: [&str; 4] = ["mount.slackwater", "mount.fuse.slackwater", "umount.slackwater", "umount.fuse.slackwater"];

impl Tree {
    /// The files that every package has.
    pub(super) fn new(release: &Release, binary: &Path, parts: &Parts) -> Result<Tree, String> {
        let mut tree = Tree { entries: Vec::new(), work: release.work.clone() };
        tree.add(PACKAGED.trim_start_matches('/'), read(binary)?, 0o755);
        for name in HELPERS {
            tree.link(&format!("usr/sbin/{name}"), "../bin/slackwater");
            tree.link(&format!("usr/share/man/man8/{name}.8.gz"), "../man1/slackwater.1.gz");
        }
        tree.add(CONFIGURATION, read(Path::new("dist/slackwater.toml"))?, 0o644);
        tree.add("usr/lib/systemd/system/slackwater.service", unit("slackwater.service")?, 0o644);
        for name in ["slackwater-fuse.conf", "slackwater-hardened.conf", "slackwater-keep.conf"] {
            tree.add(&format!("usr/share/doc/slackwater/examples/{name}"), unit(name)?, 0o644);
        }
        tree.add_compressed("usr/share/man/man1/slackwater.1.gz", &run(release.target, binary, &["man"])?)?;
        for (shell, path) in [
            ("bash", "usr/share/bash-completion/completions/slackwater"),
            ("fish", "usr/share/fish/vendor_completions.d/slackwater.fish"),
        ] {
            tree.add(path, run(release.target, binary, &["completions", shell])?, 0o644);
        }
        let notices = parts.notices()?;
        tree.add_compressed("usr/share/doc/slackwater/third-party-licences.gz", notices.as_bytes())?;
        Ok(tree)
    }

    /// Adds the completions of zsh, which has a folder of its own in each distribution.
    pub(super) fn add_for_zsh(&mut self, release: &Release, folder: &str) -> Result<(), String> {
        let command = Path::new(PACKAGED.trim_start_matches('/'));
        let binary = release.work.join("command");
        self.only(&[command]).write(&binary)?;
        let script = run(release.target, &binary.join(command), &["completions", "zsh"])?;
        self.add(&format!("{folder}/_slackwater"), script, 0o644);
        Ok(())
    }

    /// Adds a file.
    pub(super) fn add(&mut self, path: &str, bytes: Vec<u8>, mode: u32) {
        self.entries.push(Entry { path: path.to_owned(), content: Content::File { bytes, mode } });
    }

    /// Adds a file compressed by gzip.
    pub(super) fn add_compressed(&mut self, path: &str, bytes: &[u8]) -> Result<(), String> {
        let plain = self.work.join("plain");
        fs::write(&plain, bytes).map_err(|error| cannot(&plain, &error))?;
        self.add(path, gzip(&plain)?, 0o644);
        Ok(())
    }

    fn link(&mut self, path: &str, target: &str) {
        self.entries.push(Entry { path: path.to_owned(), content: Content::Link(target.to_owned()) });
    }

    /// The files that are at or below one of `paths`, without the others.
    pub(super) fn only(&self, paths: &[&Path]) -> Tree {
        let is_chosen = |entry: &&Entry| paths.iter().any(|path| Path::new(&entry.path).starts_with(path));
        Tree { entries: self.entries.iter().filter(is_chosen).cloned().collect(), work: self.work.clone() }
    }

    /// All files but links: path and bytes.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().filter_map(|entry| match &entry.content {
            Content::File { bytes, .. } => Some((&*entry.path, &**bytes)),
            Content::Link(_) => None,
        })
    }

    /// The size as Debian counts: each file rounded up, and 1 KiB for everything else.
    pub(super) fn kib(&self) -> usize {
        let links = self.entries.len() - self.files().count();
        links + self.files().map(|(_, bytes)| bytes.len().div_ceil(1024)).sum::<usize>()
    }

    /// Writes all files to a new directory.
    pub(super) fn write(&self, root: &Path) -> Result<(), String> {
        folders::remove(root)?;
        make_folder(root)?;
        for entry in &self.entries {
            let path = root.join(&entry.path);
            let mut folder = root.to_owned();
            for part in Path::new(&entry.path).parent().into_iter().flat_map(Path::components) {
                folder.push(part);
                make_folder(&folder)?;
            }
            match &entry.content {
                Content::File { bytes, mode } => {
                    let written = fs::write(&path, bytes);
                    let written = written.and_then(|()| fs::set_permissions(&path, Permissions::from_mode(*mode)));
                    written.map_err(|error| cannot(&path, &error))?;
                }
                Content::Link(target) => symlink(target, &path).map_err(|error| cannot(&path, &error))?,
            }
        }
        Ok(())
    }
}

/// A directory that all users may enter, under any umask.
pub(super) fn make_folder(path: &Path) -> Result<(), String> {
    let made = fs::create_dir_all(path).and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)));
    made.map_err(|error| cannot(path, &error))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| cannot(path, &error))
}

/// A file of systemd from `dist`, for the packaged command.
fn unit(name: &str) -> Result<Vec<u8>, String> {
    let path = Path::new("dist").join(name);
    let text = fs::read_to_string(&path).map_err(|error| cannot(&path, &error))?;
    Ok(packaged(&text).into_bytes())
}

/// The first comment, which says how to install the file by hand, is left out of a unit. That of a drop-in stays: a
/// package has it as an example.
fn packaged(text: &str) -> String {
    let text = text.replace(BY_HAND, PACKAGED);
    let is_drop_in = !text.contains("\n[Unit]\n");
    if is_drop_in { text } else { text[text.find("[Unit]\n").unwrap_or(0)..].to_owned() }
}

/// The output of the binary, which may need an emulator.
fn run(target: &Target, binary: &Path, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let mut command = if target.is_native() {
        Command::new(binary)
    } else {
        let mut command = Command::new(target.emulator);
        command.arg(binary);
        command
    };
    bytes(command.args(arguments)).map_err(|error| {
        let advice = "its manual and completions are printed by itself: apt-get install qemu-user-static";
        if target.is_native() { error } else { format!("{error}; {advice}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_runs_the_packaged_command() {
        let unit = "# Copy this\n\n[Unit]\nA=b\n[Service]\nExecStart=/usr/local/bin/slackwater daemon\n";
        assert_eq!(packaged(unit), "[Unit]\nA=b\n[Service]\nExecStart=/usr/bin/slackwater daemon\n");
        assert_eq!(packaged("# Copy this\n\n[Service]\n"), "# Copy this\n\n[Service]\n");
    }
}
