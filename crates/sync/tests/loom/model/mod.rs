//! Scenarios for loom: each a few lines in two or three threads, with one property.
//!
//! Tests run them as they are; `mutants` runs them with one barrier missing.

pub(crate) mod completion;
pub(crate) mod counter;
pub(crate) mod demand;
pub(crate) mod in_flight;
pub(crate) mod kick;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod percpu_ref;
pub(crate) mod rcu;
pub(crate) mod registry;
pub(crate) mod rw_word;
pub(crate) mod seq_refs;
pub(crate) mod srcu;

use std::time::Instant;

pub(crate) use slackwater_sync::shim::model::AsymModel;
use slackwater_sync::shim::{Arc, model, thread};

/// A property, checked over every execution within a bound.
pub(crate) struct Scenario {
    /// The property, which is the name of the test that checks it.
    pub(crate) name: &'static str,
    /// Involuntary switches per execution; `None` is unbounded.
    pub(crate) preemptions: Option<usize>,
    /// The models of the asymmetric fence that make a difference here.
    pub(crate) asym: &'static [AsymModel],
    pub(crate) body: fn(),
}

/// The fences of scenarios without asymmetric ones.
pub(crate) const PLAIN: &[AsymModel] = &[AsymModel::Full];
/// The fences of scenarios with asymmetric ones.
pub(crate) const BOTH: &[AsymModel] = &[AsymModel::Full, AsymModel::Tokens];

impl Scenario {
    /// Runs the scenario to the end in each of its models, or in the one that `SLACKWATER_ASYM` names; with no more
    /// preemptions than `SLACKWATER_LOOM_PREEMPTIONS` allows.
    pub(crate) fn check(&self) {
        let wanted = std::env::var("SLACKWATER_ASYM").ok();
        let allowed = std::env::var("SLACKWATER_LOOM_PREEMPTIONS").ok();
        let allowed = allowed.map(|number| number.parse().expect("SLACKWATER_LOOM_PREEMPTIONS is a number"));
        let preemptions = self.preemptions.into_iter().chain(allowed).min();
        for asym in self.asym.iter().filter(|asym| wanted.as_ref().is_none_or(|w| *w == title(**asym))) {
            let start = Instant::now();
            let executions = model::check(*asym, preemptions, self.body);
            let bound = preemptions.map_or("any number of".to_owned(), |n| format!("at most {n}"));
            let (asym, seconds) = (title(*asym), start.elapsed().as_secs_f64());
            println!("{}: all {executions} executions, {bound} preemptions, {asym} fences, {seconds:.1} s", self.name);
        }
    }
}

/// The name of a model in the environment and in reports.
pub(crate) fn title(asym: AsymModel) -> &'static str {
    match asym {
        AsymModel::Full => "full",
        AsymModel::Tokens => "tokens",
    }
}

/// Starts a thread that runs `body` with its own reference to `shared`.
pub(crate) fn start_with<S: Send + Sync + 'static, T: Send + 'static>(
    shared: &Arc<S>,
    body: impl FnOnce(&Arc<S>) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || body(&shared))
}

/// Every scenario.
pub(crate) const ALL: &[&[Scenario]] = &[
    completion::ALL,
    counter::ALL,
    demand::ALL,
    in_flight::ALL,
    kick::ALL,
    lease::ALL,
    lock::ALL,
    percpu_ref::ALL,
    rcu::ALL,
    registry::ALL,
    rw_word::ALL,
    seq_refs::ALL,
    srcu::ALL,
];

/// The scenario with this name.
pub(crate) fn find(name: &str) -> &'static Scenario {
    let found = ALL.iter().flat_map(|part| part.iter()).find(|scenario| scenario.name == name);
    found.unwrap_or_else(|| panic!("no scenario is called {name}"))
}
