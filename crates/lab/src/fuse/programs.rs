//! The programs that serve a directory, and where they are found.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Name of the column of this project's mount.
pub(crate) const OURS: &str = "slackwater";
/// Name of the column of the directory itself.
pub(crate) const DISK: &str = "disk";
/// Name of the column of the server that lands what is written and forgets it.
pub(crate) const BARE: &str = "bare";
pub(crate) const BINDFS: &str = "bindfs";
pub(crate) const MERGERFS: &str = "mergerfs";
pub(crate) const RCLONE: &str = "rclone";

/// File systems that others have made, which keep their files in a directory as ours does.
pub(crate) const PEERS: [&str; 3] = [BINDFS, MERGERFS, RCLONE];

/// A program that serves mounts in the foreground.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    program: PathBuf,
    options: Vec<OsString>,
}

impl Server {
    /// All that are there. Ours and the bare one are built first where cargo runs this program.
    pub(crate) fn all() -> Result<Vec<Server>> {
        let bare = own("examples/bare", &["--package", "slackwater-fuse", "--example", "bare"])?;
        let mut servers = Self::keepers()?;
        servers.insert(1, Server::new(BARE, bare));
        Ok(servers)
    }

    /// The same without the bare one.
    pub(crate) fn keepers() -> Result<Vec<Server>> {
        let mut servers = vec![Server::new(OURS, slackwater()?)];
        servers.extend(PEERS.iter().filter_map(|name| Some(Server::new(name, on_path(name)?))));
        Ok(servers)
    }

    fn new(name: &'static str, program: PathBuf) -> Self {
        let options: &[&str] = match name {
            // As the kernel, which has a part of all memory: what is measured stays below where writers wait.
            OURS => &["--dirty-ratio", "75"],
            // Its own caching as its manual recommends it for ordinary programs.
            MERGERFS => &["-o", "cache.files=auto-full,category.create=ff,minfreespace=0,fsname=lab"],
            _ => &[],
        };
        Self { name, program, options: options.iter().map(OsString::from).collect() }
    }

    /// The same with other options than the usual ones.
    pub(crate) fn with_options(&self, options: &[&str]) -> Self {
        Self { options: options.iter().map(OsString::from).collect(), ..self.clone() }
    }

    /// Whether it has names, attributes and what was written before.
    pub(crate) fn keeps_files(&self) -> bool {
        self.name != BARE
    }

    /// The command that mounts `source` at `mountpoint` and stays until that is unmounted.
    pub(crate) fn command(&self, source: &Path, mountpoint: &Path, cache_bytes: u64, arena: &Path) -> Command {
        let mut words: Vec<OsString> = vec![self.program.clone().into()];
        let mut add = |items: &[&str]| words.extend(items.iter().map(OsString::from));
        match self.name {
            OURS => {
                let cache = cache_bytes.to_string();
                add(&["mount", "--foreground", "--cache", &cache, "--arena"]);
                words.push(arena.into());
                words.extend(self.options.iter().cloned());
                words.extend([source.into(), mountpoint.into()]);
            }
            BARE => words.push(mountpoint.into()),
            BINDFS => words.extend(["-f".into(), source.into(), mountpoint.into()]),
            MERGERFS => {
                add(&["-f"]);
                words.extend(self.options.iter().cloned());
                words.extend([source.into(), mountpoint.into()]);
            }
            _ => {
                // Its cache is on the disk, beside its files.
                let beside = mountpoint.with_file_name("rclone-cache");
                add(&["mount", "--config", "/dev/null", "--vfs-cache-mode", "writes", "--cache-dir"]);
                words.extend([beside.into(), source.into(), mountpoint.into()]);
            }
        }
        // Ours then unmounts by itself.
        let mut command = tied(Path::new(&words[0]), "TERM");
        command.args(&words[1..]);
        command
    }

    /// The command that unmounts it and ends when that is done.
    pub(crate) fn umount(&self, mountpoint: &Path) -> Command {
        let mut command = if self.name == OURS {
            let mut command = Command::new(&self.program);
            command.arg("umount");
            command
        } else if rustix::process::geteuid().is_root() {
            Command::new("umount")
        } else {
            let mut command = Command::new("fusermount3");
            command.arg("-u");
            command
        };
        command.arg(mountpoint);
        command
    }

    /// The command that brings what it holds to the disk, where a sync of the files is not all there is to do.
    pub(crate) fn sync(&self, mountpoint: &Path) -> Option<Command> {
        (self.name == OURS).then(|| {
            let mut command = Command::new(&self.program);
            command.arg("sync").arg(mountpoint);
            command
        })
    }
}

/// `program`, which gets `signal` should this process be killed: it does not stay behind.
pub(crate) fn tied(program: &Path, signal: &str) -> Command {
    let Some(setpriv) = on_path("setpriv") else { return Command::new(program) };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", signal, "--"]).arg(program);
    command
}

/// The command, built first where cargo runs this program.
pub(crate) fn slackwater() -> Result<PathBuf> {
    own("slackwater", &["--package", "slackwater-cli", "--bins"])
}

/// This program, for a process of its own: also where tests run, which are another.
pub(crate) fn lab() -> Result<PathBuf> {
    own("slackwater-lab", &["--package", "slackwater-lab", "--bins"])
}

/// A program of ours at `path` beside this one; cargo is told to `build` it where it runs this one.
fn own(path: &str, build: &[&str]) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let folder = own.parent().context("this program is in no directory")?;
    // Tests are a directory further down.
    let folder = folder.parent().filter(|_| folder.ends_with("deps")).unwrap_or(folder);
    let program = folder.join(path);
    let profile = if folder.ends_with("release") { "--release" } else { "--quiet" };
    if let Some(cargo) = std::env::var_os("CARGO") {
        let status = Command::new(&cargo).arg("build").arg(profile).args(build).status().context("cannot run cargo")?;
        ensure!(status.success(), "cargo build {}: {status}", build.join(" "));
    }
    if !program.is_file() {
        bail!("{} is not there: run this by cargo, or build it first", program.display());
    }
    Ok(program)
}

/// The file of a program of the system.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
