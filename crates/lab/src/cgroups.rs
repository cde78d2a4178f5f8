//! Temporary cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use slackwater_host::cgroup::{Hierarchy as Mounted, Layout};

/// Our top-level cgroups, for an end of the process without unwinding.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Attempts to remove a cgroup whose last process may not have been reaped.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// A mounted hierarchy of cgroups.
pub(crate) struct Hierarchy(Mounted);

/// A cgroup of ours, removed when dropped.
pub(crate) struct Cgroup {
    path: PathBuf,
    /// The path of the cgroup, as in `/proc/PID/cgroup`.
    name: PathBuf,
    about: &'static str,
}

impl Hierarchy {
    /// The hierarchy whose cgroups are tenants: cgroup2, else the memory controller of v1.
    ///
    /// # Errors
    /// Neither is mounted.
    pub(crate) fn of_tenants() -> Result<Self> {
        let layout = layout()?;
        layout.unified.or(layout.memory).map(Self).context("neither cgroup2 nor the memory controller of v1 is mounted")
    }

    /// A top-level cgroup, which is a tenant also without a limit.
    pub(crate) fn top(&self, name: &str) -> Result<Cgroup> {
        let name = self.0.root.join(format!("slackwater-lab-{}-{name}", std::process::id()));
        let path = self.0.directory(&name).context("the cgroup of this process is outside the mounted hierarchy")?;
        let mut cgroup = Cgroup::new(path, name)?;
        live().push(cgroup.path.clone());
        cgroup.about = about(cgroup.path.join("memory.max").exists() && cgroup.path.join("io.stat").exists());
        Ok(cgroup)
    }
}

fn about(has_controllers: bool) -> &'static str {
    if has_controllers {
        "cgroup writeback applies"
    } else {
        "no cgroup writeback: memory and io are not both controllers of one cgroup2"
    }
}

impl Cgroup {
    fn new(path: PathBuf, name: PathBuf) -> Result<Self> {
        fs::create_dir(&path).with_context(|| format!("cannot create the cgroup {}", path.display()))?;
        Ok(Self { path, name, about: "" })
    }

    /// A new cgroup in this one.
    pub(crate) fn child(&self, name: &str) -> Result<Self> {
        Self::new(self.path.join(name), self.name.join(name))
    }

    /// The file that takes the pid of a process to move.
    pub(crate) fn members(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// The path of the cgroup, as in `/proc/PID/cgroup`.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Whether the kernel's cgroup writeback applies to the cgroup.
    pub(crate) fn about(&self) -> &str {
        self.about
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(&self.path);
        live().retain(|path| *path != self.path);
    }
}

/// Kills all processes in our cgroups and removes the cgroups, for an end of the process without unwinding.
pub(crate) fn remove_all() {
    for path in live().drain(..) {
        let _ = fs::write(path.join("cgroup.kill"), "1");
        remove_below(&path);
    }
}

fn layout() -> Result<Layout> {
    Ok(Layout::parse(&fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?))
}

fn remove_below(path: &Path) {
    for child in fs::read_dir(path).into_iter().flatten().flatten() {
        if child.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&child.path());
        }
    }
    remove(path);
}

fn remove(path: &Path) {
    for _ in 0..ATTEMPTS {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => thread::sleep(PAUSE),
            // A second interrupt has removed it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => return eprintln!("cannot remove the cgroup {}: {error}", path.display()),
            Ok(()) => return,
        }
    }
    eprintln!("cannot remove the cgroup {}: it is busy", path.display());
}

fn live() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}
