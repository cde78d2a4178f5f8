//! Finds, opens and closes a volume.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use slackwater::backend::Backend;
use slackwater_control::exit::Failure;
use slackwater_control::name;
use slackwater_control::object_volumes::{failure_of, locate};
use slackwater_control::os::private_dir;
use slackwater_control::protocol::{ObjectRole, ObjectStatus};
use slackwater_control::spec::VolumeSpec;
use slackwater_host::Printable as _;
use slackwater_object::{Holder, ObjectBackend, OpenOptions, Role, VolumeError};

use crate::object::wait_for_store;
use crate::registry::Entry;
use crate::source::object::ObjectVolume;
use crate::source::opened::Opening;
use crate::volume::tenants::ms;
use crate::volume::{arena_file, mounting};

/// Interval between two attempts to open a volume that another process has.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// The format of the local log.
pub(crate) const LOG_FORMAT: u32 = ObjectBackend::LOG_FORMAT;

/// Reads which volume is at a URL, and returns it with its directory, if the store is a directory. A store in memory has
/// no volume before it is mounted, so this makes one. `credentials` is a file with variables, in place of those of this
/// process.
///
/// # Errors
/// The URL is wrong, the store fails, or there is no volume.
///
/// # Blocking
/// For the store.
pub(crate) fn find(
    url: &str,
    is_read_only: bool,
    credentials: Option<&Path>,
) -> Result<(ObjectVolume, Option<PathBuf>), Failure> {
    let location = locate(url, credentials)?;
    let mut looked = wait_for_store(&location.to_string(), || ObjectBackend::look(&location));
    if matches!(looked, Err(VolumeError::NoVolume(_))) && name::is_in_memory(Path::new(url)) {
        looked = ObjectBackend::mkfs(&location).and_then(|()| ObjectBackend::look(&location));
    }
    let info = looked.map_err(|error| failure_of(&error, &location.to_string()))?;
    // Later processes of the mount have other working directories.
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let (url, credentials) = (location.to_string(), credentials.map(absolute));
    let volume = ObjectVolume { url, id: info.id, is_read_only, credentials };
    Ok((volume, location.local_directory().map(Path::to_path_buf)))
}

/// An open volume. Clones share it.
#[derive(Clone)]
pub(crate) struct Volume {
    backend: Arc<ObjectBackend>,
    source: ObjectVolume,
    arena: PathBuf,
}

impl Volume {
    /// Opens `source`, the volume of `entry`. Its local log is beside the arena, in which a dead process has left data of it if
    /// `has_data` says so.
    ///
    /// # Errors
    /// `Busy`, with the process that has it; or the data is older than the volume; or the store fails.
    ///
    /// # Blocking
    /// For the store.
    pub(crate) fn open(
        source: &ObjectVolume,
        entry: &Entry,
        options: &VolumeSpec,
        has_data: bool,
        opening: Opening<'_>,
    ) -> Result<Self, Failure> {
        let (url, arena) = (&source.url, &entry.arena);
        let location = locate(url, source.credentials.as_deref())?;
        let (log_dir, is_new) = match source.is_read_only {
            true => (None, false),
            false => log_dir(source, arena).map(|(path, is_new)| (Some(path), is_new))?,
        };
        let (keeper, is_inherited) = match opening {
            Opening::New { keeper, .. } => (keeper, false),
            Opening::Inherited { keeper, .. } => (Some(keeper), true),
        };
        let options = OpenOptions {
            id: Some(source.id.clone()),
            log_dir,
            // Programs have files of an inherited mount open, whose numbers may mean others to another writer.
            must_continue: has_data || is_inherited,
            // Only from the process that had it when the user asked.
            take_over: options.take_over && !is_inherited,
            keeper,
            keep_nameless: is_inherited,
            follow: source.is_read_only.then(|| backend_age(options.follow())),
            upload_limit_bytes_per_s: options.upload_limit.map(|limit| limit.0),
        };
        let mut is_waiting = false;
        let error = loop {
            let error = match wait_for_store(url, || ObjectBackend::open(&location, &options)) {
                Ok(backend) => {
                    let (backend, source, arena) = (Arc::new(backend), source.clone(), arena.to_path_buf());
                    return Ok(Self { backend, source, arena });
                }
                Err(error) => error,
            };
            match (&error, opening) {
                (VolumeError::InUse(holder), Opening::New { wait: true, say, .. }) => {
                    if !is_waiting {
                        say(&format!("{url} is {holder}; waiting until it is free"));
                    }
                }
                (_, Opening::Inherited { check, .. }) if may_pass(&error) && check().is_ok() => {
                    if !is_waiting {
                        tracing::warn!(%error, "the volume cannot be opened yet; programs wait until it can");
                    }
                }
                _ => break error,
            }
            is_waiting = true;
            thread::sleep(TRY_EVERY);
        };
        if is_new {
            remove_empty_log(source, arena);
        }
        let failure = failure_of(&error, url);
        Err(if matches!(error, VolumeError::InUse(_)) {
            how_to_get_it(failure)
        } else if matches!(error, VolumeError::Overtaken) {
            failure.advise(how_to_abandon_data(entry))
        } else {
            failure
        })
    }

