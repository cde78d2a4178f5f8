//! The file that holds the cache, and the data of a dead predecessor in it.
//!
//! # Invariants
//! F1. A file is opened only if it is ours: a regular file of this user that no other user may read, reached without a
//!     symbolic link.
//! F2. A file with data is removed after that data is durable in the source, and only by this module. A file that
//!     cannot be parsed is left alone, with an error. One with damaged records keeps a second name ([`damaged_arena`]).
//! F3. By default it is in a directory that is closed to other users ([`private_dir`]): its name is predictable, and in
//!     `/dev/shm` every user may create files.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use slackwater::backend::Backend;
use slackwater::{Engine, Rescued, SuperBlock, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig, ArenaError, Filler, SurvivingVolume, Survivors};
use slackwater_backends::SystemClock;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::private_dir;
use slackwater_control::output::shell;
use slackwater_control::spec::values::Size;
use slackwater_host::MemoryLimits;
use slackwater_host::Printable as _;
use slackwater_host::memory_limits;
use slackwater_host::size;

use crate::progress::Meter;
use crate::registry::Entry;
use crate::source::directory::ON_A_MOUNT;
use crate::source::opened::Opened;
use crate::volume::damaged_arena;

/// In memory on every Linux.
const SHARED_MEMORY: &str = "/dev/shm";

/// The file that `--arena` or a configuration names.
///
/// # Errors
/// The path is a directory. Without this check the error would come only when the mount is registered.
pub(crate) fn named(path: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(path).map_err(|error| Failure::usage(format!("--arena: {error}")))?;
    if path.is_dir() {
        let example = path.join("slackwater.arena");
        return Err(Failure::usage(format!("--arena: {} is a directory", path.printable()))
            .advise(format!("name a file in it, such as {}", example.printable())));
    }
    Ok(path)
}

/// A smaller cache leaves no frames beside those that requests land in.
const CACHE_BYTES_MIN: u64 = 16 << 20;

/// The file for `name`, a source or a daemon (F3). A file that an earlier version left directly in `/dev/shm` is used
/// as long as it exists.
///
/// # Errors
/// The directory of the file cannot be created.
pub(crate) fn default_path(name: &str) -> Result<PathBuf, Failure> {
    let shared = Path::new(SHARED_MEMORY);
    let earlier = shared.join(format!("slackwater-{}-{name}.arena", geteuid().as_raw()));
    if fs::symlink_metadata(&earlier).is_ok_and(|status| is_ours(&status)) {
        return Ok(earlier);
    }
    let folder = private_dir::within(shared).map_err(|error| {
        Failure::failed(format!("cannot create a directory for the cache in {SHARED_MEMORY}: {error}"))
            .advise("name a file on another tmpfs with --arena FILE")
    })?;
    Ok(folder.join(format!("{name}.arena")))
}

/// Refuses a cache size that is too small to mount with.
///
/// # Errors
/// The size is below [`CACHE_BYTES_MIN`].
pub(crate) fn check_cache_bytes(bytes: Option<Size>) -> Result<(), Failure> {
    match bytes.filter(|bytes| bytes.0 < CACHE_BYTES_MIN) {
        Some(Size(bytes)) => Err(Failure::usage(format!("a cache of {} is too small", size::text(bytes)))
            .advise(format!("use at least {}", size::text(CACHE_BYTES_MIN)))),
        None => Ok(()),
    }
}

/// The size of the cache in the file `path`.
pub(crate) fn cache_bytes(size: Option<Size>, path: &Path) -> u64 {
    size.map_or_else(|| default_cache_bytes(path), |size| size.0)
}

/// The default size of a cache: an eighth of the memory, but at most half of the available memory and of our cgroup's
/// limit, and at most what fits into the file system of `path`.
fn default_cache_bytes(path: &Path) -> u64 {
    let limits = memory_limits();
    let space = path.parent().and_then(|folder| rustix::fs::statvfs(folder).ok());
    // The tables come on top, and other programs need space too.
    let space = space.map(|space| space.f_bavail.saturating_mul(space.f_frsize) / 4 * 3);
    let halves = [limits.available_bytes, limits.cgroup_bytes].map(|bytes| bytes.map(|bytes| bytes / 2));
    let parts = [limits.machine_bytes.map(|bytes| bytes / 8), halves[0], halves[1], space];
    let least = parts.into_iter().flatten().min().unwrap_or(256 << 20);
    (least >> 20 << 20).max(CACHE_BYTES_MIN)
}

