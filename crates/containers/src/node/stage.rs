//! The mount of a volume at its staging directory, and its end.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use slackwater_control::exit::Failure;
use slackwater_control::mountpoint::{is_dead, name_of};
use slackwater_control::name::{self, VolumeName};
use slackwater_control::os::detach::detach;
use slackwater_control::os::mount_table;
use slackwater_control::parallel::for_each_within;
use slackwater_control::protocol::{Listed, MountRequest, Phase};
use slackwater_control::spec::{VolumeSpec, wire};
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::node::credentials::CredentialsFile;
use crate::node::{Node, NodeError, cannot};
use crate::object::Credentials;

/// Interval between two looks at an unmount that is running, or at data that an earlier daemon left.
const LOOK: Duration = Duration::from_millis(100);
/// A source that is gone says so within this time.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// A volume to mount.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    pub(crate) id: String,
    /// A directory or a URL, as `slackwater mount` takes it.
    pub(crate) source: PathBuf,
    /// The staging directory, which exists.
    pub(crate) path: PathBuf,
    pub(crate) options: VolumeSpec,
    /// The credentials that come with the volume; empty, if those of the daemon count.
    pub(crate) credentials: Credentials,
}

impl Node {
    /// Mounts a volume, unless it is mounted there already, and sets the options that daemons of the first version cannot
    /// mount with. One that the daemon does not have is logged.
    ///
    /// # Errors
    /// `Different`, if it is mounted there with another source or other options; `State`, if it is mounted elsewhere or its
    /// source is in use by another process.
    ///
    /// # Blocking
    /// For the source.
    pub(crate) fn stage(&self, wanted: &Staging) -> Result<(), NodeError> {
        let (options, settings) = wire::split(&wanted.options);
        self.mount(wanted, options)?;
        for (key, value) in &settings {
            if !self.daemon.set(&wanted.id, key, value)? {
                tracing::warn!(volume = wanted.id, key, value, "the daemon does not have this setting for a volume");
            }
        }
        Ok(())
    }

    fn mount(&self, wanted: &Staging, options: VolumeSpec) -> Result<(), NodeError> {
        let name = VolumeName::new(&wanted.id)?;
        let path = name_of(&wanted.path).map_err(|error| cannot("find the staging directory", &wanted.path, &error))?;
        let file = CredentialsFile::of(self.daemon.socket(), &name);
        if let Some(listed) = self.daemon.find(&wanted.id)?
            && is_staged(&listed, wanted, &path)?
        {
            // For its next process.
            file.write(&wanted.credentials)?;
            return Ok(());
        }
        let credentials = file.write(&wanted.credentials)?;
        let mounted = self.daemon.mount(MountRequest {
            name: Some(name.to_string()),
            source: wanted.source.clone(),
            mountpoint: path.clone(),
            options,
            credentials,
            is_repeated: false,
        });
        match mounted {
            // An earlier call may have asked for the same, and was cut off.
            Err(NodeError::State(failure)) => match self.daemon.find(&wanted.id)? {
                Some(listed) if is_staged(&listed, wanted, &path)? => Ok(()),
                found => {
                    if found.is_none() {
                        self.remove_unused(&file, &wanted.id);
                    }
                    Err(NodeError::State(failure))
                }
            },
            Err(error @ (NodeError::Invalid(_) | NodeError::Failed(_))) => {
                self.remove_unused(&file, &wanted.id);
                Err(error)
            }
            outcome => outcome,
        }
    }

    /// Removes the credentials of a volume that could not be mounted: the platform may never unstage it.
    fn remove_unused(&self, file: &CredentialsFile, id: &str) {
        if file.exists()
            && matches!(self.daemon.find(id), Ok(None))
            && self.wait_written_back(id, Duration::ZERO).is_ok()
            && let Err(error) = file.remove()
        {
            tracing::warn!(volume = id, ?error, "credentials that are not used are left");
        }
    }

    /// Makes everything durable and unmounts a volume. A volume that is not mounted there is left alone.
    ///
    /// # Errors
    /// `Deadline`, with the bytes that are left: the volume stays mounted and usable. `State`, if programs use it, with
    /// their names.
    ///
    /// # Blocking
    /// At most until the deadline for unmounts, and then for [`ANSWERS_WITHIN`].
    pub(crate) fn unstage(&self, id: &str, path: &Path) -> Result<(), NodeError> {
        self.unmount(id, path)?;
        let file = VolumeName::new(id).ok().map(|name| CredentialsFile::of(self.daemon.socket(), &name));
        match file.filter(CredentialsFile::exists) {
            // It may be staged elsewhere.
            Some(file) if self.daemon.find(id)?.is_none() => file.remove(),
            _ => Ok(()),
        }
    }

