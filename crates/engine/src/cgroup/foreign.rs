//! Wbs of others that a tenant has dirtied pages of: they hold what is charged to it, and its own flusher cannot write it.
//!
//! # Kernel counterpart
//! `mem_cgroup_track_foreign_dirty`, `mem_cgroup_flush_foreign`; sem. 5.8. Differs: a record holds the wb weakly instead
//! of two numbers, so it is never wrong.

use std::time::Duration;

use slackwater_sync::shim::{Arc, Weak};

use crate::units::Tick;
use crate::writeback::BdiWriteback;

/// Wbs that are remembered. Kernel: `MEMCG_CGWB_FRN_CNT`.
const RECORDS: usize = 4;

#[derive(Default)]
struct Record {
    wb: Weak<BdiWriteback>,
    dirtied_at: Tick,
}

/// The last few of them.
#[derive(Default)]
pub(crate) struct ForeignWbs([Record; RECORDS]);

impl ForeignWbs {
    /// The tenant dirtied a page of `wb` at `now`: in the place of the oldest, unless it is there.
    pub(super) fn note(&mut self, wb: &Arc<BdiWriteback>, now: Tick) {
        let of_wb = self.0.iter().position(|record| std::ptr::eq(record.wb.as_ptr(), Arc::as_ptr(wb)));
        let oldest = || (0..RECORDS).min_by_key(|nth| self.0[*nth].dirtied_at).unwrap_or_default();
        let nth = of_wb.unwrap_or_else(oldest);
        let record = &mut self.0[nth];
        if of_wb.is_none() {
            record.wb = Arc::downgrade(wb);
        }
        record.dirtied_at = now;
    }

    /// Those with pages younger than `expire`, for which periodic write-back has not begun; they are forgotten.
    pub(super) fn take(&mut self, now: Tick, expire: Duration) -> Vec<Arc<BdiWriteback>> {
        let young = self.0.iter_mut().filter(|record| now.since(record.dirtied_at) < expire);
        young.filter_map(|record| std::mem::take(record).wb.upgrade()).collect()
    }
}
