//! The properties of a volume's file system, derived from the magic number in `statfs`.
//!
//! Most file systems keep their data on this machine, and the kernel guarantees its durability. A few keep it on a
//! server, and differ in what the kernel does on its own. This is the only place that distinguishes them.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{fstatfs, major, minor};
use rustix::io;

const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;
const TMPFS: u64 = 0x0102_1994;
const ZFS: u64 = 0x2fc1_2fc1;
const BCACHEFS: u64 = 0xca45_1a4e;
const MSDOS: u64 = 0x4d44;
const FUSE: u64 = 0x6573_5546;
const NFS: u64 = 0x6969;
const V9FS: u64 = 0x0102_1997;
const SMB: u64 = 0x517b;
const CIFS: u64 = 0xff53_4d42;
const SMB2: u64 = 0xfe53_4d42;

/// The largest file of ext2 with blocks of 4 KiB, rounded to 2 TiB. Of the file systems without a line of their own, it
/// has the lowest limit.
const OTHERS_MAX: u64 = 1 << 41;

/// How the changes on a file system become durable.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Syncs {
    /// By `fsync` of each changed file and directory only: the file system passes on no `syncfs`.
    Node,
    /// Both by `fsync` of each changed file and directory, and by `syncfs`.
    NodeOrAll,
    /// By `syncfs`. `fsync` of each changed file and directory may not be enough, for example without a journal.
    All,
}

/// The kind of a file system.
#[derive(Copy, Clone, Debug)]
pub(super) struct FileSystem {
    magic: u64,
    block_bytes: u64,
}

impl FileSystem {
    /// The file system of `root`.
    pub(super) fn of(root: &OwnedFd) -> io::Result<Self> {
        let stat = fstatfs(root)?;
        // The number has 32 bits, and is sign-extended if the field is wider.
        Ok(Self { magic: stat.f_type as u64 & u64::from(u32::MAX), block_bytes: stat.f_bsize as u64 })
    }

    /// How changes become durable. `dev` is its device.
    pub(super) fn syncs(self, dev: u64) -> Syncs {
        match self.magic {
            FUSE | V9FS | SMB | CIFS | SMB2 => Syncs::Node,
            EXT4 if has_journal(dev) => Syncs::NodeOrAll,
            XFS | BTRFS | ZFS | BCACHEFS => Syncs::NodeOrAll,
            _ => Syncs::All,
        }
    }

    /// Whether `close` may wait for a server.
    pub(super) fn close_may_wait(self) -> bool {
        matches!(self.magic, FUSE | NFS | V9FS | SMB | CIFS | SMB2)
    }

    /// Whether a call of another user succeeds if the kernel permits it to this process. A server decides about users by
    /// itself, and may accept calls of root alone, or of all users but root.
    pub(super) fn permits_as_the_kernel(self) -> bool {
        !self.close_may_wait()
    }

    /// Whether `fdatasync` of a directory that has not changed empties the cache of the device and does nothing else. That
    /// of XFS does nothing.
    pub(super) fn flushes_by_directory(self) -> bool {
        self.magic == EXT4
    }

    /// Whether a kernel handle identifies a file in any process, as long as the file exists. FUSE forgets nodes that
    /// are not open, and a server may then give the same file another number.
    pub(super) fn has_lasting_handles(self) -> bool {
        self.magic != FUSE
    }

    /// The part of `free_bytes` that the file system may need for itself if all the rest becomes data: the blocks that
    /// map the others. One part in 128 is more than a map of single blocks needs, up to the largest amount that a large
    /// cache can have dirty at once. The last blocks are reserved for the map of the last file.
    pub(super) fn own_bytes(self, free_bytes: u64) -> u64 {
        const KEPT_BLOCKS: u64 = 16;
        const MOST: u64 = 64 << 20;
        match self.magic {
            TMPFS => 0, // its maps do not use the space that it counts
            _ => ((free_bytes / 128).min(MOST) + KEPT_BLOCKS * self.block_bytes.min(4096)).min(free_bytes),
        }
    }

    /// The maximum size of a file. No system call reports it, and the engine has to refuse a write that is too large
    /// *before* it takes the bytes. So file systems with a higher limit are listed, and all others get a limit that all
    /// but the FAT family support.
    pub(super) fn max_file_bytes(self) -> u64 {
        match self.magic {
            // Extents number blocks in 32 bits and reserve the last number.
            EXT4 => u64::from(u32::MAX) * self.block_bytes.min(4096),
            XFS | BTRFS | TMPFS | ZFS | BCACHEFS => i64::MAX as u64,
            MSDOS => u64::from(u32::MAX),
            _ => OTHERS_MAX,
        }
    }
}

/// Whether an ext4 on `dev` has a journal. False if that is not known; ext2 has the same magic number.
fn has_journal(dev: u64) -> bool {
    let device = fs::read_link(format!("/sys/dev/block/{}:{}", major(dev), minor(dev)));
    let name = device.ok().and_then(|device| device.file_name().map(OsStr::to_owned));
    name.is_some_and(|name| Path::new("/sys/fs/ext4").join(name).join("journal_task").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_blocks_of(block_bytes: u64, magic: u64) -> FileSystem {
        FileSystem { magic, block_bytes }
    }

    #[test]
    fn a_server_is_distinguished_from_a_disk() {
        let local = with_blocks_of(4096, EXT4);
        assert_eq!(local.syncs(0), Syncs::All, "ext2, or nothing is known of a journal");
        assert_eq!(with_blocks_of(4096, XFS).syncs(0), Syncs::NodeOrAll);
        assert!(!local.close_may_wait() && local.has_lasting_handles());
        let nfs = with_blocks_of(1 << 20, NFS);
        assert_eq!(nfs.syncs(0), Syncs::All);
        assert!(nfs.close_may_wait() && nfs.has_lasting_handles());
        for magic in [FUSE, V9FS, SMB, CIFS, SMB2] {
            let remote = with_blocks_of(4096, magic);
            assert_eq!(remote.syncs(0), Syncs::Node, "{magic:#x}");
            assert!(remote.close_may_wait(), "{magic:#x}");
            assert_eq!(remote.has_lasting_handles(), magic != FUSE);
        }
    }

    #[test]
    fn ext4_stops_a_block_short_of_16_tib() {
        assert_eq!(with_blocks_of(4096, EXT4).max_file_bytes(), (16 << 40) - 4096);
        assert_eq!(with_blocks_of(1024, EXT4).max_file_bytes(), (4 << 40) - 1024);
    }

    #[test]
    fn a_disk_reserves_blocks_for_its_maps() {
        let ext4 = with_blocks_of(4096, EXT4);
        assert_eq!(
            [0, 4096, 65536, 1 << 20, 1 << 40].map(|free| ext4.own_bytes(free)),
            [0, 4096, 65536, (1 << 13) + 65536, (64 << 20) + 65536,]
        );
        assert_eq!(with_blocks_of(4096, TMPFS).own_bytes(1 << 20), 0);
    }

    #[test]
    fn an_unknown_file_system_gets_cautious_limits() {
        assert_eq!(with_blocks_of(4096, MSDOS).syncs(0), Syncs::All);
        assert_eq!(with_blocks_of(1 << 20, NFS).max_file_bytes(), 2 << 40);
        assert_eq!(with_blocks_of(4096, MSDOS).max_file_bytes(), (4 << 30) - 1);
    }
}
