//! The directory that a suite works in: a mount of its own, of a directory or of an object volume, or a plain directory.
//!
//! No mount and no process outlives the suite. A guard ends what it started. If this process dies, the process that serves
//! the mount receives SIGTERM and unmounts.

use crate::folders::cannot;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::kills::Kills;
use super::program::{Program, tail};
use super::store::Store;

/// Size of the cache: less than the suites write, so that write-back, eviction and blocked writers occur.
const CACHE: &str = "256MiB";
const MOUNT_SECONDS: u32 = 30;
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

/// The place that a suite works in: a plain directory, or a mount by `binary`.
#[derive(Default)]
pub(super) struct Target {
    /// Mounts. Without one, the directory is plain.
    pub(super) binary: Option<PathBuf>,
    /// The store with a volume for each suite. Without one, each mount is of a directory.
    pub(super) store: Option<Store>,
    /// The mount is kept, and its server is killed again and again.
    pub(super) is_killed: bool,
}

/// The surroundings of one suite.
pub(super) struct Ground {
    /// The directory under test.
    path: PathBuf,
    /// The directory that has its files after the unmount.
    source: PathBuf,
    /// A directory for other files, on an ordinary file system.
    beside: PathBuf,
    log: PathBuf,
    mount: Option<Mount>,
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
        let (source, beside, path) = (folder.join("source"), folder.join("beside"), folder.join("mnt"));
        for path in [&folder, &source, &beside, &path] {
            make_open_directory(path)?;
        }
        let (log, mount_log) = (logs.join(format!("{suite}.log")), logs.join(format!("{suite}-mount.log")));
        for path in [&log, &mount_log] {
            File::create(path).map_err(|error| cannot(path, &error))?;
        }
        let mut ground = Ground {
            path: source.clone(),
            source,
            beside,
            log,
            mount: None,
            mounted: None,
            second: None,
            kills: None,
            killed: None,
        };
        let Some(binary) = target.binary.clone() else { return Ok(ground) };
        let mut mount = Mount {
            binary,
            source: ground.source.clone().into(),
            path: path.clone(),
            environment: Vec::new(),
            is_volume: false,
            is_kept: target.is_killed,
            log: mount_log,
        };
        if let Some(store) = &target.store {
            (mount.source, mount.environment, mount.is_volume) = (store.url(suite).into(), store.environment(), true);
            mount.command("mkfs").run(&ground.log)?;
        }
        let mounted = mount.start()?;
        if mount.is_volume {
            fs::set_permissions(&path, Permissions::from_mode(0o777)).map_err(|error| cannot(&path, &error))?;
            ground.source = path.clone();
        }
        ground.path = path;
        ground.kills = target.is_killed.then(|| Kills::start(mounted.child.id(), &mount.log));
        (ground.mount, ground.mounted) = (Some(mount), Some(mounted));
        Ok(ground)
    }

    /// The directory to test.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A further mount point of the volume under test. `None` for an object volume or a plain directory.
    pub(super) fn second_path(&mut self) -> Result<Option<&Path>, String> {
        if let Some(mount) = self.mount.as_ref().filter(|mount| !mount.is_volume && self.second.is_none()) {
            let path = self.beside.join("second");
            make_open_directory(&path)?;
            mount.command("mount").arg(&path).seconds(MOUNT_SECONDS).run(&mount.log)?;
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
        if let Some(mount) = self.mount.as_ref().filter(|mount| mount.is_volume) {
            self.mounted = Some(mount.start()?);
        }
        Ok(&self.source)
    }

    /// Unmounts. An object volume has no fault then.
    pub(super) fn end(&mut self) -> Result<(), String> {
        let (Some(mount), Some(mounted)) = (&self.mount, self.mounted.take()) else { return Ok(()) };
        if let Some(second) = self.second.take() {
            Program::new(&mount.binary).arg("umount").arg(&second).seconds(UMOUNT_SECONDS).run(&mount.log)?;
        }
        // The command of the unmount would notice the death of the process that it asks.
        let killed = self.kills.take().map(Kills::end).transpose();
        mounted.umount(mount)?;
        self.killed = killed?;
        if mount.is_volume { mount.command("fsck").seconds(CHECK_SECONDS).run(&self.log) } else { Ok(()) }
    }
}

/// A mount, and the command that makes it.
struct Mount {
    binary: PathBuf,
    /// A directory, or the URL of a volume.
    source: OsString,
    /// The mount point.
    path: PathBuf,
    environment: Vec<(String, String)>,
    is_volume: bool,
    is_kept: bool,
    log: PathBuf,
}

impl Mount {
    /// The command `verb` on the source.
    fn command(&self, verb: &str) -> Program {
        let command = Program::new(&self.binary).arg(verb).arg(&self.source);
        self.environment.iter().fold(command, |command, (name, value)| command.env(name, value))
    }

    /// Mounts, in a process that ends with this one.
    fn start(&self) -> Result<Mounted, String> {
        // Removed here in case the process is no longer there to do it.
        let arena = Path::new("/dev/shm").join(format!("slackwater-suites-{}.arena", std::process::id()));
        let output = File::options().append(true).open(&self.log).map_err(|error| cannot(&self.log, &error))?;
        let errors = output.try_clone().map_err(|error| cannot(&self.log, &error))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(&self.binary).arg("mount").arg(&self.source).arg(&self.path);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.args(self.is_kept.then_some("--keep")).args(["--cache", CACHE, "--arena"]).arg(&arena);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().map_err(|error| format!("{}: {error}", self.binary.display()))?;
        let mut mounted = Mounted { mountpoint: self.path.clone(), arena, child };
        let start = Instant::now();
        while !is_mounted(&self.path) {
            let ended = mounted.child.try_wait().map_err(|error| format!("the mount's process: {error}"))?;
            if let Some(status) = ended {
                return Err(format!("slackwater mount: {status}\n{}", tail(&self.log)));
            }
            if start.elapsed() > Duration::from_secs(MOUNT_SECONDS.into()) {
                return Err(format!("not mounted within {MOUNT_SECONDS} s\n{}", tail(&self.log)));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(mounted)
    }
}

/// A mount point with the process that serves it.
struct Mounted {
    mountpoint: PathBuf,
    arena: PathBuf,
    child: Child,
}

impl Mounted {
    /// Unmounts in the ordinary way. Fails if the unmount fails, or if the process does not end with status 0.
    fn umount(mut self, mount: &Mount) -> Result<(), String> {
        Program::new(&mount.binary)
            .arg("umount")
            .arg(&mount.path)
            .args(&format!("--deadline {UMOUNT_SECONDS}s"))
            .seconds(UMOUNT_SECONDS + 30)
            .run(&mount.log)?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(UMOUNT_SECONDS.into()) {
            match self.child.try_wait().map_err(|error| format!("the mount's process: {error}"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the mount's process: {status}\n{}", tail(&mount.log))),
                None => std::thread::sleep(PAUSE),
            }
        }
        Err(format!("the mount's process does not end\n{}", tail(&mount.log)))
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
