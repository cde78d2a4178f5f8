//! Wbs of other tenants with pages that this tenant has dirtied: the pages are charged to it, but its own flusher
//! cannot write them.
//!
//! # Kernel counterpart
//! `mem_cgroup_track_foreign_dirty`, `mem_cgroup_flush_foreign`. Differs: a record holds a weak reference to
//! the wb instead of two numbers, so it is never wrong.

use std::time::Duration;

use slackwater_sync::shim::{Arc, Weak};

use crate::units::Tick;
use crate::writeback::BdiWriteback;

/// Number of records. Kernel: `MEMCG_CGWB_FRN_CNT`.
const RECORDS: usize = 4;

#[derive(Default)]
struct Record {
    wb: Weak<BdiWriteback>,
    dirtied_at: Tick,
}

/// The most recent records.
#[derive(Default)]
pub(crate) struct ForeignWbs([Record; RECORDS]);

impl ForeignWbs {
    /// Records that the tenant dirtied a page of `wb` at `now`, in the record of `wb` or else in the oldest one.
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

    /// Takes the wbs with pages younger than `expire`, for which periodic write-back has not begun.
    pub(super) fn take(&mut self, now: Tick, expire: Duration) -> Vec<Arc<BdiWriteback>> {
        let young = self.0.iter_mut().filter(|record| now.since(record.dirtied_at) < expire);
        young.filter_map(|record| std::mem::take(record).wb.upgrade()).collect()
    }
}
