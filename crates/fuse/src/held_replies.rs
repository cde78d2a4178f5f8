//! Requests whose replies are held, and interrupts that take them.
//!
//! The table of a session owns the held replies, so that each is taken once: by its holder or by an interrupt. A
//! request that its handler answers at once is never in the table.
//!
//! # Invariants
//! H1. A reply in the table has one [`HeldReply`], which removes it at the latest when dropped.
//! H2. An interrupt either finds its request, or is stored under the same lock until the request arrives or newer
//!     interrupts displace it. So it does not matter which of two threads first handles its WRITE or INTERRUPT. An
//!     interrupt of a request that was already answered is stored in vain; request numbers are not reused.
//!
//! # Lock order
//! A shard's lock is a leaf; nothing is sent and no closure is called under it.

use std::collections::{HashMap, VecDeque};

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::TRANSPORT;
use crate::connection::Connection;
use crate::reply::Reply;

/// Shards of the table: enough that threads rarely contend.
const SHARDS: usize = 16;
/// Limit of stored interrupts per shard.
const EARLY_MAX: usize = 64;

type OnInterrupt = Box<dyn FnOnce(Reply) + Send>;

pub(crate) struct HeldReplies {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    entries: HashMap<u64, Entry>,
    early: VecDeque<u64>,
    last_ticket: u64,
}

struct Entry {
    reply: Reply,
    on_interrupt: OnInterrupt,
    ticket: u64,
}

impl HeldReplies {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::new(TRANSPORT, Shard::default())) }
    }

    fn shard(&self, unique: u64) -> &Mutex<Shard> {
        // Request numbers grow in steps of at least two; the high bits of the product depend on all of their bits.
        let mixed = unique.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.shards[mixed as usize % SHARDS]
    }

    /// Adds a reply and returns its ticket. If the interrupt came first, returns both arguments.
    fn insert(&self, reply: Reply, on_interrupt: OnInterrupt) -> Result<u64, (Reply, OnInterrupt)> {
        let unique = reply.unique();
        let mut shard = self.shard(unique).lock();
        if let Some(at) = shard.early.iter().position(|early| *early == unique) {
            shard.early.remove(at);
            return Err((reply, on_interrupt));
        }
        shard.last_ticket += 1;
        let ticket = shard.last_ticket;
        shard.entries.insert(unique, Entry { reply, on_interrupt, ticket });
        Ok(ticket)
    }

    /// Removes the reply if it has this ticket: an interrupted request may have been held again.
    fn remove(&self, unique: u64, ticket: u64) -> Option<Entry> {
        let mut shard = self.shard(unique).lock();
        if shard.entries.get(&unique)?.ticket != ticket {
            return None;
        }
        shard.entries.remove(&unique)
    }

    /// The caller of `unique` was interrupted.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut shard = self.shard(unique).lock();
        let found = shard.entries.remove(&unique);
        if found.is_none() {
            if shard.early.len() == EARLY_MAX {
                shard.early.pop_front();
            }
            shard.early.push_back(unique);
        }
        drop(shard);
        if let Some(entry) = found {
            (entry.on_interrupt)(entry.reply);
        }
    }
}

/// A held reply; see [`Reply::hold`]. Dropping it answers EIO, unless an interrupt has taken the reply.
#[must_use = "dropping it answers EIO"]
pub struct HeldReply {
    connection: Arc<Connection>,
    unique: u64,
    ticket: Option<u64>,
}

impl HeldReply {
    pub(crate) fn new(reply: Reply, on_interrupt: OnInterrupt) -> Self {
        let (connection, unique) = (reply.connection().clone(), reply.unique());
        let ticket = match connection.held.insert(reply, on_interrupt) {
            Ok(ticket) => Some(ticket),
            Err((reply, on_interrupt)) => {
                on_interrupt(reply);
                None
            }
        };
        Self { connection, unique, ticket }
    }

    /// The reply, unless an interrupt has taken it.
    #[must_use = "dropping a reply answers EIO"]
    pub fn take(mut self) -> Option<Reply> {
        self.remove()
    }

    fn remove(&mut self) -> Option<Reply> {
        let ticket = self.ticket.take()?;
        Some(self.connection.held.remove(self.unique, ticket)?.reply)
    }
}

impl Drop for HeldReply {
    fn drop(&mut self) {
        drop(self.remove());
    }
}

impl std::fmt::Debug for HeldReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldReply").field("unique", &self.unique).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::loopback::loopback;

    #[test]
    fn an_interrupt_is_stored_until_newer_ones_displace_it() {
        let (transport, peer) = loopback().unwrap();
        let connection = Arc::new(Connection::new(Box::new(transport)));
        let hold = |unique| {
            let interrupted = Arc::new(AtomicU64::new(0));
            let seen = interrupted.clone();
            let held = Reply::new(connection.clone(), unique).hold(move |reply| {
                seen.store(unique, Ordering::Relaxed);
                reply.empty();
            });
            let is_left = held.take().map(Reply::empty).is_some();
            assert_eq!(peer.answer().unwrap().unique, unique);
            (is_left, interrupted.load(Ordering::Relaxed))
        };
        connection.held.interrupt(10);
        assert_eq!(hold(12), (true, 0), "another request");
        assert_eq!(hold(10), (false, 10));
        assert_eq!(hold(10), (true, 0), "it was for one request only");
        connection.held.interrupt(10);
        for other in 0..(SHARDS * EARLY_MAX * 4) as u64 {
            connection.held.interrupt(100 + 2 * other);
        }
        assert_eq!(hold(10), (true, 0), "the number of stored interrupts is bounded");
    }

    #[test]
    fn an_old_holder_does_not_take_a_reply_that_is_held_again() {
        let (transport, _peer) = loopback().unwrap();
        let connection = Arc::new(Connection::new(Box::new(transport)));
        let first = Reply::new(connection.clone(), 10).hold(|reply| drop(reply.hold(drop)));
        let second = Reply::new(connection.clone(), 12).hold(drop);
        connection.held.interrupt(10);
        assert!(first.take().is_none());
        assert!(second.take().map(Reply::empty).is_some());
    }
}
