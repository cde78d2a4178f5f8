//! The entries of a [record](super::MountRecord), as its users see them.

use rustix::io::Errno;
use slackwater::ErrCursor;

/// An open handle.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct HandleRecord {
    pub(crate) is_directory: bool,
    pub(crate) node: u64,
    /// Flags of the open.
    pub(crate) flags: u32,
    /// Flags of the reply.
    pub(crate) open_flags: u32,
    /// The request that opened it.
    pub(crate) unique: u64,
    /// The errors that it has reported.
    pub(crate) cursor: ErrCursor,
}

/// The outcome of a change that was carried out.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    Failed(Errno),
    Done,
    /// An entry with this node.
    Entry(u64),
    /// The node's attributes.
    Attr,
    Written(u32),
    /// A sync that reports an error of write-back. The cursor of the handle may not be past it yet.
    Reported(Errno),
}

impl Outcome {
    pub(super) fn to_word(self) -> u64 {
        let (tag, value) = match self {
            Self::Failed(errno) => (1, u64::from(errno.raw_os_error().cast_unsigned())),
            Self::Done => (2, 0),
            Self::Entry(_) => (3, 0),
            Self::Attr => (4, 0),
            Self::Written(bytes) => (5, bytes.into()),
            Self::Reported(errno) => (6, u64::from(errno.raw_os_error().cast_unsigned())),
        };
        tag << 32 | value
    }

    pub(super) fn of_words(word: u64, node: u64) -> Option<Self> {
        let value = word as u32;
        match word >> 32 {
            1 => Some(Self::Failed(Errno::from_raw_os_error(value.cast_signed()))),
            2 => Some(Self::Done),
            3 => Some(Self::Entry(node)),
            4 => Some(Self::Attr),
            5 => Some(Self::Written(value)),
            6 => Some(Self::Reported(Errno::from_raw_os_error(value.cast_signed()))),
            _ => None,
        }
    }
}

/// A change that an earlier process began.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct ChangeRecord {
    /// The value that [`MountRecord::note_before`](super::MountRecord) has recorded; 0 if there is none. With the outcome
    /// [`Entry`](Outcome::Entry), the node.
    pub(crate) before: u64,
    /// `None` if it may have been carried out in part, whole or not at all.
    pub(crate) outcome: Option<Outcome>,
}
