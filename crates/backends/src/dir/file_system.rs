//! What a volume has to know of the file system it is on, told by the magic number that `statfs` gives.
//!
//! On most the data is in this machine, and the kernel keeps its word. A few have theirs with a server, and differ
//! in what the kernel does by itself. This is the one place that tells them apart.

use std::os::fd::OwnedFd;

use rustix::fs::fstatfs;
use rustix::io;

const FUSE: u64 = 0x6573_5546;
const NFS: u64 = 0x6969;
const V9FS: u64 = 0x0102_1997;
const SMB: u64 = 0x517b;
const CIFS: u64 = 0xff53_4d42;
const SMB2: u64 = 0xfe53_4d42;

/// Kinds of file systems, by what they do differently.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum FileSystem {
    /// No server that is known of.
    Local,
    Fuse,
    Nfs,
    /// 9p and SMB.
    Remote,
}

impl FileSystem {
    /// That of `root`.
    pub(super) fn of(root: &OwnedFd) -> io::Result<Self> {
        // The number is 32 bits wide, and sign-extended where the field is wider.
        Ok(Self::by_magic(fstatfs(root)?.f_type as u64 & u64::from(u32::MAX)))
    }

    fn by_magic(magic: u64) -> Self {
        match magic {
            FUSE => Self::Fuse,
            NFS => Self::Nfs,
            V9FS | SMB | CIFS | SMB2 => Self::Remote,
            _ => Self::Local,
        }
    }

    /// Whether `syncfs` makes everything durable. FUSE, 9p and SMB hand a sync on only for a file that is asked for
    /// by itself.
    pub(super) fn has_syncfs(self) -> bool {
        matches!(self, Self::Local | Self::Nfs)
    }

    /// Whether `close` may wait for a server.
    pub(super) fn close_may_wait(self) -> bool {
        self != Self::Local
    }

    /// Whether a kernel handle says which file it is in any process, as long as the file exists. FUSE forgets what
    /// nobody has open, and a server may then give the same file another number.
    pub(super) fn has_lasting_handles(self) -> bool {
        self != Self::Fuse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_told_from_a_disk() {
        const EXT4: u64 = 0xef53;
        let local = FileSystem::by_magic(EXT4);
        assert!(local.has_syncfs() && !local.close_may_wait() && local.has_lasting_handles());
        let nfs = FileSystem::by_magic(NFS);
        assert!(nfs.has_syncfs() && nfs.close_may_wait() && nfs.has_lasting_handles());
        for magic in [FUSE, V9FS, SMB, CIFS, SMB2] {
            let remote = FileSystem::by_magic(magic);
            assert!(!remote.has_syncfs() && remote.close_may_wait(), "{magic:#x}");
            assert_eq!(remote.has_lasting_handles(), magic != FUSE);
        }
    }
}
