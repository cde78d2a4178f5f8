//! The programs that serve a directory and where they are found, a mount by one of them from the start of its process to its
//! end, and the subjects: a directory on the disk, and directories that servers have mounted.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::harness::process::Process;

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

/// Time between two looks at a mount that is being made: ours takes milliseconds.
const PAUSE: Duration = Duration::from_micros(200);
/// Longest wait for a mount, and for a process to end after its unmount.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mounted directory; unmounted when dropped, even if that loses data.
pub(crate) struct Mounted {
    server: Server,
    mountpoint: PathBuf,
    arena: PathBuf,
    process: Process,
    log: PathBuf,
    started: Instant,
    /// Time from the start of the program until the first answer.
    pub(crate) mount_time: Duration,
}

/// How long an unmount took.
pub(crate) struct Unmounted {
    /// Time until the command has ended.
    pub(crate) command: Duration,
    /// Time until the server has ended too, and its memory is free.
    pub(crate) server: Duration,
}

impl Mounted {
    /// Mounts `home/source` at `home/mnt`, both made if they do not exist.
    pub(crate) fn new(server: &Server, home: &Path, cache_bytes: u64) -> Result<Mounted> {
        let source = home.join("source");
        fs::create_dir_all(&source).with_context(|| format!("cannot create {}", source.display()))?;
        let command = server.command(&source, &mountpoint_in(home), cache_bytes, &arena_in(home));
        Self::start(server, command, home)
    }

    /// Runs `command`, which mounts something at [`mountpoint_in`] this `home`. It may use the arena [`arena_in`] it.
    pub(crate) fn start(server: &Server, mut command: Command, home: &Path) -> Result<Mounted> {
        let (mountpoint, arena, log) = (mountpoint_in(home), arena_in(home), home.join("log"));
        fs::create_dir_all(&mountpoint).with_context(|| format!("cannot create {}", mountpoint.display()))?;
        let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        command.stdout(output.try_clone()?).stderr(output);
        let (before, started) = (device(home)?, Instant::now());
        let process = Process::start(&mut command).with_context(|| format!("cannot start {}", server.name))?;
        let (server, mount_time) = (server.clone(), Duration::ZERO);
        let mut mounted = Mounted { server, mountpoint, arena, process, log, started, mount_time };
        // A look at a mount waits for the server's first answer.
        while device(&mounted.mountpoint)? == before {
            if mounted.process.has_ended()? || started.elapsed() > PATIENCE {
                bail!("{} does not mount:\n{}", mounted.server.name, mounted.output());
            }
            std::thread::sleep(PAUSE);
        }
        mounted.mount_time = started.elapsed();
        Ok(mounted)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// The time since the start of the program.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The size of the file with its page frames, if it has one.
    pub(crate) fn arena_bytes(&self) -> Option<u64> {
        fs::metadata(&self.arena).ok().map(|arena| arena.len())
    }

    /// Writes everything back.
    pub(crate) fn settle(&self) -> Result<()> {
        self.server.sync(&self.mountpoint).map_or(Ok(()), |mut command| self.succeed(&mut command))
    }

    /// Unmounts, and waits until the command and the server have ended.
    pub(crate) fn umount(mut self) -> Result<Unmounted> {
        let start = Instant::now();
        self.succeed(&mut self.server.umount(&self.mountpoint))?;
        let command = start.elapsed();
        while !self.process.has_ended()? {
            ensure!(start.elapsed() < PATIENCE, "{} does not end:\n{}", self.server.name, self.output());
            std::thread::sleep(PAUSE);
        }
        Ok(Unmounted { command, server: start.elapsed() })
    }

    fn succeed(&self, command: &mut Command) -> Result<()> {
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{command:?}: {}\n{errors}{}", output.status, self.output());
        Ok(())
    }

    /// The output of the server so far.
    fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.process.has_ended().unwrap_or(false) {
            let is_root = rustix::process::geteuid().is_root();
            let (program, option) = if is_root { ("umount", "-l") } else { ("fusermount3", "-uz") };
            // Nothing is mounted if the mount has failed.
            let _ = Command::new(program).arg(option).arg(&self.mountpoint).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_file(&self.arena);
    }
}

/// The mount point of a mount in `home`.
pub(crate) fn mountpoint_in(home: &Path) -> PathBuf {
    home.join("mnt")
}

/// The arena of a mount in `home`, in memory. The name contains that of the home, so no other process has the file.
pub(crate) fn arena_in(home: &Path) -> PathBuf {
    let name: Vec<_> = home.components().rev().take(2).map(|part| part.as_os_str().to_string_lossy()).collect();
    Path::new("/dev/shm").join(format!("{}.arena", name.join("-")))
}

fn device(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.dev())
}

/// A directory to work in, and its server.
pub(crate) struct Subject {
    name: &'static str,
    home: PathBuf,
    server: Option<Server>,
    mounted: Option<Mounted>,
}

impl Subject {
    /// The disk itself, in the new directory `home`.
    pub(crate) fn disk(home: PathBuf) -> Self {
        Self { name: DISK, home, server: None, mounted: None }
    }

    /// `server` on the new directory `home`.
    pub(crate) fn mounted(server: &Server, home: PathBuf, cache_bytes: u64) -> Result<Self> {
        let mounted = Mounted::new(server, &home, cache_bytes)?;
        Ok(Self { name: server.name, home, server: Some(server.clone()), mounted: Some(mounted) })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn path(&self) -> &Path {
        self.mounted.as_ref().map_or(&self.home, Mounted::path)
    }

    /// The path of a file. The bare server has a single file for everything.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(if self.keeps_files() { name } else { "bare" })
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.mounted.is_some()
    }

    /// The process of the server, if there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.mounted.as_ref().map(Mounted::pid)
    }

    /// Whether written data can be read back.
    pub(crate) fn keeps_files(&self) -> bool {
        self.server.as_ref().is_none_or(Server::keeps_files)
    }

    /// Makes everything durable, so that nothing is left to do in the background.
    pub(crate) fn settle(&self) -> Result<()> {
        for entry in self.keeps_files().then(|| fs::read_dir(self.path())).transpose()?.into_iter().flatten() {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                File::open(entry.path())?.sync_all()?;
            }
        }
        self.mounted.as_ref().map_or(Ok(()), Mounted::settle)
    }

    pub(crate) fn end(self) -> Result<()> {
        let name = self.name;
        self.mounted
            .map_or(Ok(()), |mounted| mounted.umount().map(drop))
            .with_context(|| format!("cannot unmount {name}"))
    }
}
