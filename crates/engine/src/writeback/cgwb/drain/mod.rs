//! What an unmount waits for so that no switch of the volume is left: one form per file, the last is the default.
//!
//! | form | waits, if any switch is in flight anywhere | correct |
//! |---|---|---|
//! | [`base`] | callback barrier, flush of the queue | no: a switch that is prepared and not queued is missed |
//! | [`race`] | grace period, callback barrier, flush | yes |
//! | [`rmbarrier`] | grace period, flush | yes |
//! | [`per_sb`] | until the volume's count is zero; takes back what no thread is at | yes, and depends on this volume alone |
//!
//! # Kernel counterpart
//! `cgroup_writeback_umount` in four versions; sem. 6.3. The first three are kept for what they cost. The last differs: it
//! takes back what a flusher has not begun, where Linux waits for the flusher and for its grace period.

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

/// Both sides of the agreement between a switch and an unmount. What is given here is how it was before a volume had a
/// count: a switch is in the engine's count alone, which the unmount reads.
pub(crate) trait Drain: Send + Sync {
    /// A switch begins to look at an inode of `sb`. False: the volume is going away, and nothing is pinned.
    fn pin(&self, _sb: &SuperBlock) -> bool {
        smp_mb(); // between the engine's count and the look at ACTIVE; pairs with that of `is_any_in_flight`
        true
    }

    /// It has let go of the inode.
    fn unpin(&self, _sb: &SuperBlock) {}

    /// Whether a switch may be queued that has an inode of `sb`, or is to let go of it. Called with its queue locked.
    fn may_queue(&self, _sb: &SuperBlock) -> bool {
        true
    }

    /// What a switch keeps open from before it prepares until it is queued.
    fn section<'a>(&self, _domain: &'a Domain) -> Option<Guard<'a>> {
        None
    }

    /// Waits until no switch has an inode of `sb`, which is not active any more.
    ///
    /// # Blocking
    /// Yes.
    fn drain(&self, sb: &Arc<SuperBlock>);
}

/// Which of the forms an engine uses. For experiments and tests; [`UmountForm::PerSb`] is right.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum UmountForm {
    /// As in Linux before the fix: wrong.
    Base,
    /// The fix: one grace period more.
    Race,
    /// Without the callback barrier.
    RmBarrier,
    /// As in Linux 7.2: a count per super block. And switches are taken back.
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

/// What drains have waited for.
#[derive(Default)]
pub(crate) struct DrainCosts {
    drains: AtomicU64,
    grace_periods: AtomicU64,
    barriers: AtomicU64,
    flushes: AtomicU64,
    waits: AtomicU64,
    ns: AtomicU64,
}

/// What the unmounts of an engine have waited for so far, while they drained the switches of their volumes.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct DrainStats {
    /// Drains: one for each unmount.
    pub drains: u64,
    /// Normal grace periods.
    pub grace_periods: u64,
    /// Callback barriers: every callback of the engine has run.
    pub barriers: u64,
    /// Flushes of the queue of all volumes' switches.
    pub flushes: u64,
    /// Drains that found a switch of their own volume in flight.
    pub waits: u64,
    /// Time inside drains, all together.
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

/// Whether a switch of any volume is in flight, for who has cleared ACTIVE.
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
    /// Waits until no switch has an inode of this volume, which is not active any more. Kernel:
    /// `cgroup_writeback_umount`.
    ///
    /// # Blocking
    /// Yes; in the default form for threads alone that are about to queue or to do a switch of this volume, and for no
    /// grace period.
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
