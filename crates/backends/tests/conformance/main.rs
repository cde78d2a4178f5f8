//! The conformance suite on every backend and every layer, and on backends that break it.

mod broken;
#[expect(dead_code, reason = "shared with the tests of the directory, which use all of it")]
#[path = "../fixture/mod.rs"]
mod fixture;

use std::sync::Arc;

use slackwater::backend::{Backend, Call, Limits, MemBackend};
use slackwater_backends::{Delay, DirBackend, Fault, Rate, conformance_tests};

use fixture::{TempDir, as_nobody};

fn mem() -> Arc<dyn Backend> {
    Arc::new(MemBackend::new())
}

fn open(dir: &TempDir) -> DirBackend {
    DirBackend::open(dir.path()).expect("it was just made")
}

conformance_tests!(memory, |rule| rule.check(MemBackend::new()));

conformance_tests!(directory_on_disk, |rule| {
    let dir = TempDir::new();
    rule.check(open(&dir));
});

conformance_tests!(directory_on_tmpfs, |rule| {
    let dir = TempDir::new_in("/dev/shm");
    rule.check(open(&dir));
});

conformance_tests!(directory_without_kernel_handles, |rule| {
    let dir = TempDir::new();
    rule.check(DirBackend::open_unprivileged(dir.path()).expect("it was just made"));
});

/// A backend whose calls are all submitted with `submit_and_wait`.
struct Waiting<B>(B);

impl<B: Backend> Backend for Waiting<B> {
    fn submit(&self, call: Call) {
        self.0.submit_and_wait(call);
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }
}

conformance_tests!(directory_served_by_its_callers, |rule| {
    let dir = TempDir::new();
    let (fault, _control) = Fault::new(Arc::new(Delay::new(Arc::new(Rate::new(Arc::new(open(&dir)), u64::MAX)))));
    rule.check(Waiting(fault));
});

conformance_tests!(directory_of_an_unprivileged_user, |rule| as_nobody(|parent| {
    let dir = TempDir::new_in(parent);
    rule.check(open(&dir));
}));

conformance_tests!(delay_of_nothing, |rule| rule.check(Delay::new(mem())));

conformance_tests!(fault_without_rules, |rule| {
    let (layer, _control) = Fault::new(mem());
    rule.check(layer);
});

conformance_tests!(rate_that_never_limits, |rule| rule.check(Rate::new(mem(), u64::MAX)));

conformance_tests!(stack_of_layers, |rule| {
    let (fault, _control) = Fault::new(Arc::new(Rate::new(mem(), 1 << 40)));
    rule.check(Delay::new(Arc::new(fault)));
});
