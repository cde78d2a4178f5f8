//! The conformance suite on the backend in memory and on every layer, and on backends that break it.

mod broken;

use std::sync::Arc;

use slackwater::backend::{Backend, MemBackend};
use slackwater_testkit::{Delay, Fault, Rate, conformance_tests};

fn mem() -> Arc<dyn Backend> {
    Arc::new(MemBackend::new())
}

conformance_tests!(memory, |rule| rule.check(MemBackend::new()));

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
