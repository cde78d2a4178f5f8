//! How much a tenant with a limit holds at most.
//!
//! This process mounts the volume, so that it can ask the engine all the time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use slackwater::{Engine, Tunables};
use slackwater_backends::SystemClock;
use slackwater_fuse::mount::{MountOptions, unmount};
use slackwater_fuse::tenants::{TenantBy, TenantConfig, Tenants as Finder};
use slackwater_fuse::{MountedVolume, Pool, PoolOptions, Tenancy, UmountRequest};

use super::Amounts;
use super::client::{ClientArguments, Role};
use super::systems::Tenants;
use super::worker::Worker;
use crate::cgroups::Cgroup;
use crate::harness::rounds;
use crate::harness::threads::beside;
use crate::scratch::Scratch;
use crate::{interrupt, rig};

pub(super) const LIMIT_BYTES: u64 = 64 << 20;
pub(super) const WRITERS: [usize; 2] = [1, 64];
/// Size of all writers' files together: far more than the limit.
const BYTES: u64 = 512 << 20;
const SAMPLE: Duration = Duration::from_millis(1);
const DEADLINE: Duration = Duration::from_secs(60);

/// The most that a number of writers held.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Held {
    pub(super) writers: usize,
    pub(super) samples: u64,
    /// Dirty or not yet durable.
    pub(super) charged_bytes: u64,
    /// The same and the payload of parked writes.
    pub(super) with_parked_bytes: u64,
}

impl Held {
    /// The promise (P8): the limit, and one request of each thread.
    pub(super) fn promised_bytes(&self) -> u64 {
        LIMIT_BYTES + self.writers as u64 * u64::from(PoolOptions::default().max_write)
    }
}

/// Measures the limited tenant with each number of [`WRITERS`].
pub(super) fn measure(amounts: Amounts, home: &Scratch, tenants: &Tenants) -> Result<Vec<Held>> {
    let volume = Limited::new(amounts, home, &tenants.limited)?;
    let mut held: Vec<Held> = WRITERS.iter().map(|writers| Held { writers: *writers, ..Held::default() }).collect();
    rounds::run("limit", amounts.limit_turns, &[0, 1], |_, turn| {
        volume.observe(amounts.limit_time, &tenants.limited, &mut held[*turn])
    })?;
    volume.end()?;
    Ok(held)
}

/// A mounted volume with a limited tenant.
struct Limited {
    mounted: Arc<MountedVolume>,
    mountpoint: PathBuf,
    tenant: String,
    engine: Engine,
    _pool: Pool,
}

impl Limited {
    fn new(amounts: Amounts, home: &Scratch, limited: &Cgroup) -> Result<Self> {
        let (source, mountpoint) = (home.subdirectory("limited-source")?, home.subdirectory("limited")?);
        // Those of the command.
        let tunables = Tunables {
            dirty_percent: 20,
            volume_share_percent: 20,
            dirty_background_percent: 10,
            ..Tunables::default()
        };
        let engine = rig::engine(amounts.cache_bytes, tunables)?;
        let (sb, _) = rig::mount_dir(&engine, "limited", &source)?;
        let limits = [(limited.name().to_owned(), TenantConfig::limit(LIMIT_BYTES))].into();
        let finder = Finder::new(TenantBy::Cgroup, limits, Arc::new(SystemClock))?;
        let tenancy = Tenancy::new(finder, &engine).context("cannot start the thread that watches cgroups")?;
        let pool = Pool::new(PoolOptions::default())?;
        let mounted = MountedVolume::mount(&pool, sb, &mountpoint, &MountOptions::default(), Some(tenancy))?;
        let tenant = limited.name().to_str().context("a cgroup's name is text")?.to_owned();
        Ok(Self { mounted, mountpoint, tenant, engine, _pool: pool })
    }

    fn observe(&self, time: Duration, limited: &Cgroup, held: &mut Held) -> Result<()> {
        let threads = held.writers;
        let file = self.mountpoint.join(format!("of-{threads}"));
        let bytes = BYTES / threads as u64;
        let (_, found) = beside([|stop: &AtomicBool| Ok(self.sample(stop, held))], |_| {
            let work = ClientArguments { threads, ..ClientArguments::new(Role::Overwrite, file, bytes) };
            let worker = Worker::start(limited, &work)?;
            interrupt::sleep(time)?;
            worker.stop()
        })?;
        anyhow::ensure!(found == [true], "the engine has no tenant {}", self.tenant);
        Ok(self.mounted.sync()?)
    }

    /// Takes samples until `stop`, and returns whether the tenant was found.
    fn sample(&self, stop: &AtomicBool, held: &mut Held) -> bool {
        let mut tenant = None;
        while !stop.load(Ordering::Relaxed) {
            if tenant.is_none() {
                tenant = self.engine.memcgs().into_iter().find(|memcg| memcg.name() == self.tenant);
            }
            if let Some(tenant) = &tenant {
                // In this order a write that completes in between is not counted twice.
                let charged = tenant.charged_bytes();
                let with_parked = charged + self.mounted.parked_bytes() as u64;
                held.samples += 1;
                held.charged_bytes = held.charged_bytes.max(charged);
                held.with_parked_bytes = held.with_parked_bytes.max(with_parked);
            }
            std::thread::sleep(SAMPLE);
        }
        tenant.is_some()
    }

    fn end(self) -> Result<()> {
        let request = UmountRequest { deadline: Some(DEADLINE), ..UmountRequest::default() };
        self.mounted.umount(request, &|_| {}).context("cannot unmount the volume with the limited tenant")
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = unmount(&self.mountpoint, true); // fails if `end` has unmounted it
    }
}