/// After this time the progress is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// The contents of an arena of a dead process.
pub(crate) struct Left {
    arena: Arc<Arena>,
    survivors: Survivors,
    pub(crate) bytes: u64,
}

impl Left {
    /// Whether the arena has data of any file.
    pub(crate) fn has_data(&self) -> bool {
        self.survivors.volumes.iter().any(|volume| !volume.inodes.is_empty())
    }

    /// Inode numbers of the files that the arena has data of.
    pub(crate) fn inodes(&self) -> HashSet<u64> {
        self.survivors.volumes.iter().flat_map(|volume| &volume.inodes).map(|inode| inode.record.ino).collect()
    }

    /// The data, by volume.
    pub(crate) fn survivors(&self) -> &Survivors {
        &self.survivors
    }

    /// An engine that goes on with the data.
    pub(crate) fn recover(self, clock: Arc<SystemClock>, tunables: Tunables) -> Engine {
        Engine::recover(self.arena, self.survivors, clock, tunables)
    }
}

/// Opens what a predecessor left that has passed its descriptor on, with its lock. If that process was still allocating
/// the cache, the rest is left to [`fill`]. Damaged records are logged.
///
/// # Errors
/// The header of the file is damaged.
pub(crate) fn open_inherited(fd: OwnedFd, path: &Path) -> Result<(Left, Option<Filler>), Failure> {
    let (arena, mut survivors, filler) = Arena::open_inherited(fd).map_err(|error| refused(path, &error))?;
    survivors.removed_are_kept = true;
    if !survivors.damages.is_empty() {
        let kept = damaged_arena::keep(path);
        let kept = kept.inspect_err(|error| tracing::error!(%error, "cannot give the damaged arena a second name"));
        damaged_arena::log(path, kept.ok().as_deref(), &survivors);
    }
    let bytes = bytes_of(&survivors, |_| true);
    Ok((Left { arena, survivors, bytes }, filler))
}

/// Whether a file that could not be written back may still be one of our arenas: damaged, of another version, or in
/// use. For any other file there is no need to record that a mount wanted to use it.
pub(crate) fn may_hold_data(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(status) if is_ours(&status) && status.len() >= slackwater_arena::FRAME_BYTES as u64 => {
            !matches!(Arena::open(path), Err(ArenaError::Foreign(_)))
        }
        _ => false,
    }
}

/// F1.
fn is_ours(status: &fs::Metadata) -> bool {
    status.is_file() && status.uid() == geteuid().as_raw() && status.mode() & 0o077 == 0
}

/// Opens a file that is ours (F1), and prints which of its records are damaged. `None` if it does not exist.
pub(crate) fn open(path: &Path) -> Result<Option<(Arc<Arena>, Survivors)>, Failure> {
    let Some(found) = open_silently(path)? else { return Ok(None) };
    if let Some(kept) = found.kept {
        damaged_arena::report(path, &kept, &found.survivors);
    }
    Ok(Some((found.arena, found.survivors)))
}

struct Found {
    arena: Arc<Arena>,
    survivors: Survivors,
    /// The second name of the file, if records are damaged.
    kept: Option<PathBuf>,
}

/// As [`open`], without the message.
fn open_silently(path: &Path) -> Result<Option<Found>, Failure> {
    let name = path.printable();
    let status = match fs::symlink_metadata(path) {
        Ok(status) => status,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::failed(format!("cannot access the arena {name}: {error}"))),
    };
    if !is_ours(&status) {
        let what = format!("the arena {name} must be a regular file of yours with mode 0600");
        return Err(
            Failure::failed(what).advise("remove it if you know what it is, or choose another with --arena FILE")
        );
    }
    let (arena, survivors) = Arena::open(path).map_err(|error| refused(path, &error))?;
    if survivors.damages.is_empty() {
        return Ok(Some(Found { arena, survivors, kept: None }));
    }
    let kept = damaged_arena::keep(path).map_err(|error| {
        let damage = &survivors.damages[0];
        Failure::failed(format!(
            "the arena {name} is damaged ({damage}), and cannot be kept under a second name: {error}"
        ))
        .advise("it may hold unwritten data; nothing was written back")
        .advise(format!("to abandon that data, move the arena away: {}", away(path)))
    })?;
    Ok(Some(Found { arena, survivors, kept: Some(kept) }))
}

