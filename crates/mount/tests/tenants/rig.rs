//! Cgroups and processes that are removed with their test, however it ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use slackwater::{Clock, ManualClock, Timestamp};
use slackwater_host::cgroup::{Hierarchy, Layout};
use slackwater_mount::tenants::{Tenant, TenantBy, TenantConfig, TenantId, Tenants, Watcher};

/// Longer than any step takes on a loaded machine; only a failing test waits that long.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// cgroup2, if its cgroups determine tenants here.
pub(crate) fn unified() -> Option<Hierarchy> {
    usable("cgroup2", layout().unified)
}

/// The v1 memory hierarchy, if its cgroups determine tenants here: a process in a non-root cgroup of cgroup2 is found
/// there.
pub(crate) fn memory() -> Option<Hierarchy> {
    let own = fs::read_to_string("/proc/self/cgroup").expect("/proc");
    if layout().unified.is_some() && !own.lines().any(|line| line == "0::/") {
        println!("skipped: this process is in a cgroup of cgroup2, which determines its tenant");
        return None;
    }
    usable("the memory hierarchy of cgroup v1", layout().memory)
}

fn layout() -> Layout {
    Layout::parse(&fs::read_to_string("/proc/self/mountinfo").expect("/proc"))
}

fn usable(name: &str, hierarchy: Option<Hierarchy>) -> Option<Hierarchy> {
    let Some(hierarchy) = hierarchy else {
        println!("skipped: {name} is not mounted here");
        return None;
    };
    let clock = Arc::new(ManualClock::new(Timestamp(0)));
    if let Err(error) = Tenants::new(TenantBy::Cgroup, BTreeMap::new(), clock) {
        println!("skipped: {error}");
        return None;
    }
    match Cgroup::make(&hierarchy) {
        Ok(_) => Some(hierarchy),
        Err(error) => {
            println!("skipped: no cgroup can be made in {name}: {error}");
            None
        }
    }
}

/// A cgroup created by this test.
pub(crate) struct Cgroup {
    pub(crate) directory: PathBuf,
    /// The path as in `/proc/PID/cgroup`.
    pub(crate) path: String,
}

impl Cgroup {
    /// A top-level cgroup of the mounted hierarchy.
    pub(crate) fn top(hierarchy: &Hierarchy) -> Self {
        Self::make(hierarchy).expect("a new cgroup")
    }

    pub(crate) fn below(&self, name: &str) -> Self {
        let (directory, path) = (self.directory.join(name), format!("{}/{name}", self.path));
        fs::create_dir(&directory).expect("a new cgroup");
        Self { directory, path }
    }

    fn make(hierarchy: &Hierarchy) -> std::io::Result<Self> {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = hierarchy.root.join(format!("slackwater-tenants-{}-{number}", std::process::id()));
        let directory = hierarchy.directory(&path).expect("below the mount");
        fs::create_dir(&directory)?;
        Ok(Self { directory, path: path.into_os_string().into_string().expect("a path in UTF-8") })
    }

    pub(crate) fn number(&self) -> u64 {
        fs::metadata(&self.directory).expect("the cgroup exists").ino()
    }

    pub(crate) fn limit(&self, bytes: &str) {
        fs::write(self.directory.join("memory.limit_in_bytes"), bytes).expect("a limit");
    }

    /// A program that enters the cgroup before it is executed.
    #[allow(dead_code, reason = "used by the tests of volumes")]
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let enter = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", enter]).arg(&self.directory).arg(program).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        command
    }

    pub(crate) fn enter(&self, process: &Sleeper) {
        fs::write(self.directory.join("cgroup.procs"), process.id().to_string()).expect("the process moves");
    }

    /// Removes the cgroup. Its last process may still be exiting.
    pub(crate) fn remove(&self) {
        until("the cgroup is empty", || match fs::remove_dir(&self.directory) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => false,
            removed => removed.map(|()| true).expect("the cgroup can be removed"),
        });
    }

    pub(crate) fn make_again(&self) {
        fs::create_dir(&self.directory).expect("a cgroup of the same name");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes were dropped before; the kernel takes a moment to remove them from the cgroup.
        let start = Instant::now();
        while self.directory.exists() && fs::remove_dir(&self.directory).is_err() && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A process that sleeps until it is dropped.
pub(crate) struct Sleeper(Child);

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep of coreutils"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tenants by cgroup, with a manual clock.
pub(crate) struct Rig {
    pub(crate) tenants: Tenants,
    pub(crate) watcher: Watcher,
    pub(crate) clock: Arc<ManualClock>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_limits(BTreeMap::new())
    }

    pub(crate) fn with_limits(limits_bytes: BTreeMap<PathBuf, u64>) -> Self {
        let config = limits_bytes.into_iter().map(|(tenant, bytes)| (tenant, TenantConfig::limit(bytes))).collect();
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let tenants = Tenants::new(TenantBy::Cgroup, config, Arc::clone(&clock) as Arc<dyn Clock>)
            .expect("these tests run in the host's pid namespace");
        let watcher = tenants.watcher().expect("cgroups have a watcher");
        Self { tenants, watcher, clock }
    }

    pub(crate) fn of(&self, process: &Sleeper) -> Option<Arc<Tenant>> {
        self.tenants.find(process.id(), 0)
    }

    pub(crate) fn path_of(&self, process: &Sleeper) -> String {
        self.of(process).expect("its cgroup is found").path.clone()
    }
}

/// Waits until the removal of `tenant` is reported.
pub(crate) fn await_removal(watcher: &mut Watcher, tenant: TenantId) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LONG, "timed out waiting for the removal");
        {
            let fd = watcher.fd().expect("inotify");
            let timeout = watcher.poll_interval().unwrap_or(LONG).try_into().expect("a short time");
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).expect("poll");
        }
        if watcher.drain().contains(&tenant) {
            return;
        }
    }
}

/// Waits until `condition` holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "timed out waiting: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
