//! Bits in requests and replies, a module for each word.

/// INIT: features of kernel and server. Bits from 32 on are in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const FILE_OPS: u64 = 1 << 2;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const SPLICE_WRITE: u64 = 1 << 7;
    pub const SPLICE_MOVE: u64 = 1 << 8;
    pub const SPLICE_READ: u64 = 1 << 9;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const MAP_ALIGNMENT: u64 = 1 << 26;
    pub const SUBMOUNTS: u64 = 1 << 27;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const SECURITY_CTX: u64 = 1 << 32;
    pub const HAS_INODE_DAX: u64 = 1 << 33;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
    pub const REQUEST_TIMEOUT: u64 = 1 << 42;
}

/// Reply to OPEN, OPENDIR, CREATE and TMPFILE.
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NONSEEKABLE: u32 = 1 << 2;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const STREAM: u32 = 1 << 4;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// SETATTR: which fields of [`SetattrIn`](super::SetattrIn) are valid.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// GETATTR and STATX.
pub mod getattr {
    pub const FH: u32 = 1 << 0;
}

/// OPEN and CREATE, `open_flags`.
pub mod open_in {
    pub const KILL_SUIDGID: u32 = 1 << 0;
}

/// READ, `read_flags`.
pub mod read_in {
    pub const LOCKOWNER: u32 = 1 << 1;
}

/// WRITE, `write_flags`.
pub mod write_in {
    /// The data is from the kernel's page cache: the writer is unknown.
    pub const CACHE: u32 = 1 << 0;
    pub const LOCKOWNER: u32 = 1 << 1;
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// RELEASE, `release_flags`.
pub mod release {
    pub const FLUSH: u32 = 1 << 0;
    pub const FLOCK_UNLOCK: u32 = 1 << 1;
}

/// FSYNC and FSYNCDIR, `fsync_flags`.
pub mod fsync {
    /// Data, and the metadata needed to read it.
    pub const FDATASYNC: u32 = 1 << 0;
}

/// GETLK, SETLK and SETLKW, `lk_flags`.
pub mod lk {
    /// A lock of flock(2).
    pub const FLOCK: u32 = 1 << 0;
}

/// SETXATTR, `setxattr_flags`.
pub mod setxattr {
    pub const ACL_KILL_SGID: u32 = 1 << 0;
}

/// OPEN, CREATE and WRITE, `flags`: the flags of open(2) that libraries may define differently.
///
/// The values are those of `asm-generic/fcntl.h`, which x86-64, arm64, riscv64 and s390x share.
pub mod open {
    /// Each write makes its data durable, with the attributes needed to read it. glibc and rustix use this name for the
    /// value of [`SYNC`] on some targets.
    pub const DSYNC: u32 = 0o10_000;
    /// Each write makes the file durable. Includes the bit of [`DSYNC`].
    pub const SYNC: u32 = 0o4_010_000;
}
