//! Dirty throttling: how long a writer must pause so that memory fills no faster than the device drains it.
//!
//! This module is pure arithmetic, without clock, thread or counter. Its caller samples the counters, calls
//! [`balance()`] and makes the writer pause as the [`Verdict`](balance::Verdict) says.
//!
//! ```text
//!              write completed                              pages dirtied
//!                    |                                            |
//!        [`bandwidth`]  [`proportions`]                 [`pause`]: poll now? (Dirtier)
//!              |              |                                   |
//!              |      [`share`]: the wb's part of    [`thresholds`]: background, freerun,
//!              |              the limits <---------------  setpoint, limit; [`domain`] lets
//!              |              |                            the limit fall slowly
//!              |      [`sample`]: one domain's numbers at one moment
//!              |              |
//!              |      [`position`]: 2.0 at freerun, 1.0 at the setpoint, 0 at the limit
//!              '---->  |
//!        [`rate_limit`]: pages/s of one writer, which tends to bandwidth / writers
//!                      |
//!              [`pause`]: how long, and when to poll again; [`balance`] does it all in order
//! ```
//!
//! Units: pages of 4 KiB, pages per second, milliseconds on the engine's clock ([`ms_of`]). To *poll* is to have the
//! throttle check the limits and settle the writer's account. As in the reference, divisors are made odd so that none
//! is zero. Products are computed in 128 bits, so no limit is too small and no arena too large.
//!
//! # Invariants
//! T1. A writer polls at least once per [`POLL_PAGES_MAX`](pause::POLL_PAGES_MAX) pages or per request, whichever is
//!     larger.
//! T2. A writer that polls while a domain is at its limit does not continue until the domain is below it. The exception
//!     is a writer whose wb has no more dirty pages than the error of its counter. With T1, a domain exceeds its limit
//!     by at most that error plus one request (or [`POLL_PAGES_MAX`](pause::POLL_PAGES_MAX)) per writer (promise P8).
//! T3. No single pause is longer than 200 ms.
//!
//! # Kernel counterpart
//! `mm/page-writeback.c`. Left out, because the engine has no such thing: real-time tasks, tasks of stacked
//! devices, and `min_ratio` and `max_ratio` other than 0 and 100 %. Other differences are stated in the head of the
//! file concerned.

mod balance;
mod bandwidth;
mod domain;
mod pause;
mod position;
mod proportions;
mod rate_limit;
mod sample;
mod share;
mod thresholds;

#[cfg(test)]
mod tests;

pub(crate) use balance::{Input, WbRates, balance};
pub(crate) use domain::WbDomain;
pub(crate) use pause::Dirtier;
pub use pause::Pause;
pub(crate) use proportions::FpropLocal;
pub(crate) use sample::{DomainKind, DomainSample, LEVELS_MAX, LimitMode};
pub(crate) use share::needs_exact_sum;
pub(crate) use thresholds::{DirtyRatios, Thresholds};

use crate::units::Tick;

/// Time between two updates of a moving estimate or limit.
const UPDATE_MS: u64 = 200;

/// Longest single pause. Kernel: `MAX_PAUSE`.
const PAUSE_MS_MAX: u64 = 200;

/// After this long without an update, the counts since then do not give a meaningful rate.
const IDLE_MS: u64 = 1000;

/// Assumed write bandwidth of a device before any measurement: 100 MiB/s.
const INITIAL_PAGES_PER_S: u64 = 25_600;

/// Upper bound of all rates: 16 TiB/s. Keeps a rate times a ratio within 64 bits.
const PAGES_PER_S_MAX: u64 = u32::MAX as u64;

/// Milliseconds on the engine's clock, rounded down.
pub(crate) fn ms_of(now: Tick) -> u64 {
    now.0 / 1_000_000
}

/// The rate of `pages` in `ms`, in pages per second.
fn per_second(pages: u64, ms: u64) -> u64 {
    to_u64(u128::from(pages) * 1000 / u128::from(ms.max(1))).min(PAGES_PER_S_MAX)
}

/// The value, saturated to 64 bits.
fn to_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
