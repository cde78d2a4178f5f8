//! The daemon of the node, its pods, and the programs in them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::sync;

use super::Amounts;
use crate::cgroups::{Cgroup, Hierarchy};
use crate::daemon::{Daemon, Volume};
use crate::files::make_file;
use crate::fuse::slackwater;
use crate::interrupt;
use crate::isolation::{ClientArguments, Role, Worker};
use crate::programs;
use crate::scratch::Scratch;

/// The limit of each pod.
const LIMIT: &str = "64MiB";
/// The period of a victim, and the size of its file.
const PERIOD: Duration = Duration::from_millis(200);
const VICTIM_FILE_BYTES: u64 = 4 << 20;
/// The file that a pod writes.
const FILE: &str = "file";
/// The file that a program leaves unsynced before an unmount.
const LAST: &str = "last";

/// A volume and the container that uses it.
struct Pod {
    volume: Volume,
    /// The container's cgroup, dropped before the cgroup of the pod, which is above it.
    container: Cgroup,
    /// The pod's cgroup.
    cgroup: Cgroup,
}

pub(super) struct Node {
    daemon: Daemon,
    /// The pods, of which the last one is the hog.
    pods: Vec<Pod>,
    hog_bytes: u64,
    /// A file in no volume, on the same file system, and the cgroup of its writer.
    outside: (PathBuf, Cgroup),
    /// The cgroups above those of the pods, innermost first.
    _above: Vec<Cgroup>,
}

impl Node {
    /// Makes the files and the cgroups, and mounts all volumes.
    pub(super) fn new(amounts: Amounts, home: &Scratch) -> Result<Self> {
        let folder = home.subdirectory("pods")?;
        let root = Hierarchy::of_tenants().context("each pod needs a cgroup of its own")?.top("node")?;
        let kubepods = root.child("kubepods.slice")?;
        let burstable = kubepods.child("kubepods-burstable.slice")?;
        let pod = |number: usize| -> Result<Pod> {
            let pod =
                burstable.child(&format!("kubepods-burstable-pod{number:08x}_0000_4000_8000_0123456789ab.slice"))?;
            let container = pod.child(&format!("cri-containerd-{number:064x}.scope"))?;
            let volume = Volume::make(&folder, format!("pvc-{number}"))?;
            let bytes = if number + 1 == amounts.pods { amounts.hog_bytes } else { VICTIM_FILE_BYTES };
            make_file(&volume.source.join(FILE), bytes)?;
            make_file(&volume.source.join(LAST), 64 << 10)?;
            Ok(Pod { volume, container, cgroup: pod })
        };
        let pods = (0..amounts.pods).map(pod).collect::<Result<Vec<_>>>()?;
        let mut config = format!("cache = \"{}MiB\"\ntenant-by = \"cgroup\"\n", amounts.cache_mib);
        for Pod { volume, cgroup, .. } in &pods {
            // TOML understands the quoting of JSON.
            let name = serde_json::json!(cgroup.name());
            config += &format!("[tenants.{name}]\nlimit = \"{LIMIT}\"\n{}", volume.table());
        }
        let daemon = Daemon::start(&slackwater()?, &config, &["--keep"], "TERM")?;
        let outside = (home.path().join("outside"), root.child("system.slice")?);
        make_file(&outside.0, amounts.hog_bytes)?;
        Ok(Self { daemon, pods, hog_bytes: amounts.hog_bytes, outside, _above: vec![burstable, kubepods, root] })
    }

    /// The numbers of all pods but the hog.
    pub(super) fn victims(&self) -> std::ops::Range<usize> {
        0..self.pods.len() - 1
    }

    /// Lets another process of the same program take the daemon over.
    pub(super) fn upgrade(&self) -> Result<()> {
        self.daemon.upgrade(&self.pods[0].volume)
    }

