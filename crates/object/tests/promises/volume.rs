//! An engine with one object volume.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use slackwater::{Engine, File, SuperBlock, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::SystemClock;
use slackwater_object::ObjectBackend;
use slackwater_object::layers::{Fault, Patience};

use crate::bucket::{Bucket, kill};
use crate::rig::{self, ARENA_BYTES, within};

const NAME: &str = "object";

/// A process with a mounted object volume.
pub(crate) struct Volume {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) fault: Arc<Fault>,
    pub(crate) backend: Arc<ObjectBackend>,
    pub(crate) engine: Engine,
    pub(crate) volume: Arc<SuperBlock>,
}

/// Data becomes old, and failures are tried again, within milliseconds.
pub(crate) fn fast() -> Tunables {
    rig::busy()
}

/// Nothing is written back by age within a test.
pub(crate) fn slow() -> Tunables {
    Tunables {
        dirty_writeback: Duration::from_secs(3600),
        dirty_expire: Duration::from_secs(3600),
        commit_interval: Duration::from_secs(3600),
        ..Tunables::default()
    }
}

impl Volume {
    /// A new volume.
    pub(crate) fn new(tunables: Tunables) -> Self {
        Self::over(Arc::new(Bucket::new()), tunables)
    }

    /// A new volume on whose store a request that hangs does so for half a minute, unless the test releases it.
    pub(crate) fn patient(tunables: Tunables) -> Self {
        Self::over(Arc::new(Bucket::patient(Patience::LONG)), tunables)
    }

    /// A volume over `bucket`, with an empty cache.
    fn over(bucket: Arc<Bucket>, tunables: Tunables) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap();
        Self::mount(bucket, Engine::new(arena, Arc::new(SystemClock), tunables))
    }

    fn mount(bucket: Arc<Bucket>, engine: Engine) -> Self {
        let fault = Arc::new(Fault::new());
        let backend = bucket.open(&fault).unwrap();
        let volume = engine.mount(NAME, backend.clone()).unwrap();
        Self { bucket, fault, backend, engine, volume }
    }

    /// Another volume of the same engine.
    pub(crate) fn beside(&self, name: &str) -> (Arc<Bucket>, Arc<Fault>, Arc<SuperBlock>) {
        let (bucket, fault) = (Arc::new(Bucket::new()), Arc::new(Fault::new()));
        let volume = self.engine.mount(name, bucket.open(&fault).unwrap()).unwrap();
        (bucket, fault, volume)
    }

    pub(crate) fn create(&self, name: &str) -> File {
        rig::create(&self.volume, name)
    }

    pub(crate) fn open(&self, name: &str) -> File {
        rig::open(&self.volume, name)
    }

    /// Waits until `requests` of this process hang.
    pub(crate) fn wait_held(&self, requests: u64) {
        let fault = self.fault.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        within("a request that hangs", move || runtime.block_on(fault.held(requests)));
    }

    /// The bytes of a file; `None` if it does not exist.
    pub(crate) fn content(&self, name: &str) -> Option<Vec<u8>> {
        let inode = self.volume.walk(name).ok()?;
        Some(rig::read_all(&File::open(&inode).unwrap()))
    }

    /// The machine crashes: the next process finds the store alone.
    pub(crate) fn crash(self) -> Self {
        kill(&self.fault);
        let bucket = self.bucket.clone();
        drop(self);
        bucket.lose_memory();
        Self::over(bucket, slow())
    }

    /// The process is killed: the next one finds its arena and its local log.
    pub(crate) fn kill(self) -> Self {
        let left: OwnedFd = rig::snapshot(&self.engine);
        kill(&self.fault);
        let bucket = self.bucket.clone();
        drop(self);
        let (arena, survivors) = Arena::open_fd(left).unwrap();
        Self::mount(bucket, Engine::recover(arena, survivors, Arc::new(SystemClock), slow()))
    }

    /// Unmounts, and ends the process in the ordinary way.
    #[track_caller]
    pub(crate) fn end(self) -> Arc<Bucket> {
        let Self { bucket, fault, backend, engine, volume } = self;
        within("an unmount", {
            let volume = volume.clone();
            move || volume.umount(UmountOptions::default())
        })
        .unwrap();
        rig::assert_idle(&engine, &volume);
        drop((engine, volume));
        backend.close().unwrap();
        drop(fault);
        bucket
    }

    /// A new process after [`Volume::end`].
    pub(crate) fn again(bucket: Arc<Bucket>) -> Self {
        Self::over(bucket, slow())
    }
}
