//! Asymmetric fences: almost free on the frequent side, expensive on the rare one.
//!
//! `light` and `heavy` are full barriers *towards each other*: two threads that write one word, pass their side and read
//! the other's word cannot both read the old value. Two light sides order nothing.
//!
//! # Memory ordering
//! On the machine `heavy` is a membarrier system call, which runs a full barrier on every CPU that runs a thread of
//! this process; `light` then only has to keep the compiler from moving accesses. Without membarrier, both sides are
//! full barriers. Under loom two models run, because neither shows every error:
//! - *full*: both sides are sequentially consistent fences. This is exactly the mode without membarrier.
//! - *tokens*: each reader owns one word; `light` is an acquire-release operation on it, `heavy` one on every reader's.
//!   This orders a light side with heavy sides only, as membarrier does, and shows where code relies on more.

#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
pub use self::native::{Asym, Token};
#[cfg(any(slackwater_loom, slackwater_shuttle))]
pub use super::build::{Asym, Token};

/// The pair of fences that a domain uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fences {
    /// The light side is free, the heavy side a system call.
    Membarrier,
    /// Both sides are full barriers: no system call, and no CPU is interrupted.
    Full,
}

#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
mod native {
    use std::sync::atomic::{Ordering, compiler_fence};

    use super::super::syscall::{Membarrier, membarrier};
    use super::super::{Site, smp_mb};
    use super::Fences;

    /// The state of one reader in the model of a fence; empty on the machine.
    pub struct Token(());

    impl Token {
        /// The token of one reader.
        #[allow(clippy::new_without_default, reason = "one way to make a token is enough")]
        pub fn new() -> Self {
            Self(())
        }
    }

    /// A pair of asymmetric fences.
    #[derive(Clone, Copy)]
    pub struct Asym(Fences);

    impl Asym {
        /// Fences of the requested kind, or full ones where the kernel lacks membarrier. The first call for membarrier
        /// takes a microsecond while the process has one thread, and milliseconds later.
        pub fn new(wanted: Fences) -> Self {
            match wanted {
                Fences::Membarrier if membarrier(Membarrier::RegisterPrivateExpedited) => Self(Fences::Membarrier),
                Fences::Membarrier | Fences::Full => Self(Fences::Full),
            }
        }

        /// The kind in use.
        pub fn fences(self) -> Fences {
            self.0
        }

        /// The frequent side.
        #[inline]
        pub fn light(self, _site: Site, _token: &Token) {
            match self.0 {
                Fences::Membarrier => compiler_fence(Ordering::SeqCst),
                Fences::Full => smp_mb(),
            }
        }

        /// The rare side, without delay: interrupts the CPUs that run threads of this process.
        ///
        /// # Panics
        /// Never: a registered membarrier does not fail.
        pub fn heavy<'t>(self, _site: Site, _tokens: impl Iterator<Item = &'t Token>) {
            match self.0 {
                Fences::Membarrier => {
                    assert!(membarrier(Membarrier::PrivateExpedited), "a registered membarrier does not fail");
                }
                Fences::Full => smp_mb(),
            }
        }

        /// The rare side, within milliseconds, without interrupting any CPU. Falls back to [`Asym::heavy`] where the
        /// kernel refuses (CPUs isolated by `nohz_full`).
        pub fn heavy_patient<'t>(self, site: Site, tokens: impl Iterator<Item = &'t Token>) {
            if self.0 == Fences::Full || !membarrier(Membarrier::Global) {
                self.heavy(site, tokens);
            }
        }
    }
}
