//! Notifications to a service manager: ready, alive, and stopping with more time needed. Without a service manager they
//! do nothing.

use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;

/// How much more time each progress report requests.
const LONGER: Duration = Duration::from_secs(30);

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

/// Reports that the configured volumes are mounted, and those of a predecessor taken over: `volumes` in all. From then
/// on the watchdog is notified as long as `lives` returns true.
pub(super) fn ready(volumes: usize, lives: impl Fn() -> bool + Send + 'static) {
    notify(&[NotifyState::Ready, NotifyState::Status(&format!("{volumes} volumes"))]);
    let Some(within) = sd_notify::watchdog_enabled() else { return };
    let watched = thread::Builder::new().name("sw-watchdog".into()).spawn(move || {
        while lives() {
            notify(&[NotifyState::Watchdog]);
            thread::sleep(within / 3);
        }
    });
    if let Err(error) = watched {
        tracing::warn!(%error, "cannot start the thread that answers the watchdog");
    }
}

/// Reports that the end has begun.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Reports progress of the end: so many bytes are left.
pub(super) fn still_stopping(bytes_left: u64) {
    let status = format!("flushing, {} left", slackwater_host::size::text(bytes_left));
    let longer = u32::try_from(LONGER.as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::ExtendTimeoutUsec(longer), NotifyState::Status(&status)]);
}
