//! The subjects: an engine with a namespace, the running kernel with tmpfs in a mount namespace of its own, and a process that
//! measures the memory of an idle volume.
//!
//! Volumes come and go, and some stay mounted and are looked up. Memory is measured by a new process each time, so that no
//! memory that was freed before is used again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use slackwater::backend::{MemBackend, NewNode};
use slackwater::{Engine, Forms, Namespace, Tunables, UmountGrace, UmountOptions};
use slackwater_arena::ArenaConfig;
use slackwater_sync::rcu::{self, Wait, waits_during};

use super::lookups::{Pass, pass};
use super::{INJECTED, Way};
use crate::scratch::{Scratch, make_directory};
use crate::sys::in_own_mounts;
use crate::{proc, rig};

/// Nothing is cached.
const ARENA_BYTES: u64 = 8 << 20;
/// Volumes that stay mounted.
pub(super) const STANDING: usize = 16;

/// Mounting volumes and unmounting them.
pub(super) struct Cycle {
    pub(super) mount: Pass,
    pub(super) umount: Pass,
    /// Grace periods that the unmounting thread waited for, as the RCU layer logged them; unknown for the kernel.
    pub(super) grace_periods: Option<usize>,
}

pub(super) struct Testbed {
    engine: Engine,
    namespace: Namespace,
    /// Where the volumes that come and go are mounted, and their names.
    places: Vec<(PathBuf, String)>,
    /// Where the volumes that stay are mounted.
    standing: Vec<PathBuf>,
    /// Each of those, followed by a file in it.
    looked_up: Vec<PathBuf>,
}

impl Testbed {
    /// A namespace for up to `volumes` that come and go.
    pub(super) fn new(grace: UmountGrace, volumes: usize) -> Result<Self> {
        let mut rcu = rcu::Options::default();
        if grace == UmountGrace::Normal {
            rcu.coalesce = INJECTED;
        }
        let at_once = u32::try_from(volumes + STANDING).context("too many volumes")?;
        let arena = ArenaConfig::memfd(ARENA_BYTES).with_volumes(at_once);
        let engine = rig::engine_in(&arena, Tunables::default(), Forms { rcu, ..Forms::default() })?;
        let namespace = Namespace::new(&engine, grace);
        let places = (0..volumes).map(|number| (format!("/ram/{number}").into(), format!("ram-{number}"))).collect();
        let mut testbed = Self { engine, namespace, places, standing: Vec::new(), looked_up: Vec::new() };
        for number in 0..STANDING {
            let path = PathBuf::from(format!("/standing/{number}"));
            let volume = testbed
                .namespace
                .mount(&path, &format!("standing-{number}"), Arc::new(MemBackend::new()))?
                .super_block();
            volume.make(&volume.root()?, "file", NewNode::File, 0o600)?;
            testbed.looked_up.extend([path.clone(), path.join("file")]);
            testbed.standing.push(path);
        }
        Ok(testbed)
    }

    /// Mounts the first `volumes`, which stay idle.
    pub(super) fn mount(&self, volumes: usize, lookers: usize) -> Result<Pass> {
        pass(
            lookers,
            |nth| self.look(nth),
            volumes,
            |nth| {
                let (path, name) = &self.places[nth];
                drop(self.namespace.mount(path, name, Arc::new(MemBackend::new()))?);
                Ok(())
            },
        )
    }

    /// Mounts `volumes` and unmounts them, both while `lookers` look up the volumes that stay.
    pub(super) fn run(&self, way: Way, volumes: usize, lookers: usize) -> Result<Cycle> {
        let mount = self.mount(volumes, lookers)?;
        let (umount, waits) = waits_during(|| self.umount(way, volumes, lookers));
        let umount = umount?;
        let left = self.engine.volumes().len() - STANDING;
        ensure!(left == 0, "{left} volumes are still mounted");
        let grace_periods = waits.iter().filter(|wait| **wait != Wait::Barrier).count();
        Ok(Cycle { mount, umount, grace_periods: Some(grace_periods) })
    }

    pub(super) fn umount(&self, way: Way, volumes: usize, lookers: usize) -> Result<Pass> {
        let look = |nth| self.look(nth);
        let options = UmountOptions::default();
        match way {
            Way::OneByOne => {
                pass(lookers, look, volumes, |nth| Ok(self.namespace.umount(&self.places[nth].0, options)?))
            }
            Way::AtOnce => {
                let paths: Vec<&PathBuf> = self.places[..volumes].iter().map(|(path, _)| path).collect();
                pass(lookers, look, 1, |_| {
                    Ok(self.namespace.umount_all(&paths, options).into_iter().collect::<Result<_, _>>()?)
                })
            }
        }
    }

