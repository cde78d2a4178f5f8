//! Which clean pages go first: S3-FIFO, by pages that are kept together in leaves. Arithmetic only.
//!
//! New pages wait in a *small* queue, a tenth of all. One that was used again by the time it comes up goes to the *main* queue,
//! every other one out, and a *ghost* remembers it for a while: a page that comes back while it is remembered goes to the
//! main queue at once. What comes up in the main queue goes round again if it was used since, and out if not. So a scan
//! passes through a tenth of the cache, and a use costs a mark and moves nothing.
//!
//! [`queues`] has the two queues of a tenant, [`verdict`] says what becomes of the pages that come up, [`ghost`] remembers,
//! and [`shares`] says which tenant gives.
//!
//! # Kernel counterpart
//! Inactive and active list, and the shadow entries of `mm/workingset.c`. The policy is that of Yang et al., "FIFO queues
//! are all you need for cache eviction", SOSP 2023, with a page's second use instead of its third as the way to the main
//! queue, and one chance instead of up to three there.

mod ghost;
mod queues;
mod shares;
#[cfg(test)]
mod tests;
mod verdict;

pub(super) use ghost::{Ghost, mixed};
pub(super) use queues::{Entry, Queue, Queues, SWEEP_SLACK};
pub(super) use shares::Givers;
pub(super) use verdict::{Looked, Verdict};
