//! The programs that serve a directory, and where they are found.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The column of this project's mount.
pub(crate) const OURS: &str = "slackwater";
/// The column of this project's mount with requests over io_uring.
pub(crate) const OURS_URING: &str = "slackwater uring";
/// The column of the directory itself.
pub(crate) const DISK: &str = "disk";
/// The column of the server that reads writes into memory and discards them.
pub(crate) const BARE: &str = "bare";
/// The column of the same server with requests over io_uring.
pub(crate) const BARE_URING: &str = "bare uring";
pub(crate) const BINDFS: &str = "bindfs";
pub(crate) const MERGERFS: &str = "mergerfs";
pub(crate) const RCLONE: &str = "rclone";

/// File systems of others, which store their files in a directory as ours does.
pub(crate) const PEERS: [&str; 3] = [BINDFS, MERGERFS, RCLONE];

/// The kernel's switch for FUSE over io_uring.
pub(super) const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether it is on.
pub(super) fn has_uring() -> bool {
    std::fs::read_to_string(URING_SWITCH).is_ok_and(|value| value.trim() == "Y")
}

/// A program that serves mounts in the foreground.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    program: PathBuf,
    options: Vec<OsString>,
}

impl Server {
    /// All servers that are installed. If cargo runs this program, ours and the bare one are built first.
    pub(crate) fn all() -> Result<Vec<Server>> {
        let bare = own("examples/bare", &["--package", "slackwater-fuse", "--example", "bare"])?;
        let mut servers = Self::keepers()?;
        servers.insert(1, Server::new(BARE, bare.clone()));
        if has_uring() {
            servers.splice(1..1, [Server::new(OURS_URING, slackwater()?), Server::new(BARE_URING, bare)]);
        }
        Ok(servers)
    }

    /// The same without the bare one.
    pub(crate) fn keepers() -> Result<Vec<Server>> {
        let mut servers = vec![Server::new(OURS, slackwater()?)];
        servers.extend(PEERS.iter().filter_map(|name| Some(Server::new(name, on_path(name)?))));
        Ok(servers)
    }

    /// `program` as the server `name`.
    pub(crate) fn new(name: &'static str, program: PathBuf) -> Self {
        let options: &[&str] = match name {
            // Measured writes stay below the limit, as they do with the kernel, whose limit is a part of all memory.
            OURS => &["--dirty-ratio", "75", "--transport", "dev"],
            OURS_URING => &["--dirty-ratio", "75", "--transport", "uring"],
            // The caching that its manual recommends for ordinary programs.
            MERGERFS => &["-o", "cache.files=auto-full,category.create=ff,minfreespace=0,fsname=lab"],
            _ => &[],
        };
        Self { name, program, options: options.iter().map(OsString::from).collect() }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The same with other options than the usual ones.
    pub(crate) fn with_options(&self, options: &[&str]) -> Self {
        Self { options: options.iter().map(OsString::from).collect(), ..self.clone() }
    }

    /// Whether it has names and attributes, and returns what was written.
    pub(crate) fn keeps_files(&self) -> bool {
        self.name != BARE && self.name != BARE_URING
    }

    /// The command that mounts `source` at `mountpoint` and runs until that is unmounted.
    pub(crate) fn command(&self, source: &Path, mountpoint: &Path, cache_bytes: u64, arena: &Path) -> Command {
        // Ours unmounts when it gets this signal.
        let mut command = tied(&self.program, "TERM");
        match self.name {
            OURS | OURS_URING => {
                command.args(["mount", "--foreground", "--cache", &cache_bytes.to_string(), "--arena"]).arg(arena);
                command.args(&self.options).arg(source);
            }
            BARE => {}
            BARE_URING => drop(command.arg("uring")),
            BINDFS | MERGERFS => drop(command.arg("-f").args(&self.options).arg(source)),
            _ => {
                command.args(["mount", "--config", "/dev/null", "--vfs-cache-mode", "writes", "--cache-dir"]);
                // Its cache is on the disk, beside its files.
                command.arg(mountpoint.with_file_name("rclone-cache")).arg(source);
            }
        }
        command.arg(mountpoint);
        command
    }

    /// The command that unmounts it and ends when that is done.
    pub(crate) fn umount(&self, mountpoint: &Path) -> Command {
        let (program, option) = match self.name {
            OURS | OURS_URING => (self.program.as_path(), Some("umount")),
            _ if rustix::process::geteuid().is_root() => (Path::new("umount"), None),
            _ => (Path::new("fusermount3"), Some("-u")),
        };
        let mut command = Command::new(program);
        command.args(option).arg(mountpoint);
        command
    }

    /// The command that writes everything back, if the server needs more than an fsync of its files.
    pub(crate) fn sync(&self, mountpoint: &Path) -> Option<Command> {
        matches!(self.name, OURS | OURS_URING).then(|| {
            let mut command = Command::new(&self.program);
            command.arg("sync").arg(mountpoint);
            command
        })
    }
}

/// The command `program`, which gets `signal` if this process is killed, so that it does not stay behind.
pub(crate) fn tied(program: &Path, signal: &str) -> Command {
    let Some(setpriv) = on_path("setpriv") else { return Command::new(program) };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", signal, "--"]).arg(program);
    command
}

/// The `slackwater` command. If cargo runs this program, it is built first.
pub(crate) fn slackwater() -> Result<PathBuf> {
    own("slackwater", &["--package", "slackwater-cli", "--bins"])
}

/// The same with object volumes.
pub(crate) fn slackwater_with_object_volumes() -> Result<PathBuf> {
    own("slackwater", &["--package", "slackwater-cli", "--bins", "--features", "object"])
}

/// This program, also if a test calls this, which is another program.
pub(crate) fn lab() -> Result<PathBuf> {
    own("slackwater-lab", &["--package", "slackwater-lab", "--bins"])
}

/// Environment variable that is set if the programs were built just before, perhaps with other features. Building one
/// again would replace it under the tests that use it.
const ARE_BUILT: &str = "SLACKWATER_PROGRAMS_ARE_BUILT";

/// A program of ours at `path` beside this one. If cargo runs this program, it also runs `build`.
fn own(path: &str, build: &[&str]) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let folder = own.parent().context("this program is in no directory")?;
    // Tests are one directory further down.
    let folder = folder.parent().filter(|_| folder.ends_with("deps")).unwrap_or(folder);
    let program = folder.join(path);
    let profile = if folder.ends_with("release") { "--release" } else { "--quiet" };
    let is_built = program.is_file() && std::env::var_os(ARE_BUILT).is_some();
    if let Some(cargo) = std::env::var_os("CARGO").filter(|_| !is_built) {
        let status = Command::new(&cargo).arg("build").arg(profile).args(build).status().context("cannot run cargo")?;
        ensure!(status.success(), "cargo build {}: {status}", build.join(" "));
    }
    if !program.is_file() {
        bail!("cannot find {}: run this program with cargo, or build it first", program.display());
    }
    Ok(program)
}

/// The file of a program of the system.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
