//! Tells which tenants are removed.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use slackwater_sync::shim::Arc;

use crate::tenants::TenantId;
use crate::tenants::cgroups::Cgroups;

/// How often tenants are looked at where nothing tells of their removal.
const POLL: Duration = Duration::from_secs(1);

/// The end that removed cgroups come out of; see [`Tenants::watcher`](super::Tenants::watcher).
///
/// Wait until [`Watcher::fd`] is readable or [`Watcher::poll_interval`] is over, then [drain](Watcher::drain). With
/// inotify that is within a millisecond of the rmdir(2).
pub struct Watcher {
    cgroups: Arc<Cgroups>,
}

impl Watcher {
    pub(super) fn new(cgroups: Arc<Cgroups>) -> Self {
        Self { cgroups }
    }

    /// Readable when something may have been removed. `None` without inotify.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.cgroups.watches.fd()
    }

    /// For how long to wait for [`Watcher::fd`] at most; `None` is for ever. Ask each time: the descriptor becomes
    /// readable when this changes.
    #[must_use]
    pub fn poll_interval(&self) -> Option<Duration> {
        self.polling_reason().map(|_| POLL)
    }

    /// Why removals are looked for each second, if they are. It is also logged, once.
    #[must_use]
    pub fn polling_reason(&self) -> Option<String> {
        self.cgroups.watches.polling()
    }

    /// The tenants whose cgroup has been removed since the last time. Each is named once, and only if it was found by a
    /// lookup before; lookups that begin from now on do not find it (T3).
    pub fn drain(&mut self) -> Vec<TenantId> {
        let gone = self.cgroups.watches.take_removed();
        self.cgroups.forget(&gone);
        gone
    }
}