    /// Lets a program of the pod write, unmounts its volume, and mounts it again. Returns the milliseconds of the unmount.
    pub(super) fn unmount_and_mount(&self, victim: usize) -> Result<f64> {
        let Pod { volume, container, .. } = &self.pods[victim];
        programs::write_unsynced(container, &volume.mountpoint.join(LAST))?;
        let start = Instant::now();
        self.daemon.umount(volume)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        self.daemon.mount(volume)?;
        Ok(ms)
    }

    /// Waits until everything is written back, so that the next turn finds an idle disk.
    pub(super) fn settle(&self) -> Result<()> {
        self.pods.iter().try_for_each(|pod| self.daemon.sync(&pod.volume))?;
        sync();
        interrupt::check()
    }

    pub(super) fn end(self) -> Result<()> {
        self.daemon.end().map(drop)
    }
}

/// The programs that write in pods.
#[derive(Default)]
pub(super) struct Writers {
    /// The hog, or the program outside.
    hog: Option<Worker>,
    /// The victims, by the number of the pod.
    victims: Vec<Option<Worker>>,
    written: Written,
}

/// Reports of the programs.
#[derive(Default)]
pub(super) struct Written {
    /// Milliseconds of each write and fsync of a victim.
    pub(super) ms: Vec<f64>,
    /// MB/s of the hog, if there was one.
    pub(super) mb_per_s: Option<f64>,
    /// Errors of programs that failed.
    pub(super) errors: Vec<String>,
}

impl Writers {
    pub(super) fn start_hog(&mut self, node: &Node) -> Result<()> {
        let Some(Pod { volume, container, .. }) = node.pods.last() else { return Ok(()) };
        let work = ClientArguments::new(Role::Overwrite, volume.mountpoint.join(FILE), node.hog_bytes);
        self.hog = Some(Worker::start(container, &work)?);
        Ok(())
    }

    /// Starts a program that overwrites a file of the disk itself.
    pub(super) fn start_outside(&mut self, node: &Node) -> Result<()> {
        let (file, cgroup) = &node.outside;
        let work = ClientArguments::new(Role::Overwrite, file.clone(), node.hog_bytes);
        self.hog = Some(Worker::start(cgroup, &work)?);
        Ok(())
    }

    /// Starts them one after the other, so that their writes are spread over the period.
    pub(super) fn start_victims(&mut self, node: &Node) -> Result<()> {
        self.victims.resize_with(node.pods.len(), || None);
        for victim in node.victims() {
            let next = Instant::now() + PERIOD / node.pods.len() as u32;
            self.start_victim(node, victim)?;
            interrupt::sleep(next.saturating_duration_since(Instant::now()))?;
        }
        Ok(())
    }

    pub(super) fn start_victim(&mut self, node: &Node, victim: usize) -> Result<()> {
        let Pod { volume, container, .. } = &node.pods[victim];
        let work = ClientArguments::new(Role::Sync, volume.mountpoint.join(FILE), VICTIM_FILE_BYTES);
        let work = ClientArguments { period_ms: PERIOD.as_millis() as u64, ..work };
        self.victims[victim] = Some(Worker::start(container, &work)?);
        Ok(())
    }

    /// Stops the program of a victim, if there is one. Returns whether there was.
    pub(super) fn stop_victim(&mut self, victim: usize) -> Result<bool> {
        let Some(worker) = self.victims.get_mut(victim).and_then(Option::take) else { return Ok(false) };
        self.written.ms.extend(worker.stop()?.all("whole_ms"));
        Ok(true)
    }

    /// Stops all of them. The rate of the hog counts from `warm_up` after its start.
    pub(super) fn stop(mut self, warm_up: Duration) -> Written {
        for victim in 0..self.victims.len() {
            if let Err(error) = self.stop_victim(victim) {
                self.written.errors.push(format!("{error:#}"));
            }
        }
        match self.hog.map(|hog| hog.stop()?.rate(warm_up)) {
            Some(Ok(rate)) => self.written.mb_per_s = Some(rate),
            Some(Err(error)) => self.written.errors.push(format!("{error:#}")),
            None => {}
        }
        self.written
    }
}
