//! Reports removed tenants.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use slackwater_sync::shim::Arc;

use crate::tenants::TenantId;
use crate::tenants::cgroups::Cgroups;

/// Interval at which tenants are checked if their removal is not notified.
const POLL: Duration = Duration::from_secs(1);

/// Reports removed cgroups; see [`Tenants::watcher`](super::Tenants::watcher).
///
/// Wait until [`Watcher::fd`] is readable or [`Watcher::poll_interval`] has passed, then [drain](Watcher::drain). With
/// inotify a removal is reported within a millisecond of the rmdir(2).
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

    /// Longest time to wait for [`Watcher::fd`]; `None` if unlimited. Ask before each wait: the descriptor becomes
    /// readable when this changes.
    #[must_use]
    pub fn poll_interval(&self) -> Option<Duration> {
        self.polling_reason().map(|_| POLL)
    }

    /// Why tenants are checked every second, if they are. The reason is also logged once.
    #[must_use]
    pub fn polling_reason(&self) -> Option<String> {
        self.cgroups.watches.polling()
    }

    /// The tenants whose cgroup was removed since the last call. Each is returned once, and only if a lookup found it
    /// before; lookups that begin from now on do not find it (T3).
    pub fn drain(&mut self) -> Vec<TenantId> {
        let gone = self.cgroups.watches.take_removed();
        self.cgroups.forget(&gone);
        gone
    }
}
