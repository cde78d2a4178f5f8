//! The time of the runtime, which tests can stop.

/// Now.
pub(super) fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}
