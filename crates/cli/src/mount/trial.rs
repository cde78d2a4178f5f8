//! A mount of nothing, for a moment: what it tells of this machine, nobody knows before.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::MemBackend;
use slackwater::{Engine, Tunables};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::SystemClock;

use crate::control::protocol::VolumeOptions;
use crate::exit::Failure;
use crate::mount::door::{self, Door, MissingFeature, Umount};

/// The smallest that works.
const ARENA_BYTES: u64 = 8 << 20;
/// Nobody else can be in it, and it holds nothing.
const DEADLINE: Duration = Duration::from_secs(10);

/// Mounts, and returns what this kernel does not have. Nothing stays behind.
///
/// # Errors
/// Nothing can be mounted here.
pub(crate) fn missing_features() -> Result<Vec<MissingFeature>, Failure> {
    let cannot = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot try a mount: {error}"));
    let place = Place::new().map_err(|error| cannot(&error))?;
    let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).map_err(|error| cannot(&error))?;
    let engine = Engine::new(arena, Arc::new(SystemClock), Tunables::default());
    let volume = engine.mount("trial", Arc::new(MemBackend::new())).map_err(|error| cannot(&error))?;
    let options = VolumeOptions { nosuid: true, nodev: true, noexec: true, ..VolumeOptions::default() };
    let door = Door::open(&door::pool()?, &volume, &place.0, &place.0, options, None)?;
    let missing = door.missing().to_vec();
    door.umount(Umount { deadline: Some(DEADLINE), stall: None, force: true, discard: false })?;
    Ok(missing)
}

/// A directory of our own, removed with this.
struct Place(PathBuf);

impl Place {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("slackwater-trial-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
