//! The state of an open volume.

use std::time::Duration;

use crate::holder::Holder;
use crate::store::{Counts, Operation};

/// The state of an open volume.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// The role of this process: the calls that it may make.
    pub role: Role,
    /// Changes of names, attributes and extents that no commit has made durable yet.
    pub uncommitted_changes: u64,
    /// Age of the oldest of them.
    pub uncommitted_age: Option<Duration>,
    /// Time since the last commit; for a reader, since the state of the writer that it shows was read.
    pub last_commit_age: Option<Duration>,
    /// Commits since it was opened.
    pub commits: u64,
    /// Segments that are being uploaded, apart from those of commits.
    pub uploads_in_flight: u64,
    /// Bytes sent to the store since the volume was opened.
    pub sent_bytes: u64,
    /// Bytes received from the store since the volume was opened.
    pub received_bytes: u64,
    /// Requests to the store since it was opened, retries included.
    pub requests: Requests,
}

/// The role of a process that has a volume open.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Role {
    /// The only writer.
    Writer,
    /// A reader, which follows the writer.
    Reader,
    /// Another writer has fenced it; `None` if that one cannot be named. Changes fail with `Stale`.
    Fenced(Option<Holder>),
}

/// Requests by kind.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Requests {
    /// PUT, with the parts of multipart uploads.
    pub puts: u64,
    /// GET and HEAD.
    pub gets: u64,
    /// LIST.
    pub lists: u64,
    /// DELETE.
    pub deletes: u64,
    /// Requests of the above that failed and were tried again, or given up.
    pub failures: u64,
}

impl Requests {
    pub(super) fn of(counts: &Counts) -> Self {
        Self {
            puts: counts.writes(),
            gets: counts.of(Operation::Get) + counts.of(Operation::Head),
            lists: counts.of(Operation::List),
            deletes: counts.of(Operation::Delete),
            failures: counts.failed,
        }
    }
}
