//! An error of a volume, with what its repair needs to know.

use std::ffi::OsString;
use std::fmt;

use crate::check::report::Severity;
use crate::format::{Key, SegmentId, SegmentRecord};
use crate::segments::path_of;

/// An error of a volume.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(super) enum Problem {
    /// A key that this version does not know.
    UnknownKey(Vec<u8>),
    /// A record that this version cannot decode.
    Undecodable(Key, &'static str),
    NoRoot,
    NoCounters,
    /// An entry without inode.
    DanglingName(Place),
    /// Entries of a directory that does not exist.
    StrayNames {
        dir: u64,
        hash: u64,
    },
    /// An entry where no lookup finds it.
    MisplacedName {
        place: Place,
        hash: u64,
    },
    /// The type in an entry is not that of its inode.
    WrongType {
        place: Place,
        type_bits: u32,
    },
    /// A further name of a directory.
    SecondName(Place),
    WrongParent {
        dir: u64,
        parent: u64,
        is: u64,
    },
    /// A directory that is below itself, and not below the root.
    Cycle {
        dir: u64,
        parent: u64,
    },
    /// Data of an inode that does not exist. It ends at this offset.
    LostInode {
        ino: u64,
        end_bytes: u64,
    },
    /// An inode without a name that is no orphan.
    Unnamed(u64),
    /// An orphan that has a name.
    NamedOrphan(u64),
    StrayOrphan(u64),
    WrongLinks {
        ino: u64,
        is: u32,
        should: u32,
    },
    WrongAllocated {
        ino: u64,
        is: u64,
        should: u64,
    },
    StrayChunk {
        ino: u64,
        index: u64,
    },
    EmptyChunk {
        ino: u64,
        index: u64,
    },
    /// Data behind the end of its file.
    BehindEnd {
        ino: u64,
        size_bytes: u64,
    },
    /// An extent whose bytes are not there.
    LostExtent {
        ino: u64,
        index: u64,
        at: u32,
        len: u32,
        segment: SegmentId,
        why: &'static str,
    },
    /// An extent whose bytes are not those that were stored.
    CorruptExtent {
        ino: u64,
        offset_bytes: u64,
        len: u32,
        segment: SegmentId,
    },
    StrayXattr {
        ino: u64,
        number: u64,
    },
    LostXattr {
        ino: u64,
        name: OsString,
    },
    StrayBlob(SegmentId),
    /// Files use a segment that is stored, and that has no record.
    NoRecord {
        segment: SegmentId,
        record: SegmentRecord,
    },
    WrongLive {
        segment: SegmentId,
        is: u64,
        should: u64,
    },
    WrongInodes {
        is: u64,
        should: u64,
    },
    WrongDataBytes {
        is: u64,
        should: u64,
    },
    /// New inodes would get numbers that are used.
    WrongNextIno {
        is: u64,
        should: u64,
    },
}

/// The place of a name.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(super) struct Place {
    pub(super) dir: u64,
    /// The hash under which the name is.
    pub(super) hash: u64,
    pub(super) name: OsString,
    pub(super) ino: u64,
}

impl Problem {
    pub(super) fn severity(&self) -> Severity {
        match self {
            Self::LostExtent { .. } | Self::CorruptExtent { .. } | Self::LostXattr { .. } => Severity::Data,
            Self::UnknownKey(_)
            | Self::Undecodable(..)
            | Self::NoRoot
            | Self::NoCounters
            | Self::DanglingName(_)
            | Self::StrayNames { .. }
            | Self::MisplacedName { .. }
            | Self::WrongType { .. }
            | Self::SecondName(_)
            | Self::WrongParent { .. }
            | Self::Cycle { .. }
            | Self::LostInode { .. }
            | Self::NoRecord { .. }
            | Self::Unnamed(_)
            | Self::NamedOrphan(_)
            | Self::WrongNextIno { .. }
            | Self::BehindEnd { .. } => Severity::Structure,
            Self::StrayOrphan(_)
            | Self::WrongLinks { .. }
            | Self::WrongAllocated { .. }
            | Self::StrayChunk { .. }
            | Self::EmptyChunk { .. }
            | Self::StrayXattr { .. }
            | Self::StrayBlob(_)
            | Self::WrongLive { .. }
            | Self::WrongInodes { .. }
            | Self::WrongDataBytes { .. } => Severity::Count,
        }
    }

