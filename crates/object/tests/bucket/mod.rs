//! A volume on a store in memory, and the processes that open it one after the other.
//!
//! Each process has its own fault layer. A process that is dead stays cut off: what its threads still do never reaches
//! the store.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use slackwater_object::layers::{Fault, Layered, Patience, Rule};
use slackwater_object::{Location, ObjectBackend, OpenOptions, VolumeError};

/// Seconds of a real store are fractions of one here.
const PATIENCE: Patience =
    Patience { attempt: Duration::from_millis(300), min_bytes_per_s: 1 << 20, request: Duration::from_secs(2) };

/// The store of a volume, and what survives a process beside it.
pub(crate) struct Bucket {
    pub(crate) store: Arc<InMemory>,
    /// On tmpfs: it survives the process and not the machine.
    log_dir: PathBuf,
    patience: Patience,
}

impl Bucket {
    /// An empty volume.
    pub(crate) fn new() -> Self {
        Self::patient(PATIENCE)
    }

    /// An empty volume. A request is given up, and repeated, at these limits.
    pub(crate) fn patient(patience: Patience) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log_dir = PathBuf::from(format!("/dev/shm/slackwater-bucket-{}-{number}", std::process::id()));
        fs::create_dir(&log_dir).unwrap();
        let bucket = Self { store: Arc::new(InMemory::new()), log_dir, patience };
        ObjectBackend::mkfs(&bucket.location(&Arc::new(Fault::new()))).unwrap();
        bucket
    }

    /// The volume behind the faults of a process.
    pub(crate) fn location(&self, fault: &Arc<Fault>) -> Location {
        let (store, fault) = (self.store.clone(), fault.clone());
        let layer = move |_| -> Arc<dyn ObjectStore> { Arc::new(Layered::new(fault.clone(), store.clone())) };
        Location::parse("memory:bucket").unwrap().layered(layer).patient(self.patience)
    }

    /// Opens the volume, as a new process does.
    pub(crate) fn open(&self, fault: &Arc<Fault>) -> Result<Arc<ObjectBackend>, VolumeError> {
        // The process before is dead, and only looks alive because it was this one.
        let options = OpenOptions { log_dir: Some(self.log_dir.clone()), take_over: true, ..OpenOptions::default() };
        ObjectBackend::open(&self.location(fault), &options).map(Arc::new)
    }

    /// Opens the volume as another machine does, which takes it over and has no local log.
    pub(crate) fn open_elsewhere(&self) -> Arc<ObjectBackend> {
        let options = OpenOptions { take_over: true, ..OpenOptions::default() };
        Arc::new(ObjectBackend::open(&self.location(&Arc::new(Fault::new())), &options).unwrap())
    }

    /// The machine crashed: nothing but the store is left.
    pub(crate) fn lose_memory(&self) {
        for file in fs::read_dir(&self.log_dir).unwrap() {
            // A dying process may remove it at the same moment.
            if let Err(error) = fs::remove_file(file.unwrap().path()) {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            }
        }
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.log_dir);
    }
}

/// The process of these faults is dead: nothing of it reaches the store from here on.
pub(crate) fn kill(fault: &Fault) {
    fault.clear();
    fault.add(Rule::crash_before());
}
