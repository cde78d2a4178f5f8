//! Every barrier, ordering and order of steps that correctness rests on, by name.
//!
//! `tests/loom_mutants.rs` takes them away one at a time and requires loom to find a failure: a barrier that nobody can
//! miss is either untested or not needed. Outside loom a site is a name and costs nothing.

use super::atomic::Ordering;

macro_rules! sites {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One barrier, ordering or order of steps; see the module that uses it for its partner.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Site {
            $($(#[$doc])* $name,)*
        }

        impl Site {
            /// Every site, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

sites! {
    /// `RwWord`: taking the lock to read sees what the last writer did.
    RwWordReadAcquire,
    /// `RwWord`: what a reader read, it read before the next writer writes.
    RwWordReadRelease,
    /// `RwWord`: taking the lock to write follows every earlier holder.
    RwWordWriteAcquire,
    /// `RwWord`: publishes what the writer did.
    RwWordWriteRelease,
    /// `InFlight`: the pin is visible before the flag is tested.
    InFlightPinFence,
    /// `InFlight`: what happened under a pin happened before the drain ends.
    InFlightUnpinRelease,
    /// `InFlight`: the flag's change is visible before the count is read.
    InFlightDrainFence,
    /// `InFlight`: the drain's end follows what happened under each pin.
    InFlightDrainAcquire,
    /// `Demand`: what is wanted is visible before what is left is looked at again.
    DemandRaiseFence,
    /// `Demand`: what is given is visible before the demand is looked for.
    DemandLookFence,
    /// `Kick`: what was counted is visible before the flag is tested.
    KickFence,
    /// `Kick`: the flag is clear before the count is read.
    KickTakeFence,
    /// `SeqLock`: who begins with a number finds what was changed up to it.
    SeqLockEndRelease,
    /// `SeqLock`: likewise, the reader's side.
    SeqLockBeginAcquire,
    /// `SeqRefs`: the pin is visible before a change is looked for.
    SeqRefsPinFence,
    /// `SeqRefs`: the change is visible before the references are counted.
    SeqRefsCountFence,
    /// `Completion`: publishes what is complete.
    CompletionRelease,
    /// `Completion`: a waiter sees what is complete.
    CompletionAcquire,
    /// `PercpuRef`: what was done under a reference happened before its put.
    PercpuRefPutRelease,
    /// `PercpuRef`: the callback follows what was done under each reference.
    PercpuRefPutAcquire,
    /// `Registry`: publishes what was registered.
    RegistryLinkRelease,
    /// `Registry`: publishes it to who comes by the link of an element that has gone.
    RegistryUnlinkRelease,
    /// `Registry`: a walk sees what was registered.
    RegistryLinkAcquire,
    /// `Registry`: what was done under a reference happened before its put.
    RegistryPutRelease,
    /// `Registry`: the end of unregistering follows what was done under each reference.
    RegistryPutAcquire,
    /// `Registry`: a walk is inside a section again before it puts its reference.
    RegistryReenter,
    /// `Srcu`: readers that found the index of an earlier round are waited for too.
    SrcuStragglers,
    /// RCU: a reader that enters under the new number sees what was published before it.
    RcuNumberRelease,
    /// RCU: likewise, the reader's side.
    RcuNumberAcquire,
    /// RCU: entering anew is not seen before the end of the section before.
    RcuEnterRelease,
    /// RCU: the reader is announced before it reads anything.
    RcuEnterLight,
    /// RCU: what was published is visible before readers are looked for.
    RcuGraceHeavy,
    /// RCU: what a reader did in its section happens before the grace period ends.
    RcuExitRelease,
    /// RCU: the section's end is visible before sleepers are looked for.
    RcuExitLight,
    /// RCU: the sleeper's mark is visible before the reader is looked at again.
    RcuSleepHeavy,
    /// RCU: whoever is ordered after the grace period is ordered after each section that it waited for.
    RcuEndFence,
    /// RCU callbacks: publishes what the callback captured.
    RcuPushRelease,
    /// RCU callbacks: the worker sees what the callback captured.
    RcuTakeAcquire,
    /// RCU callbacks: a kick is not seen before the callback it announces.
    RcuKickRelease,
    /// RCU callbacks: likewise, the worker's side.
    RcuKickAcquire,
    /// `RcuArc`: publishes what the pointer points to, and takes over what another writer published.
    RcuArcRelease,
    /// `RcuArc`: a reader sees what the pointer points to.
    RcuArcAcquire,
    /// `RcuList`: publishes what was added.
    RcuListLinkRelease,
    /// `RcuList`: publishes it to who comes by the link of a node that has gone.
    RcuListUnlinkRelease,
    /// `RcuList`: a reader sees what was added.
    RcuListAcquire,
}

#[cfg(not(slackwater_loom))]
impl Site {
    /// The ordering to use here: the one given.
    #[inline(always)]
    pub const fn order(self, order: Ordering) -> Ordering {
        order
    }

    /// A full barrier at this site.
    #[inline(always)]
    pub fn smp_mb(self) {
        super::smp_mb();
    }

    /// Runs `first`, then `second`, and returns what the first gave.
    #[inline(always)]
    pub(crate) fn in_order<R>(self, first: impl FnOnce() -> R, second: impl FnOnce()) -> R {
        let result = first();
        second();
        result
    }

    /// Runs `step`.
    #[inline(always)]
    pub(crate) fn step(self, step: impl FnOnce()) {
        step();
    }
}

#[cfg(slackwater_loom)]
impl Site {
    /// The site that `SLACKWATER_MUTANT` switches off in this process.
    ///
    /// # Panics
    /// If there is no site of that name.
    pub fn mutant() -> Option<Self> {
        static MUTANT: super::OnceLock<Option<Site>> = super::OnceLock::new();
        *MUTANT.get_or_init(|| {
            let wanted = std::env::var("SLACKWATER_MUTANT").ok()?;
            let found = Self::ALL.iter().copied().find(|site| format!("{site:?}") == wanted);
            Some(found.unwrap_or_else(|| panic!("SLACKWATER_MUTANT: no site is called {wanted}")))
        })
    }

    /// Whether this site is switched off.
    pub(super) fn is_off(self) -> bool {
        Self::mutant() == Some(self)
    }

    /// The ordering to use here: the one given, or relaxed when the site is switched off.
    pub fn order(self, order: Ordering) -> Ordering {
        if self.is_off() { Ordering::Relaxed } else { order }
    }

    /// A full barrier at this site, unless it is switched off.
    pub fn smp_mb(self) {
        if !self.is_off() {
            super::smp_mb();
        }
    }

    /// Runs `first`, then `second`, and returns what the first gave; the other way round when the site is switched off.
    pub(crate) fn in_order<R>(self, first: impl FnOnce() -> R, second: impl FnOnce()) -> R {
        if self.is_off() {
            second();
            return first();
        }
        let result = first();
        second();
        result
    }

    /// Runs `step`, unless the site is switched off.
    pub(crate) fn step(self, step: impl FnOnce()) {
        if !self.is_off() {
            step();
        }
    }
}
