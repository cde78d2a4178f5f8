//! Engines with volumes.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use slackwater::backend::{Backend, NewNode};
use slackwater::{Engine, File, Forms, SuperBlock, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig, Survivors};
use slackwater_backends::{DirBackend, SystemClock};

/// An engine with an arena of `arena_bytes` in memory, on the machine's clock.
pub(crate) fn engine(arena_bytes: u64, tunables: Tunables) -> Result<Engine> {
    engine_with_forms(arena_bytes, tunables, Forms::default())
}

/// The same with other forms of its mechanisms.
pub(crate) fn engine_with_forms(arena_bytes: u64, tunables: Tunables, forms: Forms) -> Result<Engine> {
    engine_in(&ArenaConfig::memfd(arena_bytes), tunables, forms)
}

/// The same with more settings of the arena.
pub(crate) fn engine_in(config: &ArenaConfig, tunables: Tunables, forms: Forms) -> Result<Engine> {
    let arena = Arena::create(config)
        .with_context(|| format!("cannot create a cache of {}", slackwater_host::size::text(config.frames_bytes)))?;
    Ok(Engine::with_forms(arena, Survivors::default(), Arc::new(SystemClock), tunables, forms))
}

/// Mounts the directory `path` as `name`.
pub(crate) fn mount_dir(engine: &Engine, name: &str, path: &Path) -> Result<(Arc<SuperBlock>, Arc<DirBackend>)> {
    let backend = Arc::new(DirBackend::open(path)?);
    let volume = mount(engine, name, backend.clone())?;
    Ok((volume, backend))
}

/// Mounts `backend` as `name`.
pub(crate) fn mount(engine: &Engine, name: &str, backend: Arc<dyn Backend>) -> Result<Arc<SuperBlock>> {
    engine.mount(name, backend).with_context(|| format!("cannot mount {name}"))
}

/// A new file in the root of `volume`, open.
pub(crate) fn new_file(volume: &Arc<SuperBlock>, name: &str) -> Result<File> {
    let inode = volume.make(&volume.root()?, name, NewNode::File, 0o600)?;
    Ok(File::open(&inode)?)
}

/// Unmounts a volume and discards its dirty data.
pub(crate) fn discard(volume: &Arc<SuperBlock>) -> Result<()> {
    volume.umount(UmountOptions { discard: true, ..UmountOptions::default() }).context("cannot unmount")
}

/// The same where a failure cannot be returned.
pub(crate) fn discard_or_say(volume: &Arc<SuperBlock>) {
    if let Err(error) = discard(volume) {
        eprintln!("{error:#}");
    }
}

/// Raises the limit of open files as far as permitted: a dirty file keeps descriptors open.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails and there are too few, the engine reports it.
    let _ = setrlimit(Resource::Nofile, limit);
}
