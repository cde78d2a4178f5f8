//! Every barrier, ordering and order of steps that correctness rests on, by name.
//!
//! `tests/loom/mutants.rs` removes them one at a time and requires loom to find a failure: a barrier whose removal is
//! not noticed is either untested or not needed. Outside loom, a site is a name and costs nothing.

use super::atomic::Ordering;

macro_rules! sites {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A barrier, ordering or order of steps; see the module that uses it for its partner.
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
    /// `RwWord`: a reader's reads happen before the writes of the next writer.
    RwWordReadRelease,
    /// `RwWord`: taking the lock to write follows every earlier holder.
    RwWordWriteAcquire,
    /// `RwWord`: publishes what the writer did.
    RwWordWriteRelease,
    /// `InFlight`: the pin is visible before the flag is tested.
    InFlightPinFence,
    /// `InFlight`: everything done under a pin happens before the drain ends.
    InFlightUnpinRelease,
    /// `InFlight`: the flag's change is visible before the count is read.
    InFlightDrainFence,
    /// `InFlight`: the end of the drain follows everything done under each pin.
    InFlightDrainAcquire,
    /// `Demand`: the raised demand is visible before the taker looks again.
    DemandRaiseFence,
    /// `Demand`: the released resource is visible before the demand is checked.
    DemandLookFence,
    /// `Kick`: the counted work is visible before the flag is tested.
    KickFence,
    /// `Kick`: the flag is clear before the count is read.
    KickTakeFence,
    /// `SeqLock`: a reader that begins with a number sees the changes made up to it.
    SeqLockEndRelease,
    /// `SeqLock`: likewise, the reader's side.
    SeqLockBeginAcquire,
    /// `SeqRefs`: the pin is visible before the check for a change.
    SeqRefsPinFence,
    /// `SeqRefs`: the change is visible before the references are counted.
    SeqRefsCountFence,
    /// `Completion`: publishes the completed work.
    CompletionRelease,
    /// `Completion`: a waiter sees the completed work.
    CompletionAcquire,
    /// `PercpuRef`: everything done under a reference happens before its put.
    PercpuRefPutRelease,
    /// `PercpuRef`: the callback follows everything done under each reference.
    PercpuRefPutAcquire,
    /// `Registry`: publishes a registered element.
    RegistryLinkRelease,
    /// `Registry`: publishes it to a walk that follows the link moved from a removed element.
    RegistryUnlinkRelease,
    /// `Registry`: a walk sees a registered element.
    RegistryLinkAcquire,
    /// `Registry`: everything done under a reference happens before its put.
    RegistryPutRelease,
    /// `Registry`: the end of `unregister` follows everything done under each reference.
    RegistryPutAcquire,
    /// `Registry`: a walk is inside a section again before it puts its reference.
    RegistryReenter,
    /// `Srcu`: a grace period also waits for readers that found the index of an earlier round.
    SrcuStragglers,
    /// RCU: a reader that enters under the new number sees everything published before it.
    RcuNumberRelease,
    /// RCU: likewise, the reader's side.
    RcuNumberAcquire,
    /// RCU: a new section is not visible before the end of the previous one.
    RcuEnterRelease,
    /// RCU: the reader is announced before it reads anything.
    RcuEnterLight,
    /// RCU: published changes are visible before the writer looks for readers.
    RcuGraceHeavy,
    /// RCU: everything that a reader did in its section happens before the grace period ends.
    RcuExitRelease,
    /// RCU: the end of the section is visible before the reader looks for sleepers.
    RcuExitLight,
    /// RCU: the sleeper's mark is visible before the writer looks at the reader again.
    RcuSleepHeavy,
    /// RCU: a thread that is ordered after the grace period is ordered after each section that it waited for.
    RcuEndFence,
    /// RCU callbacks: publishes the values that the callback captured.
    RcuPushRelease,
    /// RCU callbacks: the worker sees the values that the callback captured.
    RcuTakeAcquire,
    /// RCU callbacks: a kick is not visible before the callback that it announces.
    RcuKickRelease,
    /// RCU callbacks: likewise, the worker's side.
    RcuKickAcquire,
    /// `RcuArc`: publishes the target of the pointer, and acquires the target that another writer published.
    RcuArcRelease,
    /// `RcuArc`: a reader sees the target of the pointer.
    RcuArcAcquire,
    /// `RcuList`: publishes an added node.
    RcuListLinkRelease,
    /// `RcuList`: publishes it to a reader that follows the link moved from a removed node.
    RcuListUnlinkRelease,
    /// `RcuList`: a reader sees an added node.
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

    /// Runs `first`, then `second`, and returns the result of `first`.
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

    /// Runs `first`, then `second`, and returns the result of `first`; in the opposite order when the site is switched
    /// off.
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
