//! A dirty domain: the whole arena, or one tenant. Its limits are divided among the wbs that have pages in it.
//!
//! The limit in force follows the threshold: it rises at once and falls by a 32nd of the distance every 200 ms. So when
//! available memory is suddenly used, writers are slowed down gradually instead of all being stopped.
//!
//! # Lock order
//! The state is a leaf: it is locked for a few instructions per completed unit and per poll of a writer.
//!
//! # Kernel counterpart
//! `struct wb_domain`. Differs: the limit is updated at every poll, not only at those that throttle.

use slackwater_sync::lock::Mutex;

use crate::lock_order::LEAVES;

use super::UPDATE_MS;
use super::proportions::{FpropGlobal, FpropLocal};
use super::sample::LimitMode;
use super::share::{WbShare, wb_part};
use super::thresholds::Thresholds;

/// See the [module documentation](self).
pub(crate) struct WbDomain {
    state: Mutex<State>,
}

struct State {
    completions: FpropGlobal,
    dirty_limit_pages: u64,
    /// When the limit last moved.
    limit_stamp_ms: u64,
}

/// The limits that a domain currently grants to one wb.
#[derive(Copy, Clone, Debug)]
pub(crate) struct WbLimits {
    pub(crate) dirty_limit_pages: u64,
    pub(crate) share: WbShare,
}

impl WbDomain {
    pub(crate) fn new() -> Self {
        let state = State { completions: FpropGlobal::new(), dirty_limit_pages: 0, limit_stamp_ms: 0 };
        Self { state: Mutex::new(LEAVES, state) }
    }

    /// Records that `pages` of the wb with the counter `wb` completed their write-back.
    pub(crate) fn completed(&self, wb: &FpropLocal, pages: u64, now_ms: u64) {
        self.state.lock().completions.event(wb, pages, now_ms);
    }

    /// The share of the `thresholds` for the wb with the counter `wb`, while the domain has `held_pages` dirty or under
    /// write-back. Updates the domain's limit.
    pub(crate) fn wb_limits(
        &self,
        wb: &FpropLocal,
        thresholds: Thresholds,
        held_pages: u64,
        mode: LimitMode,
        now_ms: u64,
    ) -> WbLimits {
        let mut state = self.state.lock();
        state.follow(thresholds.thresh_pages, held_pages, now_ms);
        let fraction = state.completions.fraction(wb, now_ms);
        let dirty_limit_pages = state.dirty_limit_pages;
        drop(state);
        WbLimits { dirty_limit_pages, share: WbShare::of(thresholds, held_pages, fraction, mode) }
    }

    /// Whether the wb must write in the background: the domain has more than `background_pages` dirty, or the wb more
    /// than its share of them. `dirty_pages` and `wb_reclaimable_pages` exclude pages under write-back.
    pub(crate) fn is_over_background(
        &self,
        wb: &FpropLocal,
        thresholds: Thresholds,
        dirty_pages: u64,
        wb_reclaimable_pages: u64,
        mode: LimitMode,
        now_ms: u64,
    ) -> bool {
        if dirty_pages > thresholds.background_pages {
            return true;
        }
        let fraction = self.state.lock().completions.fraction(wb, now_ms);
        wb_reclaimable_pages > wb_part(thresholds.background_pages, dirty_pages, fraction, mode)
    }

    /// Discards the limit of the old size after the domain was resized.
    pub(crate) fn resized(&self) {
        self.state.lock().dirty_limit_pages = 0;
    }
}

impl State {
    fn follow(&mut self, thresh_pages: u64, held_pages: u64, now_ms: u64) {
        let floor = thresh_pages.max(held_pages);
        if self.dirty_limit_pages <= thresh_pages {
            self.dirty_limit_pages = thresh_pages;
            self.limit_stamp_ms = now_ms;
        } else if now_ms.saturating_sub(self.limit_stamp_ms) >= UPDATE_MS {
            self.dirty_limit_pages -= self.dirty_limit_pages.saturating_sub(floor) / 32;
            self.limit_stamp_ms = now_ms;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(thresh_pages: u64) -> Thresholds {
        Thresholds { thresh_pages, background_pages: thresh_pages / 2 }
    }

    fn limit(domain: &WbDomain, thresh_pages: u64, held_pages: u64, now_ms: u64) -> u64 {
        let wb = FpropLocal::new();
        domain.wb_limits(&wb, levels(thresh_pages), held_pages, LimitMode::Shared, now_ms).dirty_limit_pages
    }

    #[test]
    fn the_limit_rises_at_once_and_falls_slowly() {
        let domain = WbDomain::new();
        assert_eq!(limit(&domain, 1000, 0, 0), 1000);
        assert_eq!(limit(&domain, 4200, 0, 1), 4200);
        assert_eq!(limit(&domain, 1000, 0, 200), 4200, "199 ms after it rose");
        assert_eq!(limit(&domain, 1000, 0, 201), 4100);
        assert_eq!(limit(&domain, 1000, 0, 400), 4100);
        assert_eq!(limit(&domain, 1000, 0, 401), 4004);
    }

    #[test]
    fn the_limit_does_not_fall_below_what_is_dirty() {
        let domain = WbDomain::new();
        limit(&domain, 10_000, 0, 0);
        let mut now_ms = 0;
        for _ in 0..200 {
            now_ms += 200;
            limit(&domain, 1000, 6000, now_ms);
        }
        let stays = limit(&domain, 1000, 6000, now_ms + 200);
        assert!((6000..6032).contains(&stays), "{stays}");
        assert_eq!(limit(&domain, 1000, 12_000, now_ms + 400), stays, "dirty pages do not raise it");
    }

    #[test]
    fn a_resize_forgets_the_old_limit() {
        let domain = WbDomain::new();
        limit(&domain, 10_000, 0, 0);
        domain.resized();
        assert_eq!(limit(&domain, 1000, 6000, 1), 1000);
    }

    #[test]
    fn shares_follow_completions() {
        let (domain, fast, slow) = (WbDomain::new(), FpropLocal::new(), FpropLocal::new());
        domain.completed(&fast, 749, 0);
        domain.completed(&slow, 250, 0);
        let thresh = |wb| domain.wb_limits(wb, levels(4000), 4000, LimitMode::Shared, 0).share.thresh_pages;
        assert_eq!((thresh(&fast), thresh(&slow)), (2996, 1000));
    }

    #[test]
    fn background_starts_for_the_domain_or_for_the_wb() {
        let (domain, wb, other) = (WbDomain::new(), FpropLocal::new(), FpropLocal::new());
        domain.completed(&other, 999, 0);
        let over =
            |dirty, wb_dirty| domain.is_over_background(&wb, levels(2000), dirty, wb_dirty, LimitMode::Shared, 0);
        assert!(over(1001, 0));
        assert!(!over(1000, 0));
        assert!(!over(200, 100), "an idle wb may have an eighth of the headroom");
        assert!(over(200, 101));
    }
}