    /// The volume as a backend; all of them share it.
    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as _
    }

    /// Frees files without a name that no program has open, of a mount that was inherited.
    pub(crate) fn inherited_all(&self) {
        self.backend.free_nameless();
    }

    /// The state of the volume.
    pub(crate) fn status(&self) -> ObjectStatus {
        let status = self.backend.status();
        let (role, fenced_by) = match status.role {
            Role::Writer => (ObjectRole::Writer, None),
            Role::Reader => (ObjectRole::Reader, None),
            Role::Fenced(holder) => (ObjectRole::Fenced, holder.map(|holder| name_of(&holder))),
        };
        ObjectStatus {
            role,
            fenced_by,
            uncommitted_changes: status.uncommitted_changes,
            uncommitted_ms: status.uncommitted_age.map(ms),
            last_commit_ms: status.last_commit_age.map(ms),
            commits: status.commits,
            uploads_in_flight: status.uploads_in_flight,
            sent_bytes: status.sent_bytes,
            received_bytes: status.received_bytes,
            puts: status.requests.puts,
            gets: status.requests.gets,
            lists: status.requests.lists,
            deletes: status.requests.deletes,
            failed_requests: status.requests.failures,
        }
    }

    /// The paths of these inodes whose names are in memory.
    ///
    /// # Blocking
    /// Never for the store.
    pub(crate) fn known_paths(&self, inos: &[u64]) -> HashMap<u64, PathBuf> {
        self.backend.known_paths(inos)
    }

    /// Commits every change, releases the volume for its next writer, and removes the local log. With `discard`, drops the
    /// changes that cannot be committed.
    ///
    /// # Errors
    /// The store failed; the changes are in the local log.
    ///
    /// # Blocking
    /// For the store.
    pub(crate) fn close(self, discard: bool) -> Result<(), Failure> {
        let closed = self.backend.close();
        if discard {
            if let Some(log) = self.log() {
                // Without it, there is nothing to discard.
                let _ = fs::remove_dir_all(log);
            }
            return Ok(());
        }
        closed.map_err(|error| {
            let failure = failure_of(&error, &self.source.url);
            match self.log() {
                Some(log) if self.source.has_log(&self.arena) => {
                    failure.advise(format!("changes are kept in {}; mount the volume again", log.printable()))
                }
                _ => failure,
            }
        })?;
        remove_empty_log(&self.source, &self.arena);
        Ok(())
    }

    /// The folder of the local log, if it is a writer's.
    fn log(&self) -> Option<PathBuf> {
        (!self.source.is_read_only).then(|| self.source.log_dir(&self.arena))
    }
}

/// Adds to a failure that another process has the volume what the user can do.
fn how_to_get_it(failure: Failure) -> Failure {
    failure
        .advise("unmount it there, pass --wait, or mount it --read-only beside that process")
        .advise("if that process is dead or unreachable: --take-over ends it, and keeps what it made durable")
}

/// Whether a volume that could be used may be used again after this error. A `file:` store may be on a disk that is not
/// mounted yet.
fn may_pass(error: &VolumeError) -> bool {
    matches!(error, VolumeError::Store(_) | VolumeError::Failed(_) | VolumeError::Location(_))
}

/// The next step of the user if the data that is left is older than the volume.
fn how_to_abandon_data(entry: &Entry) -> String {
    let after = if entry.volume.is_some() { "end the daemon, then " } else { "" };
    format!("to abandon that data, {after}move the arena away: {}", arena_file::away(&entry.arena))
}

/// The age at which the backend follows the writer. The caches of the engine and of the kernel add theirs.
fn backend_age(follow: Duration) -> Duration {
    follow - 2 * mounting::cache_timeout(Some(follow))
}

/// The folder of the local log, created if it does not exist, and whether it was created.
fn log_dir(source: &ObjectVolume, arena: &Path) -> Result<(PathBuf, bool), Failure> {
    let path = source.log_dir(arena);
    let failed = |why: String| {
        Failure::failed(format!("cannot use {} for the local log: {why}", path.printable()))
            .advise("remove it if you know what it is, or choose another place with --arena FILE")
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(error.to_string())),
        created if private_dir::is_private(&path) => Ok((path, created.is_ok())),
        _ => Err(failed("it must be a directory of yours with mode 0700".into())),
    }
}

/// Removes the folder of the local log if nothing is in it.
fn remove_empty_log(source: &ObjectVolume, arena: &Path) {
    // It fails if there are files, which must stay, or no folder.
    let _ = fs::remove_dir(source.log_dir(arena));
}

/// The machine and process of a holder.
fn name_of(holder: &Holder) -> String {
    match &holder.host {
        Some(host) => format!("pid {} on {host}", holder.pid),
        None => "a process whose claim this version cannot read".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_caches_together_are_not_older_than_the_limit() {
        for follow in [Duration::from_millis(500), Duration::from_secs(5), Duration::from_secs(3600)] {
            let timeout = mounting::cache_timeout(Some(follow));
            assert_eq!(backend_age(follow) + 2 * timeout, follow);
            assert!(timeout > Duration::ZERO && backend_age(follow) >= follow / 2, "{follow:?}");
        }
    }
}
