//! Requests to the daemon. A request that a daemon has not answered because another one takes it over is repeated there.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use slackwater_control::client::{ANSWER_WITHIN, Conversation};
use slackwater_control::daemon::{SILENCE, ask_each, has_successor, no_daemon};
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::name::VolumeName;
use slackwater_control::protocol::{List, Listed, MountRequest, Reply, Request, VolumeRef};
use slackwater_control::spec::settings;

use crate::node::NodeError;

/// The source may have to be examined, and data of an earlier mount written back.
const MOUNTS_WITHIN: Duration = Duration::from_secs(600);
/// A volume that an earlier call has asked for is mounted within this time, or the caller repeats the call.
const SETTLES_WITHIN: Duration = Duration::from_secs(30);
/// Interval between two looks at the volume.
const LOOK: Duration = Duration::from_millis(20);

/// A daemon, by its socket.
pub(super) struct Daemon {
    socket: PathBuf,
}

impl Daemon {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The volumes of the daemon.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(super) fn list(&self) -> Result<List, NodeError> {
        let reply = self.ask(&VolumeRef::default(), &Request::List, ANSWER_WITHIN)?;
        let Reply::List(list) = reply else { return Err(reply.refusal().into()) };
        Ok(list)
    }

    /// The volume with this name.
    ///
    /// # Errors
    /// The daemon does not answer, or the volume is still being mounted.
    ///
    /// # Blocking
    /// While an earlier request to mount the volume is carried out, at most [`SETTLES_WITHIN`].
    pub(super) fn find(&self, id: &str) -> Result<Option<Listed>, NodeError> {
        if VolumeName::new(id).is_err() {
            return Ok(None);
        }
        let since = Instant::now();
        loop {
            // First whether it is there at all: a volume that is being mounted is not in the list.
            let reply = self.ask(&VolumeRef::named(Some(id)), &Request::Status, ANSWER_WITHIN)?;
            if let Reply::Failed(failure) = reply {
                match failure.reason {
                    Reason::NotMounted => return Ok(None),
                    Reason::Busy if since.elapsed() > SETTLES_WITHIN => return Err(NodeError::Pending(failure)),
                    Reason::Busy => thread::sleep(LOOK),
                    Reason::Failed
                    | Reason::Usage
                    | Reason::Deadline
                    | Reason::NoDaemon
                    | Reason::Rescued
                    | Reason::Left => return Err(failure.into()),
                }
            } else if let Some(listed) = self.list()?.volumes.into_iter().find(|listed| listed.name == id) {
                return Ok(Some(listed));
            }
            // If it has ended between the two questions, the next round says so.
        }
    }

    /// Mounts a volume.
    ///
    /// # Errors
    /// `State`, if a volume has that name or that source already.
    ///
    /// # Blocking
    /// For the source.
    pub(super) fn mount(&self, request: MountRequest) -> Result<(), NodeError> {
        let reply = self.ask(&VolumeRef::default(), &Request::Mount(request), MOUNTS_WITHIN)?;
        if matches!(reply, Reply::Mounted { .. }) { Ok(()) } else { Err(reply.refusal().into()) }
    }

    /// Changes a setting of a volume. Returns whether the daemon has such a setting.
    ///
    /// # Errors
    /// The value is not valid, or the volume has ended.
    pub(super) fn set(&self, id: &str, key: &str, value: &str) -> Result<bool, NodeError> {
        let request = Request::Set { key: key.to_owned(), value: value.to_owned() };
        match self.ask(&VolumeRef::named(Some(id)), &request, ANSWER_WITHIN)?.done() {
            Err(failure) if failure.what == settings::unknown(key, "").what => Ok(false),
            outcome => outcome.map(|()| true).map_err(NodeError::from),
        }
    }

    /// Changes a setting of a tenant.
    ///
    /// # Errors
    /// The daemon has no tenants, or does not answer.
    pub(super) fn set_tenant(&self, tenant: &Path, key: &str, value: &str) -> Result<(), NodeError> {
        let request = Request::SetTenant { tenant: tenant.to_owned(), key: key.to_owned(), value: value.to_owned() };
        self.ask(&VolumeRef::default(), &request, ANSWER_WITHIN)?.done().map_err(NodeError::from)
    }

    /// Writes everything back and unmounts a volume.
    ///
    /// # Errors
    /// `Deadline`, with the bytes that are left: the volume stays mounted and usable. `State`, with the processes that use
    /// it.
    ///
    /// # Blocking
    /// At most until the deadline.
    pub(super) fn umount(&self, id: &str, deadline: Duration) -> Result<(), NodeError> {
        self.umount_with(id, deadline, false)
    }

    /// Unmounts a volume whose directory was removed, unless it has data that was not written there: a flush of such a volume
    /// does not end. Files that were written there are lost with the directory. Returns whether it did.
    ///
    /// # Errors
    /// As [`Daemon::umount`].
    pub(super) fn umount_unsynced(&self, id: &str, deadline: Duration) -> Result<bool, NodeError> {
        let answer = self.ask(&VolumeRef::named(Some(id)), &Request::Status, ANSWER_WITHIN)?;
        let Reply::Status(status) = answer else { return Err(answer.refusal().into()) };
        let is_written = status.bytes_left == status.removed_bytes;
        if is_written {
            self.umount_with(id, deadline, true)?;
            let (files, bytes) = (status.removed_files, status.removed_bytes);
            tracing::warn!(volume = id, files, bytes, "unmounted; its directory was removed, with data that is lost");
        }
        Ok(is_written)
    }

    fn umount_with(&self, id: &str, deadline: Duration, discard: bool) -> Result<(), NodeError> {
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let request = Request::Umount { deadline_ms, force: false, discard, park: false };
        match self.ask(&VolumeRef::named(Some(id)), &request, SILENCE)?.done() {
            Err(failure) if failure.reason == Reason::NotMounted => Ok(()),
            // Everything is written back; some of it into files beside removed ones.
            Err(failure) if failure.reason == Reason::Rescued => {
                tracing::warn!(volume = id, %failure, "unmounted");
                Ok(())
            }
            outcome => outcome.map_err(NodeError::from),
        }
    }

    /// The answer to a request, after reports of progress that come at least each `silence`.
    fn ask(&self, volume: &VolumeRef, request: &Request, silence: Duration) -> Result<Reply, NodeError> {
        let repeated = request.clone().repeated();
        let answered = ask_each(
            |error| has_successor(&self.socket, error),
            |is_repeated| self.receive(volume, if is_repeated { &repeated } else { request }, silence),
        );
        answered.map_err(|error| {
            let Failure { what, advice, .. } = no_daemon(&self.socket, &error);
            NodeError::Unavailable(Failure { reason: Reason::NoDaemon, what, advice })
        })
    }

    fn receive(&self, volume: &VolumeRef, request: &Request, silence: Duration) -> io::Result<Reply> {
        let mut conversation = Conversation::open(&self.socket, volume, request, ANSWER_WITHIN)?;
        loop {
            let reply = conversation.next(Some(silence))?;
            if !matches!(reply, Reply::Progress { .. }) {
                return Ok(reply);
            }
        }
    }
}
