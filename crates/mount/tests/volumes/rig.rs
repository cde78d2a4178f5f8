//! Volumes over directories, and the threads and descriptors of their process.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use slackwater::backend::Backend;
use slackwater::{Engine, Tunables};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{DirBackend, SystemClock};
use slackwater_fuse::mount::{MountOptions, unmount};
use slackwater_fuse::{Pool, PoolOptions};
use slackwater_mount::{MountedError, MountedVolume, UmountRequest};
use slackwater_testkit::{Fault, FaultControl};

use crate::programs::LONG;

/// An engine and a pool, and a directory for their volumes.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) pool: Pool,
    pub(crate) home: PathBuf,
    last: AtomicUsize,
}

impl Rig {
    pub(crate) fn new(arena_bytes: u64) -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let home = Path::new("/tmp").join(format!("slackwater-volumes-{}-{number}", std::process::id()));
        fs::create_dir(&home).unwrap();
        let arena = Arena::create(&ArenaConfig::memfd(arena_bytes).with_volumes(2000)).unwrap();
        let engine = Engine::new(arena, Arc::new(SystemClock), Tunables::default());
        Self { engine, pool: Pool::new(PoolOptions::default()).unwrap(), home, last: AtomicUsize::new(0) }
    }

    /// A volume over a new directory.
    pub(crate) fn mount(&self) -> TestVolume {
        let place = self.place();
        let source = place.join("source");
        fs::create_dir(&source).unwrap();
        let backend = Arc::new(DirBackend::open(&source).unwrap());
        self.mount_at(place, backend)
    }

    /// A volume of `backend`.
    pub(crate) fn mount_on(&self, backend: Arc<dyn Backend>) -> TestVolume {
        self.mount_at(self.place(), backend)
    }

    fn place(&self) -> PathBuf {
        let place = self.home.join(self.last.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir(&place).unwrap();
        place
    }

    fn mount_at(&self, place: PathBuf, backend: Arc<dyn Backend>) -> TestVolume {
        let (backend, faults) = Fault::new(backend);
        let path = place.join("mount");
        fs::create_dir(&path).unwrap();
        let sb = self.engine.mount(&place.to_string_lossy(), Arc::new(backend)).unwrap();
        let mounted = MountedVolume::mount(&self.pool, sb, &path, &MountOptions::default(), None);
        let mounted = mounted.expect("these tests mount FUSE file systems: run them as root, with /dev/fuse");
        TestVolume { path, faults, mounted, place }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The volumes are already unmounted; a failed test may have left a file.
        for left in fs::read_dir(&self.home).into_iter().flatten().flatten() {
            let _ = fs::remove_file(left.path());
        }
        let _ = fs::remove_dir(&self.home);
    }
}

/// A volume of a rig.
pub(crate) struct TestVolume {
    /// The mount point.
    pub(crate) path: PathBuf,
    pub(crate) faults: FaultControl,
    pub(crate) mounted: Arc<MountedVolume>,
    place: PathBuf,
}

impl TestVolume {
    /// The path of a file in the mount.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of a file in the source.
    pub(crate) fn stored(&self, name: &str) -> PathBuf {
        self.place.join("source").join(name)
    }

    /// Releases all held calls, and stops holding later ones.
    pub(crate) fn let_through(&self) {
        self.faults.clear();
        self.faults.release_all();
    }

    /// Unmounts, and retries while it is busy: a child that another thread is about to start shares our descriptors for
    /// a moment.
    pub(crate) fn umount(&self) -> Result<(), MountedError> {
        let (start, request) = (Instant::now(), UmountRequest { deadline: Some(LONG), ..UmountRequest::default() });
        loop {
            let result = self.mounted.umount(request, &|_| {});
            if !matches!(result, Err(MountedError::Busy { .. })) || start.elapsed() > LONG {
                return result;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for TestVolume {
    fn drop(&mut self) {
        self.let_through();
        // Already unmounted, unless the test failed.
        let _ = unmount(&self.path, true);
        let _ = fs::remove_dir_all(self.place.join("source"));
        let _ = fs::remove_dir(&self.path);
        let _ = fs::remove_dir(&self.place);
    }
}

/// Number of threads of this process, by name.
pub(crate) fn threads() -> BTreeMap<String, usize> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        // A thread that has just ended has no name.
        if let Ok(name) = fs::read_to_string(task.unwrap().path().join("comm")) {
            *threads.entry(name.trim_end().to_owned()).or_default() += 1;
        }
    }
    threads
}

/// Number of descriptors of this process.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
