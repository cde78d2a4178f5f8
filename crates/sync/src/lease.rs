//! A duty that several threads share or one has alone, and that is taken from that one if it is stuck.
//!
//! Threads *join* to do the duty beside one another, for example reading a queue. The only one that has joined may take
//! the *lease*: until it gives the lease back, no other can join. Before it does something else that usually ends soon
//! but may hang, it begins a *call*, and it ends the call afterwards. A watcher looks from time to time. If it finds the
//! same call twice, it *revokes* the lease and lets other threads do the duty. The end of the call tells the thread that
//! it has lost the lease.
//!
//! ```text
//! holder                                    watcher, at each tick
//! if lease.try_take(Joined::Yes) {          let call = lease.call();
//!     let call = lease.begin_call();        if call.is_some() && call == last
//!     something that may hang                   && lease.revoke(call) { wake another thread }
//!     if lease.end_call(call) { read on }   last = call;
//! }
//! ```
//!
//! # Invariants
//! A lease has at most one holder, and no thread has joined meanwhile. A call either ends with its holder still holding,
//! or is revoked, not both. Calls are numbered, so a call is not mistaken for a later one (but for one 2^46 calls
//! later).
//!
//! # Memory ordering
//! All state is in one word. Giving up a place or the lease is a release, taking it an acquire, so that a holder sees
//! what those before it did.

use crate::shim::atomic::{AtomicU64, Ordering};
use crate::shim::const_unless_loom;

/// The lease; see the module documentation.
pub struct Lease {
    /// The state in the lowest bits, then the number of threads that have joined, then that of the last call.
    word: AtomicU64,
}

/// Whether the thread that takes a lease has joined before.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Joined {
    Yes,
    No,
}

/// A call of a holder.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Call(u64);

const STATE: u64 = 3;
const FREE: u64 = 0;
const HELD: u64 = 1;
const IN_CALL: u64 = 2;
const MEMBER: u64 = 1 << 2;
const MEMBERS: u64 = 0xffff << 2;
const CALL: u64 = 1 << 18;

impl Lease {
    const_unless_loom! {
        /// Held by no thread.
        pub const fn new() -> Self {
            Self { word: AtomicU64::new(FREE) }
        }
    }

    /// Joins the threads that do the duty. False while a thread holds the lease.
    #[must_use = "a thread that has joined must leave"]
    pub fn join(&self) -> bool {
        let more = |word| (word & STATE == FREE && word & MEMBERS != MEMBERS).then_some(word + MEMBER);
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Leaves the threads that do the duty.
    pub fn leave(&self) {
        self.word.fetch_sub(MEMBER, Ordering::Release);
    }

    /// Takes the lease if it is free and no other thread has joined. The place of this one is given up for it.
    #[must_use = "the lease must be given back"]
    pub fn try_take(&self, joined: Joined) -> bool {
        let mine = if joined == Joined::Yes { MEMBER } else { 0 };
        let word = self.word.load(Ordering::Relaxed);
        word & (STATE | MEMBERS) == FREE | mine && self.change(word, (word - mine) | HELD)
    }

    /// Gives the lease back, outside a call. Only its holder may.
    pub fn give_back(&self) {
        self.word.fetch_and(!STATE, Ordering::Release);
    }

    /// Begins a call. Only the holder may.
    #[must_use = "the call must be ended"]
    pub fn begin_call(&self) -> Call {
        // No other thread changes the word of a held lease.
        let number = self.word.load(Ordering::Relaxed) & !STATE;
        let call = Call(number.wrapping_add(CALL) | IN_CALL);
        self.word.store(call.0, Ordering::Release);
        call
    }

    /// Ends a call of this thread. False if the lease was revoked.
    #[must_use = "the lease may be lost"]
    pub fn end_call(&self, call: Call) -> bool {
        self.change(call.0, call.0 & !STATE | HELD)
    }

    /// The call in progress.
    pub fn call(&self) -> Option<Call> {
        let word = self.word.load(Ordering::Acquire);
        (word & STATE == IN_CALL).then_some(Call(word))
    }

    /// Whether a thread holds the lease.
    pub fn is_held(&self) -> bool {
        self.word.load(Ordering::Acquire) & STATE != FREE
    }

    /// Takes the lease from its holder, if it is still in `call`. Then no thread holds it.
    #[must_use = "if it was revoked, another thread has to do the duty"]
    pub fn revoke(&self, call: Call) -> bool {
        self.change(call.0, call.0 & !STATE)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self::new()
    }
}
