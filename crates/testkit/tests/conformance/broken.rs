//! A backend that breaks one rule fails that rule, with its name and the call.

use std::panic::{AssertUnwindSafe, catch_unwind};

use slackwater::ErrorKind;
use slackwater::backend::{Backend, Call, Limits, MemBackend, RenameMode};
use slackwater_testkit::conformance::RULES;

/// `MemBackend` with a defect: calls pass through `alter`, and those that it takes are never made.
struct Broken {
    mem: MemBackend,
    alter: fn(Call) -> Option<Call>,
}

impl Broken {
    fn new(alter: fn(Call) -> Option<Call>) -> Self {
        Self { mem: MemBackend::new(), alter }
    }
}

impl Backend for Broken {
    fn submit(&self, call: Call) {
        if let Some(call) = (self.alter)(call) {
            self.mem.submit(call);
        }
    }

    fn limits(&self) -> Limits {
        self.mem.limits()
    }
}

/// The rules that a backend breaks, with their messages.
fn broken_rules(alter: fn(Call) -> Option<Call>, lacks: fn(&Call) -> bool) -> Vec<(&'static str, String)> {
    let broken = |rule: &slackwater_testkit::conformance::Rule| {
        let check = || rule.check_without(Broken::new(alter), lacks);
        let panic = catch_unwind(AssertUnwindSafe(check)).err()?;
        Some((rule.name(), panic.downcast_ref::<String>().expect("a message").clone()))
    };
    RULES.iter().filter_map(broken).collect()
}

fn names(broken: &[(&'static str, String)]) -> Vec<&'static str> {
    broken.iter().map(|(name, _)| *name).collect()
}

fn everything(_: &Call) -> bool {
    false
}

fn replaces_always(mut call: Call) -> Option<Call> {
    if let Call::Rename { mode: mode @ RenameMode::NoReplace, .. } = &mut call {
        *mode = RenameMode::Replace;
    }
    Some(call)
}

#[test]
fn a_broken_rule_is_reported_by_name_with_its_call() {
    let broken = broken_rules(replaces_always, everything);
    assert_eq!(names(&broken), ["a_no_replace_rename_fails_if_the_name_exists"]);
    let (name, message) = &broken[0];
    assert!(message.starts_with(&format!("the backend breaks the rule `{name}` at the call `rename`")), "{message}");
    assert!(message.contains("calls: root: ok, make: ok, make: ok, rename: ok"), "{message}");
    assert!(message.contains("right: Err(Exists)"), "{message}");
}

fn drops_readlink(call: Call) -> Option<Call> {
    Some(call).filter(|call| call.name() != "readlink")
}

#[test]
fn a_dropped_call_breaks_the_rule_that_makes_it() {
    let broken = broken_rules(drops_readlink, everything);
    assert_eq!(names(&broken), ["a_symbolic_link_is_never_followed"]);
    assert!(broken[0].1.contains("at the call `readlink`") && broken[0].1.contains("Abandoned"), "{}", broken[0].1);
}

fn exchanges_nothing(call: Call) -> Option<Call> {
    if exchanges(&call) {
        call.fail(ErrorKind::Unsupported.into());
        return None;
    }
    Some(call)
}

fn exchanges(call: &Call) -> bool {
    matches!(call, Call::Rename { mode: RenameMode::Exchange, .. })
}

#[test]
fn a_call_that_the_backend_lacks_ends_the_rule_only_where_it_is_declared() {
    assert_eq!(names(&broken_rules(exchanges_nothing, exchanges)), [""; 0]);
    let undeclared = broken_rules(exchanges_nothing, everything);
    let expected = ["an_exchange_swaps_two_names", "a_directory_cannot_be_moved_into_itself"];
    assert_eq!(names(&undeclared), expected);
    assert!(undeclared.iter().all(|(_, message)| message.contains("use `check_without`")), "{undeclared:?}");
}

#[test]
fn a_call_that_is_declared_lacking_must_be_unsupported() {
    let broken = broken_rules(Some, exchanges);
    let expected = ["an_exchange_swaps_two_names", "a_directory_cannot_be_moved_into_itself"];
    assert_eq!(names(&broken), expected);
    assert!(broken.iter().all(|(_, message)| message.contains("declared as lacking")), "{broken:?}");
}

#[test]
fn rule_names_are_unique() {
    let mut names: Vec<_> = RULES.iter().map(|rule| rule.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RULES.len());
}