    /// The inode whose path tells people what is affected.
    pub(super) fn ino(&self) -> Option<u64> {
        match self {
            Self::Undecodable(Key::Inode(ino) | Key::Chunk { ino, .. } | Key::Xattr { ino, .. }, _) => Some(*ino),
            Self::DanglingName(place)
            | Self::MisplacedName { place, .. }
            | Self::WrongType { place, .. }
            | Self::SecondName(place) => Some(place.dir),
            Self::WrongParent { dir: ino, .. }
            | Self::NamedOrphan(ino)
            | Self::WrongLinks { ino, .. }
            | Self::WrongAllocated { ino, .. }
            | Self::EmptyChunk { ino, .. }
            | Self::BehindEnd { ino, .. }
            | Self::LostExtent { ino, .. }
            | Self::CorruptExtent { ino, .. }
            | Self::LostXattr { ino, .. } => Some(*ino),
            Self::UnknownKey(_)
            | Self::Undecodable(..)
            | Self::NoRoot
            | Self::NoCounters
            | Self::StrayNames { .. }
            | Self::Cycle { .. }
            | Self::LostInode { .. }
            | Self::NoRecord { .. }
            | Self::Unnamed(_)
            | Self::StrayOrphan(_)
            | Self::StrayChunk { .. }
            | Self::StrayXattr { .. }
            | Self::StrayBlob(_)
            | Self::WrongLive { .. }
            | Self::WrongInodes { .. }
            | Self::WrongDataBytes { .. }
            | Self::WrongNextIno { .. } => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey(key) => write!(f, "unknown key {:?}", String::from_utf8_lossy(key)),
            Self::Undecodable(key, why) => write!(f, "the record of {key:?} cannot be read: {why}"),
            Self::NoRoot => f.write_str("there is no root directory"),
            Self::NoCounters => f.write_str("the counters of the volume are missing"),
            Self::DanglingName(place) => write!(f, "{place} names inode {}, which does not exist", place.ino),
            Self::StrayNames { dir, hash } => write!(f, "names at {hash:016x} of inode {dir}, which is no directory"),
            Self::MisplacedName { place, hash } => {
                write!(f, "{place} is stored at {:016x}, where it cannot be found, and not at {hash:016x}", place.hash)
            }
            Self::WrongType { place, type_bits } => {
                write!(f, "{place} has another type than inode {} ({type_bits:o})", place.ino)
            }
            Self::SecondName(place) => write!(f, "{place} is a further name of directory {}", place.ino),
            Self::WrongParent { dir, parent, is } => {
                write!(f, "directory {dir} is in directory {parent}, but names {is} as its parent")
            }
            Self::Cycle { dir, .. } => {
                write!(f, "directory {dir} is below itself, and cannot be reached from the root")
            }
            Self::LostInode { ino, end_bytes } => {
                write!(f, "inode {ino} does not exist, and there is data of it up to byte {end_bytes}")
            }
            Self::Unnamed(ino) => write!(f, "inode {ino} has no name"),
            Self::NamedOrphan(ino) => write!(f, "inode {ino} has a name and is marked as having none"),
            Self::StrayOrphan(ino) => write!(f, "inode {ino} is marked as having no name, and does not exist"),
            Self::WrongLinks { ino, is, should } => write!(f, "inode {ino} counts {is} links and has {should}"),
            Self::WrongAllocated { ino, is, should } => {
                write!(f, "inode {ino} counts {is} allocated bytes and has {should}")
            }
            Self::StrayChunk { ino, index } => write!(f, "chunk {index} of inode {ino}, which is no file"),
            Self::EmptyChunk { ino, index } => write!(f, "chunk {index} of inode {ino} has a record and no extents"),
            Self::BehindEnd { ino, size_bytes } => {
                write!(f, "inode {ino} has data behind its end at byte {size_bytes}")
            }
            Self::LostExtent { ino, index, at, len, segment, why } => {
                let offset = index * crate::format::CHUNK_BYTES + u64::from(*at);
                write!(f, "inode {ino} has lost {len} bytes at {offset}: {} {why}", path_of(*segment))
            }
            Self::CorruptExtent { ino, offset_bytes, len, segment } => {
                write!(f, "inode {ino} has {len} corrupt bytes at {offset_bytes}: {}", path_of(*segment))
            }
            Self::StrayXattr { ino, number } => {
                write!(f, "value {number} of an attribute that inode {ino} does not have")
            }
            Self::LostXattr { ino, name } => {
                write!(f, "inode {ino} has lost the value of its attribute {}", name.display())
            }
            Self::StrayBlob(segment) => write!(f, "the bytes of segment {segment} have no record"),
            Self::NoRecord { segment, .. } => write!(f, "segment {segment} is used and has no record"),
            Self::WrongLive { segment, is, should } => {
                write!(f, "segment {segment} counts {is} live bytes and has {should}")
            }
            Self::WrongInodes { is, should } => write!(f, "the volume counts {is} inodes and has {should}"),
            Self::WrongDataBytes { is, should } => write!(f, "the volume counts {is} bytes of data and has {should}"),
            Self::WrongNextIno { is, should } => {
                write!(f, "the next inode would get number {is}, and {should} is the first free one")
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name {:?} in directory {}", self.name, self.dir)
    }
}
