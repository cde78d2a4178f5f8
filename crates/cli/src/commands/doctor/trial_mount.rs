//! A short trial mount of an empty volume: it shows which features this kernel has.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::MemBackend;
use slackwater::{Engine, Tunables};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::SystemClock;
use slackwater_control::exit::Failure;
use slackwater_control::spec::VolumeSpec;
use slackwater_fuse::MissingFeature;
use slackwater_mount::UmountRequest;

use crate::volume::mounting;

/// The smallest arena that works.
const ARENA_BYTES: u64 = 8 << 20;
/// The mount is empty, and no other process can use it.
const DEADLINE: Duration = Duration::from_secs(10);

/// Findings of a trial mount.
pub(crate) struct Trial {
    pub(crate) missing: Vec<MissingFeature>,
    /// Why requests cannot come over io_uring.
    pub(crate) no_uring: Option<String>,
}

/// Mounts, and returns the findings. Leaves nothing behind.
///
/// # Errors
/// Nothing can be mounted here.
pub(crate) fn run() -> Result<Trial, Failure> {
    let cannot = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot try a mount: {error}"));
    let place = TempDir::new().map_err(|error| cannot(&error))?;
    let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).map_err(|error| cannot(&error))?;
    let engine = Engine::new(arena, Arc::new(SystemClock), Tunables::default());
    let volume = engine.mount("trial", Arc::new(MemBackend::new())).map_err(|error| cannot(&error))?;
    let options = VolumeSpec { nosuid: true, nodev: true, noexec: true, ..VolumeSpec::default() };
    let pool = mounting::pool(false)?;
    let mounted = mounting::mount(&pool, &volume, &place.0, &place.0, &options, None, None)?;
    let no_uring = mounted.rings().err().map(|error| error.to_string());
    let trial = Trial { missing: mounted.missing_features().to_vec(), no_uring };
    let request = UmountRequest { deadline: Some(DEADLINE), stall: None, force: true, discard: false };
    mounted.umount(request, &|_| {}).map_err(|error| mounting::failed_at(&place.0, &error))?;
    Ok(trial)
}

/// A new directory, removed on drop.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("slackwater-trial-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
