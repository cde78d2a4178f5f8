//! Operations: one variant per request.

use std::ffi::OsStr;

use crate::abi::{
    AccessIn, BmapIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, FsyncIn, GetattrIn, IoctlIn, LkIn, LseekIn,
    MkdirIn, MknodIn, OpenIn, PollIn, ReadIn, ReleaseIn, SetattrIn, SetxattrIn, StatxIn, WriteIn,
};

/// The operation of a request. "The node" is [`node_id`](crate::RequestHeader::node_id). Names are entries of it unless
/// stated otherwise, not empty and without a slash.
#[derive(Copy, Clone, Debug)]
#[allow(missing_docs, reason = "fields have the kernel's names and meanings")]
pub enum Operation<'a> {
    Lookup {
        name: &'a OsStr,
    },
    Forget(Forgets<'a>),
    Getattr(GetattrIn),
    Statx(StatxIn),
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    Mknod {
        args: MknodIn,
        name: &'a OsStr,
    },
    Mkdir {
        args: MkdirIn,
        name: &'a OsStr,
    },
    Unlink {
        name: &'a OsStr,
    },
    Rmdir {
        name: &'a OsStr,
    },
    Rename {
        name: &'a OsStr,
        new_parent: u64,
        new_name: &'a OsStr,
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a OsStr,
    },
    /// Truncates with `O_TRUNC`, if ATOMIC_O_TRUNC is in use.
    Open(OpenIn),
    Read(ReadIn),
    /// The payload is in [`Payload`](crate::Payload).
    Write(WriteIn),
    Statfs,
    Release(ReleaseIn),
    Fsync(FsyncIn),
    Setxattr {
        args: SetxattrIn,
        name: &'a OsStr,
        value: &'a [u8],
    },
    /// `size` 0 asks for the size.
    Getxattr {
        size: u32,
        name: &'a OsStr,
    },
    /// `size` 0 asks for the size.
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a OsStr,
    },
    Flush(FlushIn),
    Init(InitRequest),
    Opendir(OpenIn),
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Releasedir(ReleaseIn),
    Fsyncdir(FsyncIn),
    Getlk(LkIn),
    Setlk(LkIn),
    Setlkw(LkIn),
    Access(AccessIn),
    Create {
        args: CreateIn,
        name: &'a OsStr,
    },
    Tmpfile(CreateIn),
    Interrupt {
        unique: u64,
    },
    Bmap(BmapIn),
    Destroy,
    Ioctl {
        args: IoctlIn,
        input: &'a [u8],
    },
    Poll(PollIn),
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange(CopyFileRangeIn),
    Syncfs,
    /// A request that this crate does not know, by its opcode.
    Unknown(u32),
}

/// The kernel's offer in INIT.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct InitRequest {
    /// Major version of the kernel's protocol.
    pub major: u32,
    /// Minor version of the kernel's protocol.
    pub minor: u32,
    /// Bytes of readahead.
    pub max_readahead: u32,
    /// Bits of [`init`](crate::abi::init), both words.
    pub flags: u64,
}

/// Nodes that the kernel forgets, each with the number of lookups that it returns. An iterator of `(node, lookups)`.
#[derive(Copy, Clone, Debug)]
pub struct Forgets<'a> {
    single: Option<(u64, u64)>,
    /// Whole records of a BATCH_FORGET.
    records: &'a [[u8; 16]],
}

impl<'a> Forgets<'a> {
    pub(super) const fn single(node: u64, lookups: u64) -> Self {
        Self { single: Some((node, lookups)), records: &[] }
    }

    pub(super) const fn batch(records: &'a [[u8; 16]]) -> Self {
        Self { single: None, records }
    }
}

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if let Some(single) = self.single.take() {
            return Some(single);
        }
        let (first, rest) = self.records.split_first()?;
        self.records = rest;
        let both = u128::from_ne_bytes(*first);
        // The node comes first in memory.
        let (low, high) = (both as u64, (both >> 64) as u64);
        Some(if cfg!(target_endian = "little") { (low, high) } else { (high, low) })
    }
}
