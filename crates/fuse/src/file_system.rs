//! What serves the requests of a session.

use slackwater::LandingFrames;

use crate::abi::WriteIn;
use crate::landing::Landed;
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

    /// Frames for the payload of the next WRITE to land in, where room for `len_bytes` is at hand. The pool asks while
    /// large writes come, drops them when no more requests are there, and falls back to memory of its own.
    fn lend_frames(&self, len_bytes: usize) -> Option<LandingFrames> {
        let _ = len_bytes;
        None
    }

    /// A large WRITE whose payload has landed in frames that were lent. Otherwise as [`handle`](Self::handle).
    fn write_landed(&self, cx: &Context<'_>, header: &RequestHeader, args: &WriteIn, landed: Landed<'_>, reply: Reply) {
        self.handle(cx, header, Operation::Write(*args), Payload::new(landed.into_bytes(0)), reply);
    }

    /// The kernel drops references to nodes. Must not wait: forgets come in bulk and nobody counts them.
    fn forget(&self, cx: &Context<'_>, forgets: Forgets<'_>) {
        let _ = (cx, forgets);
    }

    /// The session has ended and every call above has returned. Called once. Replies that are still held lead nowhere.
    fn destroy(&self) {}
}
