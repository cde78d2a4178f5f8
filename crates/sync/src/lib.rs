//! Concurrency primitives that a kernel provides and a user-space program lacks.
//!
//! The crates above take their locks, threads, reference counts and grace periods from here, so that one build flag can
//! replace the operating system by a model checker:
//!
//! | build | flag | threads and atomics are |
//! |---|---|---|
//! | ordinary | none | the machine's |
//! | exhaustive | `--cfg slackwater_loom` | every interleaving and every allowed stale read, for tests of this crate |
//! | random | `--cfg slackwater_shuttle` | random schedules with strong memory, for protocols built on this crate |
//!
//! Reading order: [`shim`] (the replaceable parts), [`lock`] (ranked locks, and the word that guards a page frame),
//! [`rcu`]. Then one file each: [`InFlight`], [`Kick`], [`Lease`], [`Completion`], [`Demand`], [`PercpuCounter`],
//! [`ThreadMark`], [`PercpuRef`], [`Registry`], [`SeqLock`] with [`SeqRefs`] (for trees, on top of RCU), [`zeroed_slice`] and [`gate`].

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that cannot go on fails"))]

mod completion;
mod counter;
mod demand;
pub mod gate;
mod in_flight;
mod kick;
mod lease;
pub mod lock;
mod percpu_ref;
pub mod rcu;
mod registry;
mod seq_lock;
mod seq_refs;
pub mod shim;
mod thread_mark;
mod zeroed;

pub use completion::Completion;
pub use counter::{PercpuCounter, shard_hint};
pub use demand::Demand;
pub use in_flight::InFlight;
pub use kick::Kick;
pub use lease::{Call, Joined, Lease};
pub use lock::{
    Condvar, Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, RwWord, lock_two, might_sleep,
};
pub use percpu_ref::PercpuRef;
pub use registry::{Registration, Registry};
pub use seq_lock::{Seen, SeqGuard, SeqLock};
pub use seq_refs::{Put, SeqRefs};
pub use thread_mark::{Marked, ThreadMark};
pub use zeroed::{Zeroed, zeroed_slice};
