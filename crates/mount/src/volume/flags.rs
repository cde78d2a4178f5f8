//! Inode flags (`chattr`, `lsattr`), and what append-only and immutable mean for a cache.
//!
//! The source stores the flags and enforces what they forbid. The kernel has checked that the caller may change them:
//! owner or CAP_FOWNER, and CAP_LINUX_IMMUTABLE for append-only and immutable. The source checks further privileges for
//! some flags, but sees the server's and not the caller's. Those flags can be passed only unchanged.
//!
//! Before it sets flags the kernel reads them by `FS_IOC_FSGETXATTR`. The other fields of that structure, the project
//! id and extent sizes, are not supported: they are 0 and cannot be set.
//!
//! # Append-only and immutable files
//! The source accepts no page for such a file, not even from the server. So such a file cannot be opened for writing
//! here. A file gets such a flag only when no handle is open for writing and all its data is durable. Appending to an
//! append-only file is not supported: the cache writes whole pages, and the source rejects a page that begins before
//! the end.
//!
//! # Invariants
//! G1. An open for writing counts itself first and checks the flags afterwards; setting a flag checks the count
//!     afterwards. One of the two sees the other and fails.

use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use slackwater::ErrorKind;
use slackwater::backend::{NodeKind, Protection, file_flags};
use slackwater_sync::Completion;
use slackwater_sync::shim::atomic::Ordering;

use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::Failure;
use crate::volume::nodes::Node;

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;

/// Bytes of `struct fsxattr`; the flags come first.
const FSXATTR_BYTES: usize = 28;
/// Flags that have a bit in `fsx_xflags`, and that bit: append, immutable, synchronous, no access time, no dump.
const XFLAGS: [(u32, u32); 5] =
    [(file_flags::APPEND, 0x10), (file_flags::IMMUTABLE, 0x8), (0x8, 0x20), (0x80, 0x40), (0x40, 0x80)];

/// The RELEASE of a closed file may take up to a second to arrive: polls for it, and the time between them.
const RELEASE_POLLS: u32 = 500;
const RELEASE_POLL_INTERVAL: Duration = Duration::from_millis(2);

const PROTECTING: u32 = file_flags::IMMUTABLE | file_flags::APPEND;
/// Compressed or not, synchronous (of a directory too), no dump, no access time, no tail packing, top of a hierarchy,
/// no copy-on-write.
const UNPRIVILEGED: u32 = 0x4 | 0x400 | 0x8 | 0x1_0000 | 0x40 | 0x80 | 0x8000 | 0x2_0000 | 0x80_0000;

/// A supported ioctl.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum FlagsIoctl {
    Get,
    /// Get, in the form of `struct fsxattr`.
    GetXflags,
    Set(u32),
}

impl FlagsIoctl {
    pub(super) fn parse(command: u32, input: &[u8]) -> Option<Self> {
        match command {
            FS_IOC_GETFLAGS => Some(Self::Get),
            FS_IOC_FSGETXATTR => Some(Self::GetXflags),
            FS_IOC_SETFLAGS => Some(Self::Set(u32::from_ne_bytes(*input.first_chunk()?))),
            _ => None,
        }
    }
}

impl Volume {
    /// IOCTL.
    pub(super) fn ioctl(&self, node: &Node, ioctl: FlagsIoctl) -> Result<Answer, Failure> {
        let flags = self.sb.flags(&node.inode).map_err(|error| match error.kind() == ErrorKind::Unsupported {
            true => Failure(Errno::NOTTY),
            false => error.into(),
        })?;
        match ioctl {
            FlagsIoctl::Get => Ok(Answer::Ioctl(flags.to_ne_bytes().into())),
            FlagsIoctl::GetXflags => Ok(Answer::Ioctl(xflags(flags))),
            FlagsIoctl::Set(wanted) => self.set_flags(node, flags, wanted),
        }
    }

    fn set_flags(&self, node: &Node, earlier: u32, wanted: u32) -> Result<Answer, Failure> {
        if (earlier ^ wanted) & !(PROTECTING | UNPRIVILEGED) != 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        let set = |flags| {
            let set = self.unfrozen(|| self.sb.set_flags(&node.inode, flags));
            if let Some(notifier) = self.notifier.get() {
                // The answer has no attributes, and the kernel would keep the ctime before. It fails when the mount is gone.
                let _ = notifier.inval_attributes(node.id());
            }
            set
        };
        let protects = wanted & !earlier & PROTECTING != 0 && node.inode.kind() == NodeKind::File;
        if protects && !wait_no_writers(node) {
            return Err(Errno::BUSY.into());
        }
        set(wanted)?;
        if protects && node.writers.load(Ordering::SeqCst) != 0 {
            set(earlier)?; // G1
            return Err(Errno::BUSY.into());
        }
        Ok(Answer::Ioctl(Vec::new()))
    }
}

fn xflags(flags: u32) -> Vec<u8> {
    let xflags = XFLAGS.iter().filter(|(flag, _)| flags & flag != 0).fold(0, |all, (_, xflag)| all | xflag);
    let mut fsxattr = vec![0; FSXATTR_BYTES];
    fsxattr[..size_of::<u32>()].copy_from_slice(&u32::to_ne_bytes(xflags));
    fsxattr
}

/// Whether no handle is open for writing, after waiting for RELEASEs on their way. The kernel sends a RELEASE for a
/// descriptor that was just closed, but does not wait for it.
fn wait_no_writers(node: &Node) -> bool {
    let has_none = || node.writers.load(Ordering::SeqCst) == 0;
    let never = Completion::new();
    has_none() || (0..RELEASE_POLLS).any(|_| never.wait_timeout(RELEASE_POLL_INTERVAL) && has_none())
}

/// Whether a file may be opened with `flags`; called after the open was counted (G1).
pub(super) fn check_protection(node: &Node, flags: OFlags) -> Result<(), Errno> {
    match node.inode.attr().protection {
        Protection::None => Ok(()),
        Protection::AppendOnly if flags.contains(OFlags::APPEND) => Err(Errno::OPNOTSUPP),
        Protection::AppendOnly | Protection::Immutable => Err(Errno::PERM),
    }
}