    fn unmount(&self, id: &str, path: &Path) -> Result<(), NodeError> {
        // Of a directory that does not exist, the name is as good.
        let path = name_of(path).unwrap_or_else(|_| path.to_path_buf());
        let since = Instant::now();
        loop {
            let left = self.unmount_deadline.saturating_sub(since.elapsed());
            let listed = match self.daemon.find(id)? {
                Some(listed) if listed.mountpoint == path => listed,
                Some(_) => return Ok(()),
                None => {
                    self.wait_written_back(id, left)?;
                    return free_dead(&path);
                }
            };
            match self.daemon.umount(id, left) {
                // The unmount of an earlier call, which was cut off, is still running.
                Err(NodeError::State(_)) if self.is_unmounting(id)? => {}
                Err(late @ NodeError::Deadline(_)) if is_removed(&listed.source) => {
                    return if self.daemon.umount_unsynced(id, self.unmount_deadline)? { Ok(()) } else { Err(late) };
                }
                outcome => return outcome,
            }
            if left.is_zero() {
                let bytes = size::text(listed.bytes_left);
                let what = format!("the deadline passed with {bytes} unwritten; {} is still mounted", path.printable());
                return Err(NodeError::Deadline(Failure::failed(what).advise("nothing is lost; repeat the call")));
            }
            thread::sleep(LOOK);
        }
    }

    fn is_unmounting(&self, id: &str) -> Result<bool, NodeError> {
        let listed = self.daemon.find(id)?;
        Ok(listed.is_none_or(|listed| matches!(listed.phase, Phase::Unmounting | Phase::Flushing)))
    }

    /// N3, for a volume whose daemon has died: the next one writes its data back.
    fn wait_written_back(&self, id: &str, within: Duration) -> Result<(), NodeError> {
        let since = Instant::now();
        loop {
            let left = self.daemon.list()?.left;
            let Some(source) = left.into_iter().find(|source| is_of(source, id)) else { return Ok(()) };
            if since.elapsed() >= within {
                let what = format!(
                    "the deadline passed, and data of {} that a dead daemon left is unwritten",
                    source.printable()
                );
                return Err(NodeError::Deadline(
                    Failure::failed(what).advise("nothing is lost: it is in the cache; repeat the call"),
                ));
            }
            thread::sleep(LOOK);
        }
    }
}

/// Whether a source is that of a volume which was made for this id: it ends with the id, in an object store also with a
/// number after it.
fn is_of(source: &str, id: &str) -> bool {
    let name = source.rsplit('/').next().unwrap_or_default();
    name.strip_prefix(id).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Whether the volume is mounted at `path` as wanted.
fn is_staged(listed: &Listed, wanted: &Staging, path: &Path) -> Result<bool, NodeError> {
    let Staging { id, source, options, .. } = wanted;
    let different = |what: String| Err(NodeError::Different(Failure::failed(what).advise("unstage it first")));
    if !is_same_source(&listed.source, source) {
        let (has, asked) = (listed.source.printable(), source.printable());
        return different(format!("the volume {id} is mounted from {has}, and not from {asked}"));
    }
    match listed.phase {
        Phase::Mounted => {}
        // A further mount point makes it usable again.
        Phase::Elsewhere => return Ok(false),
        Phase::Starting | Phase::Unmounting | Phase::Flushing => {
            let what = format!("the volume {id} is still being written back after an unmount");
            return Err(NodeError::Pending(Failure::busy(what).advise("repeat the call")));
        }
    }
    if listed.mountpoint != path {
        let what = format!("the volume {id} is staged at {}", listed.mountpoint.printable());
        return Err(NodeError::State(Failure::busy(what).advise("unstage it there first")));
    }
    let mount = Node::mount_of(listed)?;
    match mount.has_super_option("ro") == options.read_only {
        true => Ok(true),
        false if options.read_only => different(format!("the volume {id} is staged for writing")),
        false => different(format!("the volume {id} is staged read-only")),
    }
}

/// Whether two words name the same source. The daemon has the path of a directory without symbolic links.
fn is_same_source(has: &Path, asked: &Path) -> bool {
    has == asked
        || match name::is_url(asked) {
            true => {
                has.to_str().map(|url| url.trim_end_matches('/')) == asked.to_str().map(|url| url.trim_end_matches('/'))
            }
            false => asked.canonicalize().is_ok_and(|asked| has == asked),
        }
}

/// Whether a source is a directory that no longer exists. One that does not answer is there.
///
/// # Blocking
/// At most for [`ANSWERS_WITHIN`].
fn is_removed(source: &Path) -> bool {
    if name::is_url(source) {
        return false;
    }
    let looked = for_each_within("sw-look", vec![source.to_path_buf()], ANSWERS_WITHIN, |source| source.try_exists());
    looked.is_ok_and(|(found, _)| matches!(found[..], [Ok(false)]))
}

/// Frees a staging directory on which a mount of a dead daemon is left.
fn free_dead(path: &Path) -> Result<(), NodeError> {
    let is_ours = |mount| mount_table::is_slackwater(&mount);
    while mount_table::mount_at(path).is_some_and(is_ours) && is_dead(path) {
        detach(path).map_err(|error| cannot("detach the dead mount at", path, &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_volume_ends_with_its_id() {
        assert!(is_of("/srv/pool/a-1", "a-1") && is_of("s3://bucket/a-1-00ff", "a-1"));
        assert!(!is_of("/srv/a-1/b", "a-1") && !is_of("/srv/a-12", "a-1") && !is_of("/srv/b", "a"));
    }

    #[test]
    fn a_source_is_the_same_by_any_of_its_names() {
        let same = |has: &str, asked: &str| is_same_source(Path::new(has), Path::new(asked));
        assert!(same("/proc", "/proc/../proc") && same("s3://bucket/a", "s3://bucket/a/"));
        assert!(!same("/proc", "/sys") && !same("s3://bucket/a", "s3://bucket/b"));
    }
}
