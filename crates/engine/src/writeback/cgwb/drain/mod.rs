//! How an unmount waits for the volume's switches to end. One form per file; the last is the default.
//!
//! | form | waits, if any switch is in flight in the engine | correct |
//! |---|---|---|
//! | [`base`] | callback barrier, flush of the queue | no: misses a switch that is prepared but not queued |
//! | [`race`] | grace period, callback barrier, flush | yes |
//! | [`rmbarrier`] | grace period, flush | yes |
//! | [`per_sb`] | until the volume's count is zero; takes back switches that no thread is working on | yes, and depends on this volume alone |
//!
//! # Kernel counterpart
//! `cgroup_writeback_umount` in four versions. The first three are kept to measure their cost. The last
//! differs: it takes back switches that a flusher has not begun, whereas Linux waits for the flusher and its grace
//! period.

mod base;
mod per_sb;
mod race;
mod rmbarrier;

use std::time::Duration;

use slackwater_sync::rcu::{Domain, Guard};
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};
use slackwater_sync::shim::{Arc, smp_mb};

use crate::engine::Shared;
use crate::super_block::SuperBlock;

/// Both sides of the protocol between a switch and an unmount. The default methods are those from before the count per
/// super block: a switch is counted only for the whole engine, and the unmount reads that count.
pub(crate) trait Drain: Send + Sync {
    /// Pins `sb` before a switch checks an inode of it. False: the volume is being unmounted, and nothing is pinned.
    fn pin(&self, _sb: &SuperBlock) -> bool {
        smp_mb(); // between the engine's count and the check of ACTIVE; pairs with the one in `is_any_in_flight`
        true
    }

    /// Called after the switch has dropped the inode.
    fn unpin(&self, _sb: &SuperBlock) {}

    /// Whether a switch with an inode of `sb` may be queued; if not, it must drop the inode. Called with the queue
    /// locked.
    fn may_queue(&self, _sb: &SuperBlock) -> bool {
        true
    }

    /// The read section that a switch keeps open from before it prepares until it is queued.
    fn section<'a>(&self, _domain: &'a Domain) -> Option<Guard<'a>> {
        None
    }

    /// Waits until no switch has an inode of `sb`, which is no longer active.
    ///
    /// # Blocking
    /// Yes.
    fn drain(&self, sb: &Arc<SuperBlock>);
}

/// The form an engine uses. For experiments and tests; [`UmountForm::PerSb`] is the right one.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum UmountForm {
    /// The form of Linux before the fix: wrong.
    Base,
    /// The fix: one more grace period.
    Race,
    /// Without the callback barrier.
    RmBarrier,
    /// The form of Linux 7.2: a count per super block. In addition, switches are taken back.
    #[default]
    PerSb,
}

impl UmountForm {
    pub(super) fn drain(self) -> &'static dyn Drain {
        match self {
            Self::Base => &base::Base,
            Self::Race => &race::Race,
            Self::RmBarrier => &rmbarrier::RmBarrier,
            Self::PerSb => &per_sb::PerSb,
        }
    }
}

/// Counters of what drains waited for.
#[derive(Default)]
pub(crate) struct DrainCosts {
    drains: AtomicU64,
    grace_periods: AtomicU64,
    barriers: AtomicU64,
    flushes: AtomicU64,
    waits: AtomicU64,
    ns: AtomicU64,
}

/// Totals of the waits for switches by all unmounts of an engine so far.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct DrainStats {
    /// Drains: one for each unmount.
    pub drains: u64,
    /// Normal grace periods.
    pub grace_periods: u64,
    /// Callback barriers, which wait until every callback of the engine has run.
    pub barriers: u64,
    /// Flushes of the switch queue, which covers all volumes.
    pub flushes: u64,
    /// Drains that found a switch of their own volume in flight.
    pub waits: u64,
    /// Total time spent in drains.
    pub time: Duration,
}

impl DrainCosts {
    pub(crate) fn stats(&self) -> DrainStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DrainStats {
            drains: of(&self.drains),
            grace_periods: of(&self.grace_periods),
            barriers: of(&self.barriers),
            flushes: of(&self.flushes),
            waits: of(&self.waits),
            time: Duration::from_nanos(of(&self.ns)),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Whether a switch of any volume is in flight. The caller has cleared ACTIVE.
fn is_any_in_flight(engine: &Shared) -> bool {
    smp_mb();
    engine.switches.in_flight() != 0
}

fn wait_for_grace_period(engine: &Shared) {
    count(&engine.switches.costs.grace_periods);
    engine.pool.rcu.synchronize();
}

fn wait_for_callbacks(engine: &Shared) {
    count(&engine.switches.costs.barriers);
    engine.pool.rcu.barrier();
}

fn flush_queue(engine: &Shared) {
    count(&engine.switches.costs.flushes);
    engine.switches.flush(engine);
}

impl SuperBlock {
    /// Waits until no switch has an inode of this volume, which is no longer active. Kernel: `cgroup_writeback_umount`.
    ///
    /// # Blocking
    /// Yes. In the default form it waits only for threads that are queuing or executing a switch of this volume, and
    /// for no grace period.
    pub(crate) fn drain_switches(self: &Arc<Self>) {
        let engine = self.engine();
        let costs = &engine.switches.costs;
        let begun = engine.clock.now();
        engine.switches.form().drain(self);
        let waited = engine.clock.now().since(begun);
        count(&costs.drains);
        costs.ns.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
        tracing::trace!(target: "slackwater::umount", volume = self.name(), ?waited, "umount_drain");
    }
}
