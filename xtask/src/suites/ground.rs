//! The directory that a suite works in: a mount of its own, of a directory or of an object volume, or a plain directory.
//!
//! No mount and no process outlives the suite. A guard ends what it started. If this process dies, the process that serves
//! the mount receives SIGTERM and unmounts.

use crate::folders::cannot;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::kills::Kills;
use super::program::{Program, tail};
use super::store::Store;

/// Less than the suites write, so that write-back, eviction and blocked writers occur.
const CACHE: &str = "256MiB";
const MOUNT_SECONDS: u64 = 30;
const MOUNT_SECONDS_OF_SECOND: u32 = 30;
const UMOUNT_SECONDS: u32 = 60;
/// The local S3 server reads its whole bucket for each page of a listing.
const CHECK_SECONDS: u32 = 600;
/// Time for a process to end after its unmount.
const FAREWELL: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// The directory of a run, which all users may enter.
pub(super) struct Home {
    path: PathBuf,
    is_kept: bool,
}

impl Home {
    /// A new directory in `folder`, in /tmp by default.
    pub(super) fn new(folder: Option<&Path>) -> Result<Home, String> {
        let folder = folder.unwrap_or(Path::new("/tmp"));
        let folder = folder.canonicalize().map_err(|error| cannot(folder, &error))?;
        let path = folder.join(format!("slackwater-suites-{}", std::process::id()));
        make_open_directory(&path)?;
        Ok(Home { path, is_kept: false })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory, for a look at the failure.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.is_kept || fs::remove_dir_all(&self.path).is_ok() {
            return;
        }
        // A killed stressor may leave immutable files.
        let _ = Command::new("chattr").args(["-R", "-f", "-i", "-a"]).arg(&self.path).status();
        if let Err(error) = fs::remove_dir_all(&self.path) {
            println!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// The kind of directory that a suite works in.
pub(super) enum Target {
    /// A directory without Slackwater.
    Plain,
    /// A directory that this binary mounts.
    Directory(PathBuf),
    /// The same, kept; its server is killed again and again.
    Killed(PathBuf),
    /// A volume in a store, made and mounted by this binary.
    Volume(PathBuf, Store),
}

/// The surroundings of one suite.
pub(super) struct Ground {
    /// The directory under test.
    path: PathBuf,
    /// The directory that has its files after the unmount.
    source: PathBuf,
    /// A volume, which is checked and mounted again after the unmount.
    volume: Option<Volume>,
    /// A directory for other files, on an ordinary file system.
    beside: PathBuf,
    log: PathBuf,
    mounted: Option<Mounted>,
    /// A further mount point of the same volume.
    second: Option<PathBuf>,
    kills: Option<Kills>,
    /// The number of kills and their cost, once they have ended.
    killed: Option<String>,
}

impl Ground {
    /// A directory below `home`, mounted if `target` says so.
    pub(super) fn new(suite: &str, home: &Home, logs: &Path, target: &Target) -> Result<Ground, String> {
        let folder = home.path().join(suite);
        let (source, beside) = (folder.join("source"), folder.join("beside"));
        for path in [&folder, &source, &beside] {
            make_open_directory(path)?;
        }
        fs::create_dir_all(logs).map_err(|error| cannot(logs, &error))?;
        let log = logs.join(format!("{suite}.log"));
        File::create(&log).map_err(|error| cannot(&log, &error))?;
        let mut ground = Ground {
            path: source.clone(),
            source,
            volume: None,
            beside,
            log,
            mounted: None,
            second: None,
            kills: None,
            killed: None,
        };
        let path = folder.join("mnt");
        let mount_log = logs.join(format!("{suite}-mount.log"));
        File::create(&mount_log).map_err(|error| cannot(&mount_log, &error))?;
        match target {
            Target::Plain => {}
            Target::Directory(binary) => {
                make_open_directory(&path)?;
                ground.mounted = Some(Mounted::new(binary, &[], ground.source.as_os_str(), &path, &[], &mount_log)?);
                ground.path = path;
            }
            Target::Killed(binary) => {
                make_open_directory(&path)?;
                let keep = ["--keep"];
                let mounted = Mounted::new(binary, &[], ground.source.as_os_str(), &path, &keep, &mount_log)?;
                ground.kills = Some(Kills::start(mounted.child.id(), &mount_log));
                (ground.mounted, ground.path) = (Some(mounted), path);
            }
            Target::Volume(binary, store) => {
                make_open_directory(&path)?;
                let (url, environment) = (store.url(suite), store.environment());
                let volume = Volume { binary: binary.clone(), url, environment, path: path.clone(), log: mount_log };
                volume.command("mkfs").run(&ground.log)?;
                ground.mounted = Some(volume.mount()?);
                fs::set_permissions(&path, Permissions::from_mode(0o777)).map_err(|error| cannot(&path, &error))?;
                (ground.path, ground.source, ground.volume) = (path.clone(), path, Some(volume));
            }
        }
        Ok(ground)
    }

    /// The directory to test.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A further mount point of the volume under test. `None` for an object volume or a plain directory.
    pub(super) fn second_path(&mut self) -> Result<Option<&Path>, String> {
        if let (Some(mounted), None, None) = (&self.mounted, &self.volume, &self.second) {
            let path = self.beside.join("second");
            make_open_directory(&path)?;
            let mount = Program::new(&mounted.binary).arg("mount").arg(&self.source).arg(&path);
            mount.seconds(MOUNT_SECONDS_OF_SECOND).run(&mounted.log)?;
            self.second = Some(path);
        }
        Ok(self.second.as_deref())
    }

    /// A directory on the file system below, for copies to compare and for tools.
    pub(super) fn beside(&self) -> &Path {
        &self.beside
    }

    /// The log that receives the output of programs.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Whether there is anything to compare with the file system below.
    pub(super) fn is_mounted(&self) -> bool {
        self.mounted.is_some()
    }

    /// Whether its server is killed.
    pub(super) fn is_killed(&self) -> bool {
        self.kills.is_some()
    }

    /// The number of kills and their cost, after the end.
    pub(super) fn killed(&self) -> Option<&str> {
        self.killed.as_deref()
    }

    /// Unmounts, and returns the directory that must now hold all files. A plain directory returns itself. An object
    /// volume is checked, and mounted again with an empty cache.
    pub(super) fn settle(&mut self) -> Result<&Path, String> {
        self.end()?;
        if let Some(volume) = &self.volume {
            self.mounted = Some(volume.mount()?);
        }
        Ok(&self.source)
    }

    /// Unmounts. An object volume has no fault then.
    pub(super) fn end(&mut self) -> Result<(), String> {
        let Some(mounted) = self.mounted.take() else { return Ok(()) };
        if let Some(second) = self.second.take() {
            Program::new(&mounted.binary).arg("umount").arg(&second).seconds(UMOUNT_SECONDS).run(&mounted.log)?;
        }
        // The command of the unmount would notice the death of the process that it asks.
        let killed = self.kills.take().map(Kills::end).transpose();
        mounted.umount()?;
        self.killed = killed?;
        match &self.volume {
            Some(volume) => volume.command("fsck").seconds(CHECK_SECONDS).run(&self.log),
            None => Ok(()),
        }
    }
}

/// A volume in a store, and the command on it.
struct Volume {
    binary: PathBuf,
    url: String,
    environment: Vec<(String, String)>,
    /// The mount point.
    path: PathBuf,
    log: PathBuf,
}

impl Volume {
    fn command(&self, verb: &str) -> Program {
        let command = Program::new(&self.binary).args(verb).arg(&self.url);
        self.environment.iter().fold(command, |command, (name, value)| command.env(name, value))
    }

    fn mount(&self) -> Result<Mounted, String> {
        Mounted::new(&self.binary, &self.environment, self.url.as_ref(), &self.path, &[], &self.log)
    }
}

/// A mount with the process that serves it.
struct Mounted {
    binary: PathBuf,
    mountpoint: PathBuf,
    arena: PathBuf,
    child: Child,
    log: PathBuf,
}

impl Mounted {
    fn new(
        binary: &Path,
        environment: &[(String, String)],
        source: &OsStr,
        mountpoint: &Path,
        options: &[&str],
        log: &Path,
    ) -> Result<Mounted, String> {
        // Removed here in case the process is no longer there to do it.
        let arena = Path::new("/dev/shm").join(format!("slackwater-suites-{}.arena", std::process::id()));
        let opened = File::options().create(true).append(true).open(log);
        let output = opened.map_err(|error| cannot(log, &error))?;
        let errors = output.try_clone().map_err(|error| cannot(log, &error))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(binary).arg("mount").arg(source).arg(mountpoint);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.args(options).args(["--cache", CACHE, "--arena"]).arg(&arena);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().map_err(|error| format!("{}: {error}", binary.display()))?;
        let (binary, mountpoint, log) = (binary.to_owned(), mountpoint.to_owned(), log.to_owned());
        let mut mounted = Mounted { binary, mountpoint, arena, child, log };
        let start = Instant::now();
        while !is_mounted(&mounted.mountpoint) {
            let ended = mounted.child.try_wait().map_err(|error| format!("the mount's process: {error}"))?;
            if let Some(status) = ended {
                return Err(format!("slackwater mount: {status}\n{}", tail(&mounted.log)));
            }
            if start.elapsed() > Duration::from_secs(MOUNT_SECONDS) {
                return Err(format!("not mounted within {MOUNT_SECONDS} s\n{}", tail(&mounted.log)));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(mounted)
    }

    /// Unmounts in the ordinary way. Fails if the unmount fails, or if the process does not end with status 0.
    fn umount(mut self) -> Result<(), String> {
        Program::new(&self.binary)
            .arg("umount")
            .arg(&self.mountpoint)
            .args(&format!("--deadline {UMOUNT_SECONDS}s"))
            .seconds(UMOUNT_SECONDS + 30)
            .run(&self.log)?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(UMOUNT_SECONDS.into()) {
            match self.child.try_wait().map_err(|error| format!("the mount's process: {error}"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the mount's process: {status}\n{}", tail(&self.log))),
                None => std::thread::sleep(PAUSE),
            }
        }
        Err(format!("the mount's process does not end\n{}", tail(&self.log)))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A failed suite may have left the second one.
        let second = self.mountpoint.with_file_name("beside").join("second");
        for mountpoint in [&second, &self.mountpoint].into_iter().filter(|path| is_mounted(path)) {
            let _ = Command::new("umount").arg("--lazy").arg(mountpoint).status();
        }
        // Time to write its data back. Then it is killed by its id, which is still valid: it is a child of this process.
        let start = Instant::now();
        while start.elapsed() < FAREWELL && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(PAUSE);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.arena);
    }
}

/// Whether something is mounted exactly there. The paths used here hold nothing that the kernel would escape.
fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == path))
}

/// Makes a directory in which all users may make files.
pub(super) fn make_open_directory(path: &Path) -> Result<(), String> {
    fs::create_dir(path).map_err(|error| cannot(path, &error))?;
    fs::set_permissions(path, Permissions::from_mode(0o777)).map_err(|error| cannot(path, &error))
}
