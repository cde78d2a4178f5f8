//! Grace periods: which caller runs one, which callers share it, and how it waits.
//!
//! # Invariants
//! G1. Grace periods are numbered as they start. One that ends serves every caller that arrived before it started,
//!     whatever its kind: a caller waits for any number above the last that had started.
//! G2. At most one grace period of each kind runs. So a record has at most two sleepers, each with its own bit.
//! G3. A sleeper's bit is cleared only by a reader that then wakes all sleepers, or by the sleeper itself.
//!
//! # Lock order
//! The lock here is a leaf, and is not held while a grace period runs.

use std::time::Duration;

use super::record::Record;
use super::{Core, STEP, Stall};
use crate::lock::might_sleep;
use crate::shim::atomic::Ordering;
use crate::shim::{Arc, STALL_PERIOD, Site, futex_wait, raw, spin_until};

/// The two kinds of grace period.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Shared and delayed, with a patient barrier.
    Normal,
    /// Starts at once.
    Expedited,
}

impl Kind {
    /// The kind's mark in [`Record::sleepers`].
    const fn bit(self) -> u32 {
        match self {
            Self::Normal => 1,
            Self::Expedited => 2,
        }
    }
}

/// The progress of the grace periods of a domain. Used by writers only: kept off the cache lines that readers use.
#[repr(align(128))]
pub(super) struct Progress {
    state: raw::Mutex<State>,
    changed: raw::Condvar,
}

struct State {
    /// Grace periods that have started.
    started: u64,
    /// The greatest number of one that has ended.
    ended: u64,
    /// The kinds that a thread runs or is about to run, as bits.
    led: u32,
}

impl Progress {
    pub(super) fn new() -> Self {
        let state = State { started: 0, ended: 0, led: 0 };
        Self { state: raw::Mutex::new(state), changed: raw::Condvar::new() }
    }
}

impl Core {
    /// Returns when a grace period that started after the call has ended. The first caller that needs one runs it for
    /// all.
    #[track_caller]
    pub(super) fn wait_for_grace(&self, kind: Kind) {
        might_sleep();
        let Progress { state, changed } = &self.progress;
        let mut now = state.lock();
        let wanted = now.started + 1; // G1
        while now.ended < wanted {
            if now.led & kind.bit() != 0 {
                changed.wait(&mut now);
                continue;
            }
            now.led |= kind.bit(); // G2
            if matches!(kind, Kind::Normal) && !self.options.coalesce.is_zero() {
                // Ends early when another grace period ends, which may even be sufficient.
                changed.wait_timeout(&mut now, self.options.coalesce);
            }
            if now.ended < wanted {
                now.started += 1;
                let number = now.started;
                drop(now);
                self.run_grace(kind);
                now = state.lock();
                now.ended = now.ended.max(number);
            }
            now.led &= !kind.bit();
            changed.notify_all();
        }
    }

    /// Runs a grace period from start to end.
    fn run_grace(&self, kind: Kind) {
        // O2.
        let number = self.number.fetch_add(STEP, Site::RcuNumberRelease.order(Ordering::Release)) + STEP;
        let records = self.records.snapshot();
        // O1: pairs with the light side of a reader that enters.
        self.heavy(kind, Site::RcuGraceHeavy, &records);
        let mut waited = Duration::ZERO;
        let mut open: Vec<&Record> =
            records.iter().map(Arc::as_ref).filter(|r| !spin_until(|| r.has_passed(number))).collect();
        while !open.is_empty() {
            for record in &open {
                record.sleepers.fetch_or(kind.bit(), Ordering::Relaxed);
            }
            // O4: pairs with the light side of a reader that leaves.
            self.heavy(kind, Site::RcuSleepHeavy, &records);
            open.retain(|record| {
                let has_passed = record.has_passed(number);
                if has_passed {
                    record.sleepers.fetch_and(!kind.bit(), Ordering::Relaxed); // G3
                }
                !has_passed
            });
            if let Some(record) = open.first() {
                self.sleep_for(record, kind, &mut waited);
            }
        }
        // O3, O5.
        Site::RcuEndFence.smp_mb();
    }

    fn heavy(&self, kind: Kind, site: Site, records: &[Arc<Record>]) {
        let tokens = records.iter().map(|record| &record.token);
        match kind {
            Kind::Normal => self.asym.heavy_patient(site, tokens),
            Kind::Expedited => self.asym.heavy(site, tokens),
        }
    }

    /// Sleeps until the reader may have left its section.
    fn sleep_for(&self, record: &Record, kind: Kind, waited: &mut Duration) {
        // The bit of the other kind may change; then the wait fails, and the caller looks again.
        let sleepers = record.sleepers.load(Ordering::Relaxed);
        if sleepers & kind.bit() == 0 {
            return;
        }
        let has_timed_out = futex_wait(&record.sleepers, sleepers, STALL_PERIOD);
        if let Some(period) = STALL_PERIOD
            && has_timed_out
        {
            *waited += period;
            (self.options.on_stall)(&Stall { reader: &record.owner(), waited: *waited });
        }
    }
}
