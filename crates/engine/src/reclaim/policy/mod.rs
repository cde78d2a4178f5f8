//! Which clean pages are evicted first: S3-FIFO on pages grouped by leaves. Pure arithmetic.
//!
//! New pages enter a *small* queue, a tenth of all pages. When a page reaches its head, it moves to the *main* queue if
//! it was used again, and is evicted otherwise. A *ghost* remembers evicted pages for a while: a page that is read
//! again while remembered enters the main queue at once. At the head of the main queue, a page used since the last time
//! goes round again, any other is evicted. So a scan passes through a tenth of the cache, and a use sets a mark and
//! moves nothing.
//!
//! [`queues`] implements the two queues of a tenant, [`verdict`] decides what happens to the pages at their heads,
//! [`ghost`] remembers evicted pages, and [`shares`] chooses the tenant.
//!
//! # Kernel counterpart
//! The inactive and active lists, and the shadow entries of `mm/workingset.c`. The policy is that of Yang et al., "FIFO
//! queues are all you need for cache eviction", SOSP 2023. Here a page enters the main queue on its second use instead
//! of its third, and has one chance there instead of up to three.

mod ghost;
mod queues;
mod shares;
#[cfg(test)]
mod tests;
mod verdict;

pub(super) use ghost::{Ghost, mix};
pub(super) use queues::{Entry, Queue, Queues, SWEEP_SLACK};
pub(super) use shares::Victims;
pub(super) use verdict::{PageUse, Verdict};
