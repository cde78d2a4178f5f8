//! The messages between the keeper and the server.
//!
//! The server begins with [`ToKeeper::Hello`]; the keeper answers with [`ToServer::Start`]. If there was a predecessor,
//! that is followed by the settings that do not fit, and by each of its volumes, and each volume by the numbers of its
//! files and by its nodes. From then on the server speaks, and the keeper answers those messages that say so.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use slackwater_control::exit::Failure;
use slackwater_control::protocol::FailedUpgrade;
use slackwater_control::spec::{VolumeSpec, wire};

use crate::registry::Entry;

/// The version of these messages, incremented when one changes its meaning.
pub(crate) const PROTOCOL_VERSION: u32 = 3;

/// A kind of descriptor.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// The cache, with its lock.
    Arena,
    /// The listening socket for commands.
    Control,
    /// The listening socket for metrics, if the process serves them.
    Metrics,
    /// The listening socket of the page for operators, if a daemon serves it.
    Web,
    /// The log of a process in the background.
    Log,
    /// The lock on the socket of a daemon.
    Lock,
    /// The configuration with which a daemon was started.
    Configuration,
    /// The FUSE connection of a volume.
    Device,
    /// The record that a volume's front end keeps for its successor.
    Record,
    /// The source directory of a volume, with its lock.
    Source,
    /// The registry entry of a volume, with its lock.
    Entry,
}

impl Part {
    /// The word for the part in names of stored descriptors.
    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// The part with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        // Of one word each, so the names are those in messages.
        serde_json::from_value(name.into()).ok()
    }
}

/// A mount point, and the link to its mount namespace in `/proc` if that is not the server's.
pub(crate) type Place = (PathBuf, Option<PathBuf>);

/// A message from the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub(super) enum ToKeeper {
    /// The server waits for signals from now on.
    Hello {
        version: u32,
        /// The thread that [waits for the keeper's end](super::client), by its id. It ends when the process is killed,
        /// whatever the other threads wait for.
        thread: u32,
    },
    /// The parts that all volumes of the server share. With a descriptor for each part. Answered.
    Hold {
        parts: Vec<Part>,
    },
    /// The server has mounted a volume. With a descriptor for each part. Answered.
    HoldVolume {
        number: u64,
        entry: Box<Entry>,
        #[serde(with = "wire")]
        options: VolumeSpec,
        /// Options that keepers of the first version do not know. They ignore these, and are sent [`Self::Set`] as well.
        #[serde(default)]
        settings: BTreeMap<String, String>,
        parts: Vec<Part>,
    },
    /// The server serves all that the keeper holds. Answered.
    Serves,
    /// A file is to be kept. With its descriptor. Answered.
    KeepFile {
        volume: u64,
        number: u64,
    },
    ReleaseFile {
        volume: u64,
        number: u64,
    },
    /// The kernel learns of a node. With a descriptor of it, unless the keeper has too many.
    KeepNode {
        volume: u64,
        number: u64,
    },
    ReleaseNodes {
        volume: u64,
        numbers: Vec<u64>,
    },
    /// A setting of the process, or of a volume, was changed while it was served.
    Set {
        volume: Option<u64>,
        key: String,
        value: String,
    },
    /// Where a volume is mounted, if not only at its first mount point.
    Places {
        volume: u64,
        places: Vec<Place>,
    },
    /// A volume has ended: nothing of it has to be kept any more. Answered.
    DropVolume {
        number: u64,
    },
    /// Everything has ended. Answered.
    Done,
    /// The server exits for a successor, and has stopped answering at this time of the monotonic clock. With the
    /// descriptor of the successor's program, if that is another one.
    HandOver {
        stopped_ns: u64,
        program: Option<PathBuf>,
    },
}

impl ToKeeper {
    /// Whether the keeper answers the message by [`ToServer::Kept`].
    pub(super) fn is_answered(&self) -> bool {
        match self {
            Self::Hold { .. }
            | Self::HoldVolume { .. }
            | Self::Serves
            | Self::KeepFile { .. }
            | Self::DropVolume { .. }
            | Self::Done => true,
            Self::Hello { .. }
            | Self::ReleaseFile { .. }
            | Self::KeepNode { .. }
            | Self::ReleaseNodes { .. }
            | Self::Set { .. }
            | Self::Places { .. }
            | Self::HandOver { .. } => false,
        }
    }
}

/// A message from the keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub(super) enum ToServer {
    /// The answer to [`ToKeeper::Hello`]. With a descriptor for each part that the predecessor held for all its
    /// volumes.
    Start {
        version: u32,
        keeper: u32,
        /// Whether a service manager has everything as well, and starts another keeper if this one dies.
        is_stored: bool,
        predecessor: Option<Box<Predecessor>>,
    },
    /// Further settings of the predecessor.
    Settings { settings: BTreeMap<String, String> },
    /// A volume of the predecessor. With a descriptor for each part.
    Volume(Box<HeldVolume>),
    /// Numbers of files that the keeper holds.
    Files { numbers: Vec<u64> },
    /// Numbers of nodes. With a descriptor of each, or fewer if the server has too many.
    Nodes { numbers: Vec<u64> },
    /// The answer; with an error if nothing was kept.
    Kept { error: Option<String> },
}

/// The server before a successor, as the keeper knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Predecessor {
    pub(crate) pid: u32,
    pub(super) parts: Vec<Part>,
    /// Messages with volumes that follow.
    pub(super) volumes: usize,
    /// Changed settings.
    pub(crate) settings: BTreeMap<String, String>,
    /// Messages with further settings that follow.
    #[serde(default)]
    pub(super) more_settings: usize,
    /// Completed takeovers before this one.
    pub(crate) takeovers: u32,
    /// The longest pause of these takeovers.
    #[serde(default)]
    pub(crate) longest_pause_ms: Option<u64>,
    /// When the predecessor stopped answering, in nanoseconds of the monotonic clock.
    pub(crate) stopped_ns: u64,
    /// Whether the predecessor exited for a successor.
    pub(crate) has_handed_over: bool,
    /// The last upgrade, if it failed.
    pub(super) failed_upgrade: Option<FailedUpgrade>,
}

/// A volume, as the keeper knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HeldVolume {
    pub(super) number: u64,
    pub(crate) entry: Entry,
    #[serde(with = "wire")]
    pub(crate) options: VolumeSpec,
    pub(super) parts: Vec<Part>,
    /// Messages with numbers of files that follow.
    pub(super) files: usize,
    /// Messages with nodes that follow.
    #[serde(default)]
    pub(super) nodes: usize,
    /// Changed settings.
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) places: Vec<Place>,
}

impl HeldVolume {
    /// `options` with the settings that the volume has now.
    ///
    /// # Errors
    /// A setting, or its value, is not known here.
    pub(crate) fn changed(&self, mut options: VolumeSpec) -> Result<VolumeSpec, Failure> {
        self.settings.iter().try_for_each(|(key, value)| options.put(key, value))?;
        Ok(options)
    }
}
