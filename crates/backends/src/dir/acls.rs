//! Whether a directory has a default ACL, which then decides about the permissions of what is created in it.
//!
//! The answer of the file system is kept for a second, since a program that creates many files in a directory would ask
//! for each of them.
//!
//! # Invariants
//! L1. An answer that was asked for before a change of a default ACL through this volume is not used after the change.
//!     Both times are read from one clock: that of an answer before the file system is asked, and that of a change
//!     after it was made. Of equal times the change counts as the later one.
//! L2. A change by another process is seen within [`KNOWN_NS`], like other changes of attributes in the source.

use std::ffi::OsStr;

use rustix::fs::getxattr_query;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU64, Ordering};

use super::errno::failed;
use super::node::DirNode;
use super::volume::{Answer, Volume};

const DEFAULT_ACL: &str = "system.posix_acl_default";

/// How long a directory is known to have no default ACL.
const KNOWN_NS: u64 = 1_000_000_000;

/// The knowledge of a volume about the ACLs of its file system.
#[derive(Default)]
pub(super) struct Acls {
    /// The file system has none.
    are_missing: AtomicBool,
    /// When a default ACL was last set or removed.
    changed_ns: AtomicU64,
}

/// When a directory was last found to have no default ACL; 0 for never.
#[derive(Default)]
pub(super) struct NoDefaultAcl {
    asked_ns: AtomicU64,
}

impl Volume {
    /// Whether the permissions of new nodes in `dir` follow from its ACL.
    pub(super) fn has_default_acl(&self, dir: &DirNode) -> Answer<bool> {
        if self.acls.are_missing.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let now_ns = now_ns();
        let asked_ns = dir.no_default_acl.asked_ns.load(Ordering::Relaxed);
        // Acquire pairs with the release of a change whose caller has been answered: its time is seen here.
        let is_unchanged = self.acls.changed_ns.load(Ordering::Acquire) < asked_ns;
        if is_unchanged && now_ns.saturating_sub(asked_ns) < KNOWN_NS {
            return Ok(false);
        }
        match getxattr_query(self.fds.path_of(&dir.path), DEFAULT_ACL) {
            Ok(_) => Ok(true),
            Err(Errno::NODATA) => {
                dir.no_default_acl.asked_ns.store(now_ns, Ordering::Relaxed); // L1
                Ok(false)
            }
            Err(Errno::OPNOTSUPP) => {
                self.acls.are_missing.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(errno) => Err(failed("getxattr posix_acl_default")(errno)),
        }
    }

    /// An attribute was set or removed.
    pub(super) fn attribute_changed(&self, name: &OsStr) {
        if name == DEFAULT_ACL {
            self.acls.changed_ns.fetch_max(now_ns(), Ordering::Release); // L1
        }
    }
}

/// The time of a clock that is cheap to read and advances every few milliseconds.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
