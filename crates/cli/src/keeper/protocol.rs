//! The messages between the keeper and the server.
//!
//! The server begins with [`ToKeeper::Hello`]; the keeper answers with [`ToServer::Start`], which has everything that
//! the predecessor held, if there was one, followed by the numbers of its files. From then on the server speaks, and the keeper answers
//! those messages that say so.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control::protocol::FailedUpgrade;
use crate::registry::Entry;

/// Incremented when a message changes its meaning.
pub(crate) const PROTOCOL_VERSION: u32 = 1;

/// A kind of descriptor.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// The FUSE connection.
    Device,
    /// The front end's record for its successor.
    Record,
    /// The cache, with its lock.
    Arena,
    /// The source directory, with its lock.
    Source,
    /// The registry entry, with its lock.
    Entry,
    /// The listening socket for commands.
    Control,
    /// The listening socket for metrics, if the mount serves them.
    Metrics,
    /// The log of a mount in the background.
    Log,
}

/// A mount point, and the link to its mount namespace in `/proc` if that is not the server's.
pub(crate) type Place = (PathBuf, Option<PathBuf>);

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub(super) enum ToKeeper {
    /// It waits for signals from now on.
    Hello {
        version: u32,
        /// The thread that [waits for the keeper's end](super::client), by its id. It ends when the process is killed,
        /// whatever the other threads wait for.
        thread: u32,
    },
    /// It serves the mount. With a descriptor for each part. Answered.
    Hold {
        entry: Box<Entry>,
        parts: Vec<Part>,
    },
    /// With the descriptor of the file. Answered.
    KeepFile {
        number: u64,
    },
    ReleaseFile {
        number: u64,
    },
    /// A setting was changed while the mount was served.
    Set {
        key: String,
        value: String,
    },
    /// Where the volume is mounted, if not only at its first mount point.
    Places {
        places: Vec<Place>,
    },
    /// The volume has ended: nothing has to be kept any more. Answered.
    Done,
    /// It exits for a successor, and has stopped answering at this time of the monotonic clock. With the descriptor of
    /// the successor's program, if that is another one.
    HandOver {
        stopped_ns: u64,
        program: Option<PathBuf>,
    },
}

/// From the keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub(super) enum ToServer {
    /// With a descriptor for each part that the predecessor held.
    Start { version: u32, keeper: u32, predecessor: Option<Box<Predecessor>> },
    /// Numbers of files that the keeper holds.
    Files { numbers: Vec<u64> },
    /// The answer; with an error if nothing was kept.
    Kept { error: Option<String> },
}

/// The server before a successor, as the keeper knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Predecessor {
    pub(crate) entry: Entry,
    pub(super) parts: Vec<Part>,
    /// Messages with numbers of files that follow.
    pub(super) files: usize,
    /// Changed settings.
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) places: Vec<Place>,
    /// Completed takeovers before this one.
    pub(crate) takeovers: u32,
    /// When it stopped answering, on the monotonic clock.
    pub(crate) stopped_ns: u64,
    /// It exited for a successor.
    pub(crate) has_handed_over: bool,
    /// The last upgrade, if it failed.
    pub(super) failed_upgrade: Option<FailedUpgrade>,
}
