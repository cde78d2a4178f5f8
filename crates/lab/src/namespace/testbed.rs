//! An engine with a namespace: volumes in memory that come and go there, and some that stay mounted and are looked up.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use slackwater::backend::{MemBackend, NewNode};
use slackwater::{Engine, Forms, Namespace, Tunables, UmountGrace, UmountOptions};
use slackwater_arena::ArenaConfig;
use slackwater_sync::rcu::{self, Wait, waits_during};

use super::axes::{INJECTED, Way};
use super::lookups::{Pass, pass};
use crate::rig;

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
