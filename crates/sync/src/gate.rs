//! Named points where a test can hold a thread.
//!
//! A known race has a window, which the code marks with [`pass`]. A test holds a thread inside the window, drives the
//! other side through it, and then releases the thread:
//!
//! ```ignore
//! let hold = gate::hold("switch.prepared");
//! let mover = thread::spawn(|| gate::pass("switch.prepared"));
//! hold.wait_reached(); // the mover is inside the window
//! // ... drive the other side ...
//! drop(hold); // the mover continues
//! mover.join().unwrap();
//! ```
//!
//! Without `debug_assertions`, [`pass`] is empty and [`hold`] does not exist; such tests carry
//! `#[cfg(debug_assertions)]`. Every thread of the process stops at a held gate. Two tests that pass through one gate
//! therefore belong in two test targets, or each holds the gate first to take turns. Builds for model checkers have no
//! gates.

/// Marks the point `name`. Stops here while a test holds it.
#[cfg(not(all(debug_assertions, not(any(slackwater_loom, slackwater_shuttle)))))]
#[inline(always)]
pub fn pass(_name: &'static str) {}

#[cfg(all(debug_assertions, not(any(slackwater_loom, slackwater_shuttle))))]
pub use held::{Hold, hold, pass};

#[cfg(all(debug_assertions, not(any(slackwater_loom, slackwater_shuttle))))]
mod held {
    use std::time::Duration;

    use crate::shim::atomic::{AtomicUsize, Ordering};
    use crate::shim::raw::{Condvar, Mutex};

    /// How long to wait for a thread before the test fails.
    const PATIENCE: Duration = Duration::from_secs(120);

    struct Gate {
        name: &'static str,
        arrived: usize,
    }

    /// How many gates are held. Usually none are, and a pass costs one load.
    static HELD: AtomicUsize = AtomicUsize::new(0);
    static GATES: Mutex<Vec<Gate>> = Mutex::new(Vec::new());
    static CHANGED: Condvar = Condvar::new();

    /// A gate that is held until this is dropped.
    pub struct Hold {
        name: &'static str,
    }

    /// Marks the point `name`. Stops here while a test holds it.
    pub fn pass(name: &'static str) {
        if HELD.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut gates = GATES.lock();
        if let Some(gate) = gates.iter_mut().find(|gate| gate.name == name) {
            gate.arrived += 1;
            CHANGED.notify_all();
            while gates.iter().any(|gate| gate.name == name) {
                CHANGED.wait(&mut gates);
            }
        }
    }

    /// Holds the gate `name`: a thread that reaches it waits until the result is dropped. Waits for an earlier holder
    /// of the gate.
    pub fn hold(name: &'static str) -> Hold {
        let mut gates = GATES.lock();
        while gates.iter().any(|gate| gate.name == name) {
            CHANGED.wait(&mut gates);
        }
        gates.push(Gate { name, arrived: 0 });
        HELD.store(gates.len(), Ordering::Relaxed);
        Hold { name }
    }

    impl Hold {
        /// Waits until a thread has reached the gate.
        ///
        /// # Panics
        /// If no thread reaches it within two minutes.
        pub fn wait_reached(&self) {
            let mut gates = GATES.lock();
            while gates.iter().all(|gate| gate.name != self.name || gate.arrived == 0) {
                assert!(!CHANGED.wait_timeout(&mut gates, PATIENCE), "no thread reached the gate {}", self.name);
            }
        }
    }

    impl Drop for Hold {
        fn drop(&mut self) {
            let mut gates = GATES.lock();
            gates.retain(|gate| gate.name != self.name);
            HELD.store(gates.len(), Ordering::Relaxed);
            CHANGED.notify_all();
        }
    }
}

#[cfg(all(test, debug_assertions, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;
    use crate::shim::atomic::{AtomicBool, Ordering};
    use crate::shim::{Arc, thread};

    #[test]
    fn a_thread_waits_at_a_held_gate() {
        let hold = hold("gate.test");
        let has_passed = Arc::new(AtomicBool::new(false));
        let passer = thread::spawn({
            let has_passed = Arc::clone(&has_passed);
            move || {
                pass("gate.elsewhere");
                pass("gate.test");
                has_passed.store(true, Ordering::Release);
            }
        });
        hold.wait_reached();
        assert!(!has_passed.load(Ordering::Acquire));
        drop(hold);
        passer.join().unwrap();
        assert!(has_passed.load(Ordering::Acquire));
    }
}
