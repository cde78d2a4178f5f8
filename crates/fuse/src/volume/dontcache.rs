//! What stays out of the cache: a file says so itself, else its reader's or writer's tenant, else the volume.
//!
//! A file says it by the extended attribute [`NAME`], `1` or `0`, which is kept in the source like any other. The source is
//! asked when the file is first opened; after that what is set by way of the mount counts, at once and for files that are
//! open already. Pages that a kernel held for a mapping are ordinary ones.
//!
//! # Invariants
//! O1. What a node remembers was read after every change of the attribute by way of this mount has ended: a change that ends
//!     bumps the generation, and only what was read in the present one is remembered.

use std::ffi::OsStr;

use rustix::io::Errno;
use slackwater::{ErrorKind, ReadFlags, WriteFlags};
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use crate::notifier::Notification;
use crate::request::RequestHeader;
use crate::volume::Volume;
use crate::volume::errno::Failure;
use crate::volume::nodes::Node;

/// The attribute.
pub(super) const NAME: &str = "user.slackwater.dontcache";

/// What it can say, in the lower bits of a [`DontcacheState`].
const UNKNOWN: u64 = 0;
const UNSET: u64 = 1;
const OFF: u64 = 2;
const ON: u64 = 3;
const VALUE_MASK: u64 = 3;
/// Above them is the generation.
const GENERATION: u64 = 4;

/// What a file says for itself, as far as it is known.
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

    /// A change has ended: what is being read is too old.
    fn bump(&self) {
        self.0.fetch_add(GENERATION, Ordering::AcqRel);
    }

    /// Remembers `word`, which was read after `seen`. False if a change has ended since (O1).
    fn store(&self, seen: u64, state: u64) -> bool {
        let new = seen & !VALUE_MASK | state;
        self.0.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// What a value says; nothing, if it was put into the source by somebody who did not know.
fn parse_value(value: &[u8]) -> u64 {
    match value {
        b"1" => ON,
        b"0" => OFF,
        _ => UNSET,
    }
}

/// Whether the attribute may have this value.
///
/// # Errors
/// EINVAL.
pub(super) fn check(name: &OsStr, value: &[u8]) -> Result<(), Failure> {
    if name == NAME && parse_value(value) == UNSET { Err(Errno::INVAL.into()) } else { Ok(()) }
}

impl Volume {
    /// What the tenant of a request says, if any tenant says something.
    pub(super) fn tenant_dontcache(&self, header: &RequestHeader) -> Option<bool> {
        self.tenancy.as_ref()?.dontcache(header.pid, header.uid)
    }

    fn is_dontcache(&self, node: &Node, tenant: impl FnOnce() -> Option<bool>) -> bool {
        node.dontcache.get().or_else(tenant).unwrap_or_else(|| self.dontcache.load(Ordering::Relaxed))
    }

    /// Whether a file goes around the kernel's cache as well, for who opens it on behalf of `tenant`.
    pub(super) fn is_open_dontcache(&self, node: &Node, tenant: Option<bool>) -> bool {
        self.is_dontcache(node, || tenant)
    }

    /// How a request reads.
    pub(super) fn read_flags(&self, node: &Node, header: &RequestHeader) -> ReadFlags {
        if self.is_dontcache(node, || self.tenant_dontcache(header)) { ReadFlags::DONTCACHE } else { ReadFlags::NONE }
    }

    /// How a request writes.
    pub(super) fn write_flags(&self, node: &Node, header: &RequestHeader) -> WriteFlags {
        if self.is_dontcache(node, || self.tenant_dontcache(header)) { WriteFlags::DONTCACHE } else { WriteFlags::NONE }
    }

    /// Learns what a file says that is being opened, unless that is known. What cannot be read now is asked for by the next
    /// open.
    ///
    /// # Blocking
    /// For the backend.
    pub(super) fn load_dontcache(&self, node: &Node) {
        if !node.dontcache.is_known() {
            self.read_dontcache(node);
        }
    }

    /// A file has just been made: it says nothing.
    pub(super) fn mark_unset(node: &Node) {
        let seen = node.dontcache.0.load(Ordering::Acquire);
        if seen == UNKNOWN {
            let _ = node.dontcache.store(seen, UNSET); // or somebody has set it meanwhile
        }
    }

    /// The attribute `name` of `node` has been set or removed.
    ///
    /// # Blocking
    /// For the backend, if it is ours.
    pub(super) fn xattr_changed(&self, node: &Node, name: &OsStr) {
        if name == NAME {
            node.dontcache.bump();
            self.read_dontcache(node);
            if node.dontcache.get() == Some(true)
                && let Some(notifier) = self.notifier.get()
            {
                // What the kernel has of it for readers that were here before.
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
    fn what_was_read_before_a_change_has_ended_is_not_remembered() {
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
    fn values_are_1_and_0() {
        assert!([b"1", b"0"].iter().all(|value| check(OsStr::new(NAME), *value).is_ok()));
        for value in [&b""[..], b"2", b"01", b"1\n", b"yes"] {
            assert!(check(OsStr::new(NAME), value).is_err() && check(OsStr::new("user.other"), value).is_ok());
        }
    }
}