/// Bytes in the volumes whose name is one of `these`.
fn bytes_of(survivors: &Survivors, these: impl Fn(&[u8]) -> bool) -> u64 {
    survivors.volumes.iter().filter(|volume| these(volume.record.id.as_slice())).map(bytes_in).sum()
}

/// Bytes of a surviving volume, in whole pages.
pub(crate) fn bytes_in(volume: &SurvivingVolume) -> u64 {
    let pages: usize = volume.inodes.iter().map(|inode| inode.pages.len()).sum();
    (pages * slackwater_arena::FRAME_BYTES) as u64
}

/// Names of volumes with their bytes; 0 where only times are left.
type LeftBytes = Vec<(Vec<u8>, u64)>;

/// The data of a dead process in a file. `None` if another process has the file.
///
/// # Errors
/// The file is not ours, or its header is damaged.
pub(crate) fn left_in(path: &Path) -> Result<Option<LeftBytes>, Failure> {
    let (survivors, kept) = match open_silently(path) {
        Ok(Some(found)) => (found.survivors, found.kept),
        Ok(None) => return Ok(Some(Vec::new())),
        Err(failure) if failure.reason == Reason::Busy => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let volumes = survivors.volumes.iter().filter(|volume| !volume.inodes.is_empty());
    let left: LeftBytes = volumes.map(|volume| (volume.record.id.as_slice().to_vec(), bytes_in(volume))).collect();
    if let Some(kept) = kept.filter(|_| left.is_empty()) {
        damaged_arena::report(path, &kept, &survivors); // nothing opens it again
    }
    Ok(Some(left))
}

/// Opens what a predecessor left. `None` if there is no file.
///
/// # Errors
/// The file is not ours, in use, or has data of another source; its header is damaged, or records are and the file
/// cannot be kept.
pub(crate) fn open_left(path: &Path, identity: &str) -> Result<Option<Left>, Failure> {
    let name = path.printable();
    let Some((arena, survivors)) = open(path)? else { return Ok(None) };
    let of_others = bytes_of(&survivors, |id| id != identity.as_bytes());
    if of_others > 0 {
        let what = format!("the arena {name} holds {} of another source", size::text(of_others));
        return Err(Failure::failed(what)
            .advise("mount that source with this arena first to write the data back, or choose another --arena FILE")
            .advise("a source counts as another one if its file system was remounted with another device number")
            .advise(format!("to abandon that data, move the arena away: {}", away(path))));
    }
    let bytes = bytes_of(&survivors, |id| id == identity.as_bytes());
    Ok(Some(Left { arena, survivors, bytes }))
}

/// Writes everything back to the source of `entry`, which is open as `source`, and removes the file (F2). Passes the
/// volume to `started`, for progress. Returns the rescue files: data whose file was changed or removed in the source.
///
/// # Errors
/// The data is then still in the file.
///
/// # Blocking
/// Until everything is written back.
pub(crate) fn write_back(
    mut left: Left,
    entry: &Entry,
    source: &Opened,
    started: impl FnOnce(&Arc<SuperBlock>),
) -> Result<Vec<Rescued>, Failure> {
    let path = &entry.arena;
    let kept = |what: String| {
        Failure::failed(format!("cannot write back what an earlier mount left in {}: {what}", path.printable()))
            .advise("the data is kept there; mount the source again when the cause is gone")
    };
    let inodes = left.inodes();
    if inodes.is_empty() {
        drop(left);
        remove(path)?;
        return Ok(Vec::new());
    }
    if entry.identity.starts_with(ON_A_MOUNT) {
        let dev = rustix::fs::stat(entry.source.name()).map_err(|errno| kept(errno.to_string()))?.st_dev;
        let volumes = left.survivors.volumes.iter_mut();
        volumes.flat_map(|volume| &mut volume.inodes).for_each(|inode| inode.record.dev = dev);
    }
    let backend = source.backend(Some(&inodes)).map_err(|error| kept(error.to_string()))?;
    let engine = Engine::recover(left.arena, left.survivors, Arc::new(SystemClock), Tunables::default());
    let rescued = write_back_volume(&engine, &entry.identity, backend, started).map_err(kept)?;
    drop(engine);
    remove(path)?;
    Ok(rescued)
}

/// Writes back the data of one volume that `engine` has recovered. Passes the volume to `started`, and returns the
/// rescue files.
///
/// # Errors
/// The data is then still in the arena.
///
/// # Blocking
/// Until everything is written back.
pub(crate) fn write_back_volume(
    engine: &Engine,
    identity: &str,
    backend: Arc<dyn Backend>,
    started: impl FnOnce(&Arc<SuperBlock>),
) -> Result<Vec<Rescued>, String> {
    let volume = engine.mount(identity, backend).map_err(|error| error.to_string())?;
    started(&volume);
    let rescued = volume.rescued();
    volume.umount(UmountOptions::default()).map_err(|error| error.to_string())?;
    Ok(rescued)
}

/// Creates a new file for at most this many volumes. If there is twice the memory that it needs, most of it is left to
/// [`fill`], for which the caller gets a filler. Otherwise this shows the progress if that takes a while, and calls
/// `check` several times per second to ask whether to continue.
///
/// # Errors
/// There is not enough memory, the file cannot be created, or `check` failed.
///
/// # Blocking
/// Up to a few seconds per GiB.
pub(crate) fn create(
    path: &Path,
    cache_bytes: u64,
    volumes: u32,
    check: impl Fn() -> Result<(), Failure>,
) -> Result<(Arc<Arena>, Option<Filler>), Failure> {
    let (limits, free_bytes) = (memory_limits(), free_bytes(path));
    check_space(path, cache_bytes, &limits, free_bytes)?;
    let config = ArenaConfig::file(path, cache_bytes).with_volumes(volumes);
    let available = [limits.available_bytes, limits.cgroup_bytes, free_bytes].into_iter().flatten();
    if available.min().is_some_and(|least| cache_bytes <= least / 2) {
        let (arena, filler) = Arena::create_unfilled(&config).map_err(|error| refused(path, &error))?;
        return Ok((arena, Some(filler)));
    }
    let (begun, mut meter) = (Instant::now(), Meter::new("allocating the cache"));
    let mut stopped = None;
    let arena = Arena::create_watched(&config, &mut |done, of| {
        if begun.elapsed() >= SHOWN_AFTER {
            meter.fill(done, of);
        }
        stopped = check().err();
        if stopped.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    arena.map(|arena| (arena, None)).map_err(|error| stopped.unwrap_or_else(|| refused(path, &error)))
}

/// Allocates the rest of an arena on a thread, once volumes are mounted: it takes CPU time from whatever else the
/// process does. Without a thread each part is allocated when it is needed.
pub(crate) fn fill(filler: Filler) {
    let work = move || {
        if let Err(error) = filler.run() {
            tracing::error!(%error, "the cache is smaller than asked for: another program took the memory");
        }
    };
    if let Err(error) = thread::Builder::new().name("sw-fill".to_owned()).spawn(work) {
        tracing::warn!(%error, "cannot start a thread that allocates the cache");
    }
}

/// The part of an arena that the system has refused, for people.
pub(crate) fn missing(arena: &Arena) -> Option<String> {
    let bytes = u64::from(arena.missing_frames()) * slackwater_arena::FRAME_BYTES as u64;
    (bytes > 0).then(|| format!("{} of the cache: another program took the memory", size::text(bytes)))
}

/// The free space of the file system of an arena, if it is known.
fn free_bytes(path: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(path.parent()?).ok()?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Fails if the file system does not have enough space for the cache, before the space is used up. A cache that exceeds
/// the machine's memory fails with that reason instead.
fn check_space(path: &Path, cache_bytes: u64, limits: &MemoryLimits, free_bytes: Option<u64>) -> Result<(), Failure> {
    let Some(free_bytes) = free_bytes else { return Ok(()) };
    let is_too_much = limits.machine_bytes.is_some_and(|machine| cache_bytes > machine);
    if is_too_much || cache_bytes <= free_bytes {
        return Ok(());
    }
    let source = io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
    Err(refused(path, &ArenaError::NoSpace { needed_bytes: cache_bytes, source }))
}

/// Removes a file without data. One with damaged records keeps its second name.
pub(crate) fn remove(path: &Path) -> Result<(), Failure> {
    let kept = damaged_arena::kept_as(path);
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::failed(format!("cannot remove the arena {}: {error}", path.printable())))
        }
        _ => {
            if let Some(kept) = kept {
                let kept = kept.printable();
                tracing::warn!(%kept, "the arena has damaged records: it is kept, with all its memory, until it is removed");
            }
            Ok(())
        }
    }
}

/// The command that moves a file out of the way.
pub(crate) fn away(path: &Path) -> String {
    let mut bad = path.as_os_str().to_owned();
    bad.push(".bad");
    format!("mv {} {}", shell::word(path), shell::word(bad.as_ref()))
}

fn refused(path: &Path, error: &ArenaError) -> Failure {
    let name = path.printable();
    match error {
        ArenaError::TooLarge { needed_bytes, limit_bytes, limit_name } => {
            let (needed, limit) = (size::text(*needed_bytes), size::text(*limit_bytes));
            let half = size::text(limit_bytes / 2);
            Failure::usage(format!("this cache needs {needed} of memory, more than the {limit} of {limit_name}"))
                .advise(format!("choose a smaller --cache; at most half of the memory is sensible ({half})"))
        }
        ArenaError::NoSpace { needed_bytes, .. } => {
            let needed = size::text(*needed_bytes);
            let folder = path.parent().unwrap_or(path).printable();
            Failure::failed(format!("{folder} does not have the {needed} that this cache needs"))
                .advise("choose a smaller --cache, remount it larger (mount -o remount,size=...), or use --arena FILE elsewhere")
        }
        ArenaError::FileSystem { .. } => Failure::usage(format!("{name}: {error}"))
            .advise("an arena is memory: choose a file below /dev/shm, or on a tmpfs of your own"),
        ArenaError::InUse => Failure::busy(format!("the arena {name} is in use by another process"))
            .advise("another mount has it (slackwater status); choose another --arena FILE"),
        ArenaError::Foreign(_) | ArenaError::Version(_) | ArenaError::Length(_) | ArenaError::Damaged(_) => {
            Failure::failed(format!("cannot use the arena {name}: {error}"))
                .advise("it may hold unwritten data; nothing was changed")
                .advise(format!("to abandon that data, move the arena away: {}", away(path)))
        }
        ArenaError::NotPrivate(_) => Failure::failed(format!("the arena {name}: {error}"))
            .advise("another user may have put it there, so it is not used; check whose it is")
            .advise("then give it to this user (chown, chmod 600), remove it, or choose another file with --arena"),
        ArenaError::Config(mismatch) => Failure::usage(format!("invalid cache size: {mismatch}")),
        ArenaError::Os { call, source } => Failure::failed(format!("cannot use the arena {name}: {call}: {source}"))
            .advise("choose another --arena FILE, in a tmpfs directory that you can write to"),
        other @ (ArenaError::GivenUp | _) => Failure::failed(format!("cannot use the arena {name}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_fits_the_machine() {
        let bytes = default_cache_bytes(Path::new("/dev/shm/x"));
        let machine = memory_limits().machine_bytes.unwrap();
        assert!(bytes >= CACHE_BYTES_MIN && (bytes <= machine / 8 || bytes == CACHE_BYTES_MIN), "{bytes} of {machine}");
    }

    #[test]
    fn a_file_that_others_may_read_and_a_link_are_refused() {
        let path = Path::new(SHARED_MEMORY).join(format!("slackwater-test-{}.arena", std::process::id()));
        assert!(open_left(&path, "x").unwrap().is_none());
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        let link = open_left(&path, "x").map(drop).unwrap_err();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644)).unwrap();
        let open = open_left(&path, "x").map(drop).unwrap_err();
        fs::remove_file(&path).unwrap();
        assert!(link.what.contains("regular file") && open.what.contains("0600"), "{link}; {open}");
    }
}
