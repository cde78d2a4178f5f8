//! How many objects of a cache one pass scans.
//!
//! A pass scans a fraction of the cache's objects, larger the heavier the walk. Work that is too little for a batch, or
//! is refused, is *deferred*: later passes do more, up to twice what there is.
//!
//! # Invariants
//! D1. Deferred work is taken by one pass at a time, so that two concurrent passes do not both make up for it.
//! D2. A pass calls a shrinker at most [`CALLS_MAX`] times. A scan that examined nothing ends it, like `Scanned::Stop`.
//!
//! # Kernel counterpart
//! `do_shrink_slab`. Differs: it uses wide integers, so that no count overflows; D2; and a scan is never
//! credited with examining or freeing more than it was asked for.

use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use super::{Count, Scanned, ShrinkControl, Shrinker};

/// Objects per scan, unless the shrinker chooses another number. Kernel: `SHRINK_BATCH`.
const SHRINK_BATCH: u64 = 128;
/// Scans in a pass: enough for eight million objects with the default batch. The rest is deferred.
const CALLS_MAX: u32 = 1 << 16;

/// Runs one pass over a shrinker, whose own `deferred` count is given. Returns the number of objects freed.
///
/// # Blocking
/// As the shrinker does.
pub(super) fn do_shrink_slab(shrinker: &dyn Shrinker, deferred: &AtomicU64, priority: u32) -> u64 {
    let Count::Objects(freeable @ 1..) = shrinker.count(&ShrinkControl::default()) else { return 0 };
    let nr = deferred.swap(0, Ordering::Relaxed); // D1
    let batch = if shrinker.batch() == 0 { SHRINK_BATCH } else { shrinker.batch() };
    let delta = delta(freeable, priority, shrinker.seeks());
    let most = 2 * u128::from(freeable);
    let mut total = (u128::from(nr >> priority) + delta).min(most);
    let (mut scanned, mut freed) = (0_u128, 0_u64);
    for _ in 0..CALLS_MAX {
        // The second condition lets a heavy walk empty a small cache.
        if total < u128::from(batch) && total < u128::from(freeable) {
            break;
        }
        let nr_to_scan = u64::try_from(total).map_or(batch, |total| total.min(batch));
        let mut control = ShrinkControl { nr_to_scan, nr_scanned: nr_to_scan };
        let Scanned::Freed(given) = shrinker.scan(&mut control) else { break };
        freed = freed.saturating_add(given.min(nr_to_scan));
        let examined = control.nr_scanned.min(nr_to_scan);
        if examined == 0 {
            break;
        }
        total -= u128::from(examined);
        scanned += u128::from(examined);
    }
    let left = (u128::from(nr) + delta).saturating_sub(scanned).min(most);
    defer(deferred, u64::try_from(left).unwrap_or(u64::MAX));
    freed
}

/// The number of objects that a pass scans of `freeable`, before deferred ones are added.
fn delta(freeable: u64, priority: u32, seeks: u32) -> u128 {
    match seeks {
        0 => u128::from(freeable / 2),
        _ => u128::from(freeable >> priority) * 4 / u128::from(seeks),
    }
}

fn defer(deferred: &AtomicU64, left: u64) {
    if left != 0 {
        let more = |now: u64| Some(now.saturating_add(left));
        let _ = deferred.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests;
