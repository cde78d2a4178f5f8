//! The descriptor store of the service manager, which has everything that the keeper holds as well (K6).
//!
//! When the keeper of a systemd service dies, the manager ends the rest of the service and starts it again, with the
//! descriptors in its store. The new keeper goes on with them. Facts that are not descriptors are JSON in a memfd, which
//! is never changed: a later version is stored before the earlier one is removed, so the newest one is always whole.
//!
//! # Names
//! `state.7` is the 7th version of the keeper's own facts, `arena` a part of it. For volume 3 they are `3.state.7` and
//! `3.device`, and `3.file.12` is a removed file.
//!
//! # Kernel counterpart
//! None; `FileDescriptorStoreMax=` in systemd.service(5), and `FDSTORE=1` in sd_notify(3).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sd_notify::NotifyState;
use serde::Serialize;
use serde::de::DeserializeOwned;
use slackwater_control::errln;

use crate::os::memory_file;

/// The variable with the number of descriptors that fit; systemd sets it from version 254 on.
const LIMIT: &str = "FDSTORE";
/// The name of facts.
const STATE: &str = "state";
/// A longer state is not ours.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// The store, and the names in it.
#[derive(Debug)]
pub(super) struct Store {
    limit: usize,
    names: BTreeSet<String>,
    /// The version of the next state.
    version: u64,
    is_full: bool,
}

/// Descriptors that an earlier keeper of the service has stored, by name.
#[derive(Debug, Default)]
pub(super) struct Stored(BTreeMap<String, OwnedFd>);

impl Store {
    /// The store of the service that this process belongs to, if there is one.
    pub(super) fn of_this_service() -> Option<Self> {
        let limit = std::env::var(LIMIT).ok()?.parse().ok().filter(|limit| *limit > 0)?;
        std::env::var_os("NOTIFY_SOCKET")?;
        Some(Self { limit, names: BTreeSet::new(), version: 0, is_full: false })
    }

    /// Goes on with what an earlier keeper has stored.
    pub(super) fn adopt(&mut self, stored: &Stored) {
        self.names.extend(stored.0.keys().cloned());
        let versions = stored.0.keys().filter_map(|name| name.rsplit_once('.')?.1.parse::<u64>().ok());
        self.version = versions.max().map_or(0, |version| version + 1);
    }

    /// Stores a descriptor.
    pub(super) fn keep(&mut self, name: &str, fd: BorrowedFd<'_>) {
        if self.names.len() >= self.limit && !self.names.contains(name) {
            if !std::mem::replace(&mut self.is_full, true) {
                let limit = self.limit;
                errln!("The descriptor store of the service is full: a crash of the keeper itself would end mounts.");
                errln!("  Set FileDescriptorStoreMax= higher than {limit} in the unit of the service.");
            }
            return;
        }
        match sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(name)], &[fd]) {
            Ok(()) => drop(self.names.insert(name.to_owned())),
            Err(error) => errln!("Cannot store a descriptor with the service manager: {error}"),
        }
    }

    /// Stores the present facts of `of`, an empty word or the number of a volume, instead of earlier ones.
    pub(super) fn keep_state(&mut self, of: &str, state: &impl Serialize) {
        let text = serde_json::to_vec(state).map_err(io::Error::other);
        match text.and_then(|text| memory_file::write("slackwater-state", &text)) {
            Ok(memory) => {
                let before = self.names_of(of, STATE);
                let version = self.version;
                self.version += 1;
                self.keep(&name(of, &format!("{STATE}.{version}")), memory.as_fd());
                before.iter().for_each(|name| self.forget(name));
            }
            Err(error) => errln!("Cannot store the state of the keeper: {error}"),
        }
    }

    /// Removes a descriptor.
    pub(super) fn forget(&mut self, name: &str) {
        if self.names.remove(name)
            && let Err(error) = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)])
        {
            errln!("Cannot remove a descriptor from the service manager: {error}");
        }
    }

    /// Removes everything of a volume; of the keeper, with an empty word.
    pub(super) fn forget_all(&mut self, of: &str) {
        let names: Vec<_> = match of {
            "" => self.names.iter().cloned().collect(),
            of => self.names.iter().filter(|name| is_of(name, of)).cloned().collect(),
        };
        names.iter().for_each(|name| self.forget(name));
    }

    fn names_of(&self, of: &str, what: &str) -> Vec<String> {
        let start = name(of, what) + ".";
        self.names.iter().filter(|name| name.starts_with(&start)).cloned().collect()
    }
}

impl Stored {
    /// The descriptors that the service manager has passed to this process.
    pub(super) fn with_this_process() -> Self {
        match crate::os::sys::stored_descriptors() {
            Ok(stored) => Self(stored.into_iter().collect()),
            Err(error) => {
                errln!("Cannot use the descriptors of the service manager: {error}");
                Self::default()
            }
        }
    }

    /// The newest facts of `of`.
    pub(super) fn state<T: DeserializeOwned>(&self, of: &str) -> Option<T> {
        let start = name(of, STATE) + ".";
        let version = |name: &str| name.strip_prefix(&start)?.parse::<u64>().ok();
        let (_, state) =
            self.0.iter().filter_map(|(name, fd)| Some((version(name)?, fd))).max_by_key(|(nth, _)| *nth)?;
        let text = memory_file::read(state.try_clone().ok()?, STATE_BYTES_MAX).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The numbers of volumes.
    pub(super) fn volumes(&self) -> BTreeSet<u64> {
        self.0.keys().filter_map(|name| name.split_once('.')?.0.parse().ok()).collect()
    }

    /// Takes one descriptor out.
    pub(super) fn take(&mut self, of: &str, what: &str) -> Option<OwnedFd> {
        self.0.remove(&name(of, what))
    }

    /// Takes out the descriptors of `of` to whose names `which` gives a key.
    pub(super) fn take_all<K: Ord>(&mut self, of: &str, which: impl Fn(&str) -> Option<K>) -> BTreeMap<K, OwnedFd> {
        let start = name(of, "");
        let key = |name: &str| which(name.strip_prefix(&start)?);
        let (taken, left) = std::mem::take(&mut self.0).into_iter().partition(|(name, _)| key(name).is_some());
        self.0 = left;
        let taken: BTreeMap<String, OwnedFd> = taken;
        taken.into_iter().filter_map(|(name, fd)| Some((key(&name)?, fd))).collect()
    }
}

/// The name of something of `of`.
pub(super) fn name(of: &str, what: &str) -> String {
    if of.is_empty() { what.to_owned() } else { format!("{of}.{what}") }
}

fn is_of(name: &str, of: &str) -> bool {
    name.strip_prefix(of).is_some_and(|rest| rest.starts_with('.'))
}
