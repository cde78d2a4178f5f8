//! The trait of file systems that a session serves.

use crate::abi::WriteIn;
use crate::landing::{Landed, LandingMemory};
use crate::negotiate::Negotiated;
use crate::notifier::Notifier;
use crate::parse::{Forgets, Operation};
use crate::pool::Context;
use crate::reply::Reply;
use crate::request::{Payload, RequestHeader};

/// Handles the requests of one session. Called from the threads of the [`Pool`](crate::Pool), from many concurrently.
///
/// A call that may take long (I/O, or a lock held across I/O) either moves its [`Reply`] to a thread of its own, or
/// first calls [`Context::try_block`]. In both cases the pool continues to read. If requests come over io_uring, only the
/// first is possible: there `try_block` refuses, and [`Context::workers`] has threads for the call.
pub trait FileSystem: Send + Sync + 'static {
    /// The session is negotiated and about to be served; no request arrives before this returns.
    ///
    /// The notifier may be kept: it does not keep the session's file system alive.
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) {
        let _ = (negotiated, notifier);
    }

    /// A request that needs a reply. FORGET, INTERRUPT, INIT and DESTROY do not arrive here, and unknown requests have
    /// been answered with ENOSYS.
    ///
    /// A panic is caught and logged, and the request is answered with EIO.
    fn handle(&self, cx: &Context<'_>, header: &RequestHeader, op: Operation<'_>, payload: Payload<'_>, reply: Reply);

    /// Memory of `len_bytes` for the payload of the next WRITE, if the file system has some to lend. The pool asks while
    /// large writes are expected, drops it when no more requests arrive, and uses its own memory otherwise.
    fn lend_memory(&self, len_bytes: usize) -> Option<Box<dyn LandingMemory>> {
        let _ = len_bytes;
        None
    }

    /// A large WRITE whose payload has landed in lent memory. Otherwise as [`handle`](Self::handle).
    fn write_landed(&self, cx: &Context<'_>, header: &RequestHeader, args: &WriteIn, landed: Landed<'_>, reply: Reply) {
        self.handle(cx, header, Operation::Write(*args), Payload::new(landed.into_bytes(0)), reply);
    }

    /// The kernel drops lookups of nodes. Must not wait: forgets come in bulk, and their number is not limited.
    fn forget(&self, cx: &Context<'_>, forgets: Forgets<'_>) {
        let _ = (cx, forgets);
    }

    /// The session has ended and every call above has returned. Called once. Replies that are still held reach no
    /// caller.
    fn destroy(&self) {}
}
