//! What serves the requests of a session.

use crate::negotiate::Negotiated;
use crate::notifier::Notifier;
use crate::parse::{Forgets, Operation};
use crate::pool::Context;
use crate::reply::Reply;
use crate::request::{Payload, RequestHeader};

/// Serves one session. Called from the threads of the [`Pool`](crate::Pool), from many at a time.
///
/// A call that may take long (I/O, a lock that others hold across I/O) either moves its [`Reply`] to a thread of its own,
/// or first asks [`Context::try_block`]; in both cases the pool goes on reading.
pub trait FileSystem: Send + Sync + 'static {
    /// The session is negotiated and about to be served; no request comes before this returns.
    ///
    /// The notifier may be kept: it does not keep the session's file system alive.
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) {
        let _ = (negotiated, notifier);
    }

    /// A request that wants a reply. Forgets, interrupts, INIT and DESTROY do not come here, and unknown requests have been
    /// answered with ENOSYS.
    ///
    /// A panic is caught and logged, and the request answered with EIO.
    fn handle(&self, cx: &Context<'_>, header: &RequestHeader, op: Operation<'_>, payload: Payload<'_>, reply: Reply);

    /// The kernel drops references to nodes. Must not wait: forgets come in bulk and nobody counts them.
    fn forget(&self, cx: &Context<'_>, forgets: Forgets<'_>) {
        let _ = (cx, forgets);
    }

    /// The session has ended and every call above has returned. Called once. Replies that are still held lead nowhere.
    fn destroy(&self) {}
}
