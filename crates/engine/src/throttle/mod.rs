//! Throttling of dirtiers: how long a writer is to wait, so that memory fills no faster than the device drains it.
//!
//! Only arithmetic is here. There is no clock, no thread and no counter in it: whoever wires it up samples counters,
//! asks [`balance()`] and makes the writer wait as the [`Verdict`](balance::Verdict) says.
//!
//! ```text
//!              write completed                              pages dirtied
//!                    |                                            |
//!        [`bandwidth`]  [`proportions`]                 [`pause`]: look now? (Dirtier)
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
//!              [`pause`]: how long, and when to look again; all of it in order in [`balance`]
//! ```
//!
//! Units: pages of 4 KiB, pages per second, milliseconds on the engine's clock ([`ms_of`]). Divisors are made odd, as in
//! the reference, so none is zero; products are taken in 128 bits. So no limit is too small and no arena too large.
//!
//! # Invariants
//! T1. A writer looks at least once for every [`LOOK_PAGES_MAX`](pause::LOOK_PAGES_MAX) pages or request, whichever is larger.
//! T2. A writer that looks while a domain is at its limit does not go on before it is below, unless its wb has no more
//!     dirty pages than its counter may be wrong by. With T1, a domain exceeds its limit by at most that error, and a
//!     request (or [`LOOK_PAGES_MAX`](pause::LOOK_PAGES_MAX)) of each writer (promise P8).
//! T3. No single pause is longer than 200 ms.
//!
//! # Kernel counterpart
//! `mm/page-writeback.c`; sem. 4. Left out, since nothing here has them: real-time tasks, tasks of stacked devices,
//! `min_ratio` and `max_ratio` other than 0 and 100 %. What differs is said at the head of the file that differs.

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
pub(crate) use sample::{DomainKind, DomainSample, LimitMode};
pub(crate) use share::needs_exact_sum;
pub(crate) use thresholds::{DirtyRatios, Thresholds};

use crate::units::Tick;

/// Time between two updates of a moving estimate or limit.
const UPDATE_MS: u64 = 200;

/// Longest single pause (`MAX_PAUSE`).
const PAUSE_MS_MAX: u64 = 200;

/// After so long without an update, what was counted since says nothing about a rate.
const IDLE_MS: u64 = 1000;

/// What a device is taken to write before it was measured: 100 MiB/s.
const INITIAL_PAGES_PER_S: u64 = 25_600;

/// No rate is larger: 16 TiB/s. Keeps a rate times a ratio within 64 bits.
const PAGES_PER_S_MAX: u64 = u32::MAX as u64;

/// Milliseconds on the engine's clock, rounded down.
pub(crate) fn ms_of(now: Tick) -> u64 {
    now.0 / 1_000_000
}

/// `pages` in `ms` as pages per second.
fn per_second(pages: u64, ms: u64) -> u64 {
    to_u64(u128::from(pages) * 1000 / u128::from(ms.max(1))).min(PAGES_PER_S_MAX)
}

/// The value, or the largest there is.
fn to_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
