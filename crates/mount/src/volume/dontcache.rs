//! Which data stays out of the cache: set on the file, else for the reader's or writer's tenant, else for the volume.
//!
//! A file sets it by the extended attribute [`NAME`], `1` or `0`, which is stored in the source like any other. The
//! source is asked when the file is first opened. After that, changes made through the mount apply at once, to open
//! files as well. Pages that the kernel held for a mapping are always cached.
//!
//! # Invariants
//! O1. The value cached in a node was read after every completed change of the attribute through this mount. Each
//!     completed change bumps the generation, and a value is stored only in the generation in which its read began.

use std::ffi::OsStr;

use rustix::io::Errno;
use slackwater::{ErrorKind, ReadFlags, WriteFlags};
use slackwater_fuse::{Notification, RequestHeader};
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use crate::volume::Volume;
use crate::volume::errno::Failure;
use crate::volume::nodes::Node;

/// The name of the attribute.
pub(super) const NAME: &str = "user.slackwater.dontcache";

/// Values of the attribute, in the low bits of a [`DontcacheState`].
const UNKNOWN: u64 = 0;
const UNSET: u64 = 1;
const OFF: u64 = 2;
const ON: u64 = 3;
const VALUE_MASK: u64 = 3;
/// The generation is above them.
const GENERATION: u64 = 4;

/// The file's own setting, as far as it is known.
#[derive(Debug)]
pub(super) struct DontcacheState(AtomicU64);

impl DontcacheState {
    pub(super) fn unknown() -> Self {
        Self(AtomicU64::new(UNKNOWN))
    }

    fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Acquire) & VALUE_MASK {
            ON => Some(true),
            OFF => Some(false),
            _ => None,
        }
    }

    fn is_known(&self) -> bool {
        self.0.load(Ordering::Acquire) & VALUE_MASK != UNKNOWN
    }

    /// A change has completed: values being read are stale.
    fn bump(&self) {
        self.0.fetch_add(GENERATION, Ordering::AcqRel);
    }

    /// Stores `state`, which was read after `seen`. Returns false if a change has completed since (O1).
    fn store(&self, seen: u64, state: u64) -> bool {
        let new = seen & !VALUE_MASK | state;
        self.0.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Parses a value. An invalid one, which can only come from outside the mount, counts as unset.
fn parse_value(value: &[u8]) -> u64 {
    match value {
        b"1" => ON,
        b"0" => OFF,
        _ => UNSET,
    }
}

/// Checks a value of the attribute before it is set.
///
/// # Errors
/// EINVAL.
pub(super) fn check(name: &OsStr, value: &[u8]) -> Result<(), Failure> {
    if name == NAME && parse_value(value) == UNSET { Err(Errno::INVAL.into()) } else { Ok(()) }
}

impl Volume {
    /// The setting of a request's tenant, if any.
    pub(super) fn tenant_dontcache(&self, header: &RequestHeader) -> Option<bool> {
        self.tenancy.as_ref()?.dontcache(header.pid, header.uid)
    }

    fn is_dontcache(&self, node: &Node, tenant: impl FnOnce() -> Option<bool>) -> bool {
        node.dontcache.get().or_else(tenant).unwrap_or_else(|| self.dontcache.load(Ordering::Relaxed))
    }

    /// Whether an open file bypasses the kernel's page cache as well, for an opener with the setting `tenant`.
    pub(super) fn is_open_dontcache(&self, node: &Node, tenant: Option<bool>) -> bool {
        self.is_dontcache(node, || tenant)
    }

    /// Flags for a request's read.
    pub(super) fn read_flags(&self, node: &Node, header: &RequestHeader) -> ReadFlags {
        if self.is_dontcache(node, || self.tenant_dontcache(header)) { ReadFlags::DONTCACHE } else { ReadFlags::NONE }
    }

    /// Flags for a request's write.
    pub(super) fn write_flags(&self, node: &Node, header: &RequestHeader) -> WriteFlags {
        if self.is_dontcache(node, || self.tenant_dontcache(header)) { WriteFlags::DONTCACHE } else { WriteFlags::NONE }
    }

    /// Reads the setting of a file that is being opened, unless it is known. If that fails, the next open tries again.
    ///
    /// # Blocking
    /// Waits for the backend.
    pub(super) fn load_dontcache(&self, node: &Node) {
        if !node.dontcache.is_known() {
            self.read_dontcache(node);
        }
    }

    /// A file was just created: it has no setting.
    pub(super) fn mark_unset(node: &Node) {
        let seen = node.dontcache.0.load(Ordering::Acquire);
        if seen == UNKNOWN {
            let _ = node.dontcache.store(seen, UNSET); // or another request has set it meanwhile
        }
    }

    /// The attribute `name` of `node` was set or removed.
    ///
    /// # Blocking
    /// Waits for the backend, if it is this attribute.
    pub(super) fn xattr_changed(&self, node: &Node, name: &OsStr) {
        if name == NAME {
            node.dontcache.bump();
            self.read_dontcache(node);
            if node.dontcache.get() == Some(true)
                && let Some(notifier) = self.notifier.get()
            {
                // Drops pages that the kernel caches for earlier readers.
                notifier.queue(Notification::InvalInode { node: node.id(), offset: 0, len: 0 });
            }
        }
    }

    fn read_dontcache(&self, node: &Node) {
        loop {
            let seen = node.dontcache.0.load(Ordering::Acquire);
            let state = match self.sb.getxattr(&node.inode, NAME) {
                Ok(value) => parse_value(&value),
                Err(error) if matches!(error.kind(), ErrorKind::NoData | ErrorKind::Unsupported) => UNSET,
                Err(_) => return,
            };
            if node.dontcache.store(seen, state) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_read_before_a_change_has_completed_is_not_stored() {
        let state = DontcacheState::unknown();
        let seen = state.0.load(Ordering::Relaxed);
        state.bump();
        assert!(!state.store(seen, ON) && !state.is_known());
        let seen = state.0.load(Ordering::Relaxed);
        assert!(state.store(seen, OFF));
        assert_eq!(state.get(), Some(false));
        state.bump();
        assert_eq!(state.get(), Some(false), "until it is read again");
    }

    #[test]
    fn valid_values_are_1_and_0() {
        assert!([b"1", b"0"].iter().all(|value| check(OsStr::new(NAME), *value).is_ok()));
        for value in [&b""[..], b"2", b"01", b"1\n", b"yes"] {
            assert!(check(OsStr::new(NAME), value).is_err() && check(OsStr::new("user.other"), value).is_ok());
        }
    }
}
