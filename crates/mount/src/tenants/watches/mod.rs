//! Notifications of removed cgroups.
//!
//! The directory of a cgroup sends no notification of its own removal (kernfs, tested on 6.18, sends no
//! IN_DELETE_SELF). Its parent sends IN_DELETE within microseconds, in both versions. So the parents of tenants are
//! watched, and after each event the tenants below are checked: one is removed if its directory is gone or has another
//! inode. `cgroup.events` would report that a cgroup is empty, not that it is removed, and does not exist on v1.
//!
//! Without inotify, or for a tenant whose parent cannot be watched, the tenants are checked every second.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::stat;
use rustix::io::Errno;
use slackwater_sync::lock::{Mutex, Rank};

use crate::tenants::TenantId;
use crate::tenants::cgroups::CgroupId;
use crate::tenants::error::LookupError;
use slackwater_host::Printable as _;

/// A sleeping lock: inotify walks paths under it. It comes after all other locks of the front end that are taken before
/// the engine's.
const WATCHES: Rank = Rank::new(9, "TENANT_WATCHES");

pub(super) struct Watches {
    inotify: Option<OwnedFd>,
    state: Mutex<State>,
}

struct State {
    tenants: HashMap<TenantId, Watched>,
    /// A watch on something else. Removing it wakes the thread that waits for events, when polling begins.
    wake_watch: Option<i32>,
    /// Why tenants are checked every second.
    polling: Option<String>,
}

struct Watched {
    directory: PathBuf,
    inode: u64,
    /// The watch on its parent; `None` if it must be checked every second.
    watch: Option<i32>,
}

impl Watched {
    fn is_there(&self) -> bool {
        stat(&self.directory).is_ok_and(|stat| stat.st_ino == self.inode)
    }
}

impl Watches {
    pub(super) fn new() -> Self {
        Self::with_inotify(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK))
    }

    fn with_inotify(inotify: Result<OwnedFd, Errno>) -> Self {
        let (inotify, polling) = match inotify {
            Ok(inotify) => (Some(inotify), None),
            Err(errno) => (None, Some(format!("inotify: {errno}"))),
        };
        let add = |inotify| inotify::add_watch(inotify, "/", WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR);
        let wake_watch = inotify.as_ref().and_then(|inotify| add(inotify).ok());
        let mut state = State { tenants: HashMap::new(), wake_watch, polling: None };
        if let Some(reason) = polling {
            state.start_polling(reason);
        }
        Self { inotify, state: Mutex::new(WATCHES, state) }
    }

    /// Readable when [`Watches::take_removed`] may return something.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn polling(&self) -> Option<String> {
        self.state.lock().polling.clone()
    }

    /// Watches a tenant, unless it is watched already.
    ///
    /// # Errors
    /// It was removed.
    pub(super) fn watch(&self, id: CgroupId, directory: &Path) -> Result<(), LookupError> {
        let mut state = self.state.lock();
        let tenant = TenantId::from(id);
        if state.tenants.get(&tenant).is_some_and(|watched| watched.directory == directory) {
            return Ok(());
        }
        let watch = self.watch_parent(&mut state, directory);
        let watched = Watched { directory: directory.to_owned(), inode: id.inode, watch };
        // If it was removed before it was watched, no event would report it.
        if !watched.is_there() {
            self.unwatch(&state, watch);
            return Err(LookupError::Moved);
        }
        match state.tenants.entry(tenant) {
            // v1 allows renaming a cgroup below the same parent.
            Entry::Occupied(mut entry) => entry.get_mut().directory = watched.directory,
            Entry::Vacant(entry) => drop(entry.insert(watched)),
        }
        Ok(())
    }

    fn watch_parent(&self, state: &mut State, directory: &Path) -> Option<i32> {
        let (inotify, parent) = (self.inotify.as_ref()?, directory.parent()?);
        match inotify::add_watch(inotify, parent, WatchFlags::DELETE | WatchFlags::ONLYDIR) {
            Ok(watch) => Some(watch),
            Err(Errno::NOENT) => None,
            Err(errno) => {
                state.start_polling(format!("inotify on {}: {errno}", parent.printable()));
                if let Some(wake_watch) = state.wake_watch.take() {
                    let _ = inotify::remove_watch(inotify, wake_watch);
                }
                None
            }
        }
    }

    /// Removes a watch that no tenant needs.
    fn unwatch(&self, state: &State, watch: Option<i32>) {
        let is_needed = || state.tenants.values().any(|watched| watched.watch == watch);
        if let (Some(inotify), Some(number)) = (&self.inotify, watch)
            && !is_needed()
        {
            // The kernel removes the watch of a directory that is gone.
            let _ = inotify::remove_watch(inotify, number);
        }
    }

    /// Removed tenants, each once.
    pub(super) fn take_removed(&self) -> Vec<TenantId> {
        let mut state = self.state.lock();
        let events = self.inotify.as_ref().map_or_else(Events::default, Events::read);
        let is_gone = |watched: &Watched| events.affect(watched) && !watched.is_there();
        let gone: Vec<_> = state.tenants.extract_if(|_, watched| is_gone(watched)).collect();
        for (_, watched) in &gone {
            self.unwatch(&state, watched.watch);
        }
        gone.into_iter().map(|(tenant, _)| tenant).collect()
    }
}

impl State {
    fn start_polling(&mut self, reason: String) {
        if self.polling.is_none() {
            tracing::warn!("{reason}: removed cgroups are detected within a second instead of at once");
            self.polling = Some(reason);
        }
    }
}

/// Events read from inotify.
#[derive(Default)]
struct Events {
    watches: Vec<i32>,
    /// Events were lost.
    has_overflowed: bool,
}

impl Events {
    fn read(inotify: &OwnedFd) -> Self {
        let mut events = Self::default();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        // Ends with EAGAIN.
        while let Ok(event) = reader.next() {
            events.has_overflowed |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            if !events.watches.contains(&event.wd()) {
                events.watches.push(event.wd());
            }
        }
        events
    }

    fn affect(&self, watched: &Watched) -> bool {
        self.has_overflowed || watched.watch.is_none_or(|watch| self.watches.contains(&watch))
    }
}

#[cfg(test)]
mod tests;