    /// Looks up a volume, or a file in one.
    fn look(&self, nth: usize) -> Result<()> {
        let path = &self.looked_up[nth % self.looked_up.len()];
        if nth.is_multiple_of(2) {
            drop(self.namespace.resolve(path)?);
        } else {
            drop(self.namespace.open(path)?);
        }
        Ok(())
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for result in self.namespace.umount_all(&self.standing, UmountOptions::default()) {
            if let Err(error) = result {
                eprintln!("cannot unmount: {error}");
            }
        }
    }
}

/// A directory for each volume.
pub(super) struct Kernel(PathBuf);

impl Kernel {
    /// Makes the directories and tries a cycle.
    ///
    /// # Errors
    /// The process is not root.
    pub(super) fn new(home: &Scratch, volumes: usize) -> Result<Self> {
        anyhow::ensure!(rustix::process::geteuid().is_root(), "only root may mount");
        let kernel = Self(home.subdirectory("tmpfs")?);
        for name in (0..volumes).map(name).chain((0..STANDING).map(standing_name)) {
            make_directory(&kernel.0.join(name))?;
        }
        kernel.run(1, 0)?;
        Ok(kernel)
    }

    /// Mounts `volumes` and unmounts them, both while `lookers` look up other mounts.
    pub(super) fn run(&self, volumes: usize, lookers: usize) -> Result<Cycle> {
        in_own_mounts(|| {
            // The thread has its own working directory, so paths are as short as those in the engine.
            env::set_current_dir(&self.0).context("cannot change to the directory of the mounts")?;
            mount_and_umount(volumes, lookers)
        })
    }
}

fn mount_and_umount(volumes: usize, lookers: usize) -> Result<Cycle> {
    let places: Vec<PathBuf> = (0..volumes).map(name).collect();
    let standing: Vec<PathBuf> = (0..STANDING).map(standing_name).collect();
    let mut looked_up = Vec::new();
    for path in &standing {
        mount_tmpfs(path)?;
        let file = path.join("file");
        fs::File::create_new(&file)?;
        looked_up.extend([path.clone(), file]);
    }
    // As in the engine: a volume, or a file in one.
    let look = |nth: usize| {
        let path = &looked_up[nth % looked_up.len()];
        if nth.is_multiple_of(2) {
            fs::metadata(path)?;
        } else {
            fs::File::open(path)?;
        }
        Ok(())
    };
    let mount = pass(lookers, look, volumes, |nth| mount_tmpfs(&places[nth]))?;
    let umount = pass(lookers, look, volumes, |nth| unmount_tmpfs(&places[nth]))?;
    // Not measured. A child that another thread has just forked may have copies of files that were looked up.
    let detach = |path: &PathBuf| unmount(path, UnmountFlags::DETACH).context("cannot detach a tmpfs");
    standing.iter().try_for_each(detach)?;
    Ok(Cycle { mount, umount, grace_periods: None })
}

fn name(number: usize) -> PathBuf {
    number.to_string().into()
}

fn standing_name(number: usize) -> PathBuf {
    format!("standing-{number}").into()
}

fn mount_tmpfs(path: &Path) -> Result<()> {
    mount("none", path, "tmpfs", MountFlags::empty(), None).context("cannot mount a tmpfs")
}

fn unmount_tmpfs(path: &Path) -> Result<()> {
    unmount(path, UnmountFlags::empty()).context("cannot unmount a tmpfs")
}

/// The hidden command.
const COMMAND: &str = "idle-volumes";

#[derive(Args, Debug)]
pub(crate) struct IdleVolumesArguments {
    /// How many
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    volumes: u32,
}

/// Prints the bytes of each volume with so many mounted.
pub(crate) fn run_idle_volumes(arguments: &IdleVolumesArguments) -> Result<()> {
    println!("{}", bytes_per_volume(arguments.volumes as usize)?);
    Ok(())
}

/// The same, from a new process.
pub(super) fn ask(volumes: usize) -> Result<f64> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(own);
    let output = command.args([COMMAND, &volumes.to_string()]).stdin(Stdio::null()).output();
    let output = output.context("cannot start a process")?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    String::from_utf8_lossy(&output.stdout).trim().parse().context("the process printed no number")
}

/// Measured in this process.
pub(super) fn bytes_per_volume(volumes: usize) -> Result<f64> {
    // Without the arena, which is a file.
    let anonymous_bytes = || proc::memory(std::process::id(), "RssAnon");
    let testbed = Testbed::new(UmountGrace::Expedited, volumes)?;
    // So that memory which is allocated once and stays is not counted.
    testbed.run(Way::AtOnce, 1, 0)?;
    let before = anonymous_bytes()?;
    testbed.mount(volumes, 0)?;
    let more = anonymous_bytes()?.saturating_sub(before);
    testbed.umount(Way::AtOnce, volumes, 0)?;
    Ok(more as f64 / volumes as f64)
}
