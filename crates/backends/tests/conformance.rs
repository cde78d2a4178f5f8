//! The conformance suite on directories, and on layers over one.

#[expect(dead_code, reason = "shared with the tests of the directory, which use all of it")]
mod fixture;

use std::sync::Arc;

use slackwater::backend::{Backend, Call, Limits};
use slackwater_backends::DirBackend;
use slackwater_testkit::{Delay, Fault, Rate, conformance_tests};

use fixture::{TempDir, as_nobody};

fn open(dir: &TempDir) -> DirBackend {
    DirBackend::open(dir.path()).expect("it was just made")
}

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
