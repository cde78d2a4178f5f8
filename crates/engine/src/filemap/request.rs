//! How a read or a write is made: where, for which tenant, with which flags, and what it may wait for.
//!
//! # Kernel counterpart
//! `struct kiocb` with its `IOCB_*` flags; `rwf_t`; `set_active_memcg` for the tenant.

use slackwater_sync::shim::Arc;

use crate::cgroup::Memcg;
use crate::units::Tick;

/// A read: where, and how. By default it is an ordinary read for the tenant that opened the file.
///
/// ```
/// # use slackwater::{File, FileError, ReadFlags, ReadRequest};
/// # fn example(file: &File, buffer: &mut [u8]) -> Result<usize, FileError> {
/// file.read(ReadRequest::at(4096).flags(ReadFlags::DONTCACHE), buffer)
/// # }
/// ```
#[derive(Copy, Clone, Debug)]
#[must_use]
pub struct ReadRequest<'a> {
    pub(super) offset_bytes: u64,
    pub(super) memcg: Option<&'a Arc<Memcg>>,
    pub(super) flags: ReadFlags,
}

impl<'a> ReadRequest<'a> {
    /// An ordinary read from `offset_bytes` on.
    #[inline]
    pub const fn at(offset_bytes: u64) -> Self {
        Self { offset_bytes, memcg: None, flags: ReadFlags::NONE }
    }

    /// Charges the pages that the read brings into the cache to `memcg`.
    #[inline]
    pub const fn memcg(self, memcg: &'a Arc<Memcg>) -> Self {
        Self { memcg: Some(memcg), ..self }
    }

    /// Replaces the flags.
    #[inline]
    pub const fn flags(self, flags: ReadFlags) -> Self {
        Self { flags, ..self }
    }
}

/// A write: where, and how. By default it is an ordinary write for the tenant that opened the file, and waits as long
/// as it takes.
///
/// ```
/// # use slackwater::{File, FileError, WaitFor, WriteRequest, Written};
/// # fn example(file: &File) -> Result<Written, FileError> {
/// file.write(WriteRequest::at(4096).wait(WaitFor::Nothing), b"slack water")
/// # }
/// ```
#[derive(Copy, Clone, Debug)]
#[must_use]
pub struct WriteRequest<'a> {
    pub(super) offset_bytes: u64,
    pub(super) memcg: Option<&'a Arc<Memcg>>,
    pub(super) flags: WriteFlags,
    pub(super) wait: WaitFor,
    pub(super) from_mapping: bool,
}

impl<'a> WriteRequest<'a> {
    /// An ordinary write at `offset_bytes`.
    #[inline]
    pub const fn at(offset_bytes: u64) -> Self {
        Self { offset_bytes, memcg: None, flags: WriteFlags::NONE, wait: WaitFor::Writeback, from_mapping: false }
    }

    /// A write of pages that a kernel held for a mapping of the file. The bytes are in memory that the kernel wants
    /// back, so the write waits for nothing, may take the arena's reserve, and does not ask whether the backend has
    /// space. The share of the volume and the limit of the tenant still apply. Which process stored to the pages is
    /// unknown, so the tenant of the inode's wb pays and no writer is throttled. After [`FileError::WouldBlock`], call
    /// [`File::prepare_write_from_mapping`].
    ///
    /// [`File::prepare_write_from_mapping`]: crate::File::prepare_write_from_mapping
    /// [`FileError::WouldBlock`]: crate::FileError::WouldBlock
    #[inline]
    pub const fn from_mapping(offset_bytes: u64) -> Self {
        Self { wait: WaitFor::Nothing, from_mapping: true, ..Self::at(offset_bytes) }
    }

    /// Charges the pages that the write dirties to `memcg`.
    #[inline]
    pub const fn memcg(self, memcg: &'a Arc<Memcg>) -> Self {
        Self { memcg: Some(memcg), ..self }
    }

    /// Replaces the flags.
    #[inline]
    pub const fn flags(self, flags: WriteFlags) -> Self {
        Self { flags, ..self }
    }

    /// Sets what the write may wait for.
    #[inline]
    pub const fn wait(self, wait: WaitFor) -> Self {
        Self { wait, ..self }
    }

    /// The same request for what follows its first `done` bytes.
    #[inline]
    pub(super) const fn after(self, done: usize) -> Self {
        Self { offset_bytes: self.offset_bytes + done as u64, ..self }
    }
}

/// The longest wait that a write may make. Each value includes those before it. Every write waits for others that copy
/// to or from the same page.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub enum WaitFor {
    /// Nothing. If a page has to be read first, if the backend has to be asked for space, or if the file is locked, the
    /// write fails with [`FileError::WouldBlock`] and has written nothing. Kernel: `IOCB_NOWAIT`.
    ///
    /// [`FileError::WouldBlock`]: crate::FileError::WouldBlock
    Nothing,
    /// The backend, if a page outside the cache is covered in part or the backend's free space is unknown; and other
    /// writers and truncates of the file.
    Backend,
    /// Write-back, until all bytes are taken: it frees frames, and a writer that dirties pages faster than the backend
    /// takes them pauses.
    Writeback,
    /// The same, but not after this time.
    WritebackUntil(Tick),
}

/// Flags of a read. Kernel: `rwf_t`.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ReadFlags(u8);

impl ReadFlags {
    /// An ordinary read.
    pub const NONE: Self = Self(0);
    /// Leaves nothing in the cache: pages that the read brings in, and those that were read ahead for it, are dropped
    /// once such a read has returned them. Pages that were cached before stay. Kernel: `RWF_DONTCACHE`.
    pub const DONTCACHE: Self = Self(1);

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

/// Flags of a write. Kernel: `rwf_t`.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct WriteFlags(u8);

impl WriteFlags {
    /// An ordinary write.
    pub const NONE: Self = Self(0);
    /// Leaves nothing in the cache: pages that the write brings in are written back soon, and dropped once they are
    /// durable. Pages that were cached before stay. So does a page that an ordinary write writes to before it was
    /// dropped; reads change nothing. Kernel: `RWF_DONTCACHE`.
    pub const DONTCACHE: Self = Self(1);

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}
