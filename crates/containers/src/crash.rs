//! Places at which a test lets a call end as if the process had been killed. Outside of tests they are nothing.

#[cfg(not(test))]
pub(super) fn point() {}

#[cfg(test)]
pub(super) use armed::{Crash, after, point};

#[cfg(test)]
mod armed {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// How many places are passed before the crash.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// The call has crashed.
    #[derive(Debug)]
    pub(crate) struct Crash;

    /// Ends the call if it is time.
    pub(crate) fn point() {
        match LEFT.get() {
            // It does not print, as a panic does.
            Some(0) => resume_unwind(Box::new(Crash)),
            left => LEFT.set(left.map(|left| left - 1)),
        }
    }

    /// Runs `call`, which crashes at the place after `places` others. Returns its outcome if it does not come that far.
    pub(crate) fn after<T>(places: Option<usize>, call: impl FnOnce() -> T) -> Result<T, Crash> {
        LEFT.set(places);
        let outcome = catch_unwind(AssertUnwindSafe(call));
        LEFT.set(None);
        outcome.map_err(|panic| match panic.downcast::<Crash>() {
            Ok(crash) => *crash,
            Err(panic) => resume_unwind(panic),
        })
    }
}
