//! A layer in which calls fail, are cut short, or do not return, as the test commands.
//!
//! [`Fault::new`] gives the layer and a [`FaultControl`]: the layer takes the place of the backend, and the control
//! stays with the test. Rules are tried in the order they were added, and the first that applies decides.
//!
//! Held calls serve model tests: hold everything, examine the calls in flight, and choose the order by releasing them
//! one by one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use slackwater::backend::{Backend, Call, Limits, Node, NodeSupply};
use slackwater::{BackendError, Clock, ErrorKind, NodeId};
use slackwater_backends::SystemClock;
use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::Arc;

use super::rule::{Effect, Rule, RuleId};
use crate::LAYER;

/// Faults in front of a backend. Dropping it abandons the calls that are held.
pub struct Fault {
    shared: Arc<Shared>,
}

/// Controls the faults of a [`Fault`] while it works. Clones control the same layer, and keep the backend below it
/// alive.
#[derive(Clone)]
pub struct FaultControl {
    shared: Arc<Shared>,
}

/// The number of calls by outcome.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Passed on unchanged and at once.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
    /// Cut short.
    pub shortened: u64,
    /// Held, whatever happened to them later.
    pub held: u64,
}

/// A call that is held.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct Held {
    /// The number of the call: later calls have greater ones.
    pub ticket: u64,
    /// The [`Call::name`].
    pub name: &'static str,
    /// The [`Call::node_id`].
    pub node: Option<NodeId>,
    /// The [`Call::range_bytes`].
    pub range_bytes: Option<(u64, usize)>,
}

struct Shared {
    inner: Arc<dyn Backend>,
    state: Mutex<State>,
    has_held: Condvar,
}

#[derive(Default)]
struct State {
    rules: BTreeMap<RuleId, Rule>,
    last_rule: u64,
    held: BTreeMap<u64, Call>,
    last_ticket: u64,
    counts: FaultCounts,
}

impl Fault {
    /// A layer without faults yet, and its control.
    pub fn new(inner: Arc<dyn Backend>) -> (Self, FaultControl) {
        let state = Mutex::new(LAYER, State::default());
        let shared = Arc::new(Shared { inner, state, has_held: Condvar::new() });
        (Self { shared: shared.clone() }, FaultControl { shared })
    }
}

impl Backend for Fault {
    fn submit(&self, call: Call) {
        if let Some(call) = self.shared.strike(call) {
            self.shared.inner.submit(call);
        }
    }

    fn submit_and_wait(&self, call: Call) {
        if let Some(call) = self.shared.strike(call) {
            self.shared.inner.submit_and_wait(call);
        }
    }

    fn settle(&self) {
        self.shared.inner.settle();
    }

    fn limits(&self) -> Limits {
        self.shared.inner.limits()
    }

    fn node_supply(&self) -> NodeSupply {
        self.shared.inner.node_supply()
    }

    fn descriptor(&self, node: &Node) -> Option<OwnedFd> {
        self.shared.inner.descriptor(node)
    }

    fn last_path(&self, node: &Node) -> Option<PathBuf> {
        self.shared.inner.last_path(node)
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        let abandoned = std::mem::take(&mut self.shared.state.lock().held);
        drop(abandoned);
    }
}

impl FaultControl {
    /// Adds a rule after the existing ones.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut state = self.shared.state.lock();
        state.last_rule += 1;
        let id = RuleId(state.last_rule);
        state.rules.insert(id, rule);
        id
    }

    /// Removes a rule. Calls that it holds stay held.
    pub fn remove(&self, rule: RuleId) {
        let removed = self.shared.state.lock().rules.remove(&rule);
        drop(removed);
    }

    /// Removes all rules. Held calls stay held.
    pub fn clear(&self) {
        let removed = std::mem::take(&mut self.shared.state.lock().rules);
        drop(removed);
    }

    /// The number of calls that a rule was applied to; 0 if it was removed.
    pub fn strikes(&self, rule: RuleId) -> u64 {
        self.shared.state.lock().rules.get(&rule).map_or(0, Rule::strikes)
    }

    /// The counts so far.
    pub fn counts(&self) -> FaultCounts {
        self.shared.state.lock().counts
    }

    /// The held calls, oldest first.
    pub fn held(&self) -> Vec<Held> {
        self.shared.state.lock().held()
    }

    /// The held calls once there are `calls` of them, or those present after `timeout`.
    ///
    /// # Blocking
    /// For up to `timeout`.
    pub fn wait_held(&self, calls: usize, timeout: Duration) -> Vec<Held> {
        let deadline = SystemClock.now() + timeout;
        let mut state = self.shared.state.lock();
        while state.held.len() < calls {
            let left = deadline.since(SystemClock.now());
            if left.is_zero() {
                break;
            }
            self.shared.has_held.wait_timeout(&mut state, left);
        }
        state.held()
    }

    /// Passes a held call on to the backend. False if it is no longer held.
    pub fn release(&self, ticket: u64) -> bool {
        self.take(ticket).map(|call| self.shared.inner.submit(call)).is_some()
    }

    /// Passes all held calls on, oldest first.
    pub fn release_all(&self) {
        for held in self.held() {
            self.release(held.ticket);
        }
    }

    /// Fails a held call; the backend never sees it. False if it is no longer held.
    pub fn fail(&self, ticket: u64, kind: ErrorKind) -> bool {
        self.take(ticket).map(|call| call.fail(injected(kind))).is_some()
    }

    fn take(&self, ticket: u64) -> Option<Call> {
        self.shared.state.lock().held.remove(&ticket)
    }
}

impl Shared {
    /// Applies the rules to `call`, and returns it if it is to be passed on.
    fn strike(&self, mut call: Call) -> Option<Call> {
        let mut state = self.state.lock();
        match state.judge(&call) {
            None => {
                state.counts.passed += 1;
                Some(call)
            }
            Some(Effect::Fail(kind)) => {
                state.counts.failed += 1;
                drop(state);
                call.fail(injected(kind));
                None
            }
            Some(Effect::ShortWrite(len_bytes)) => {
                state.counts.shortened += 1;
                if let Call::Write(unit) = &mut call {
                    unit.shorten(len_bytes.min(unit.len_bytes()));
                }
                Some(call)
            }
            Some(Effect::Hold) => {
                state.counts.held += 1;
                state.last_ticket += 1;
                let ticket = state.last_ticket;
                state.held.insert(ticket, call);
                drop(state);
                self.has_held.notify_all();
                None
            }
        }
    }
}

impl State {
    fn judge(&mut self, call: &Call) -> Option<Effect> {
        self.rules.values_mut().find_map(|rule| rule.judge(call))
    }

    fn held(&self) -> Vec<Held> {
        let describe = |(&ticket, call): (&u64, &Call)| Held {
            ticket,
            name: call.name(),
            node: call.node_id(),
            range_bytes: call.range_bytes(),
        };
        self.held.iter().map(describe).collect()
    }
}

fn injected(kind: ErrorKind) -> BackendError {
    BackendError::new(kind, "injected")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use slackwater::backend::{Done, Found, MemBackend};

    use super::*;

    type Answer<T> = Result<T, BackendError>;

    fn layer() -> (Fault, FaultControl) {
        Fault::new(Arc::new(MemBackend::new()))
    }

    fn submit<T: Send + 'static>(fault: &Fault, call: impl FnOnce(Done<T>) -> Call) -> mpsc::Receiver<Answer<T>> {
        let (send, answers) = mpsc::channel();
        fault.submit(call(Done::new(move |answer| send.send(answer).expect("the test waits"))));
        answers
    }

    fn root(fault: &Fault) -> mpsc::Receiver<Answer<Found>> {
        submit(fault, |done| Call::Root { done })
    }

    #[test]
    fn a_struck_call_fails_with_the_given_kind() {
        let (fault, control) = layer();
        let rule = control.add(Rule::fail(ErrorKind::NoSpace).on("root").nth(2));
        root(&fault).recv().expect("answered").expect("the first is spared");
        let error = root(&fault).recv().expect("answered").expect_err("the second is struck");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        root(&fault).recv().expect("answered").expect("the third is spared");
        assert_eq!(control.strikes(rule), 1);
        assert_eq!(control.counts(), FaultCounts { passed: 2, failed: 1, ..FaultCounts::default() });
    }

    #[test]
    fn a_caller_that_waits_is_struck_too() {
        let (fault, control) = layer();
        control.add(Rule::fail(ErrorKind::NoSpace).nth(1));
        control.add(Rule::hold().nth(1));
        let ask = || {
            let (send, answers) = mpsc::channel();
            let done = Done::new(move |answer| send.send(answer).expect("the test waits"));
            fault.submit_and_wait(Call::Root { done });
            answers
        };
        let error = ask().try_recv().expect("answered at once").expect_err("struck");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let held = ask();
        held.try_recv().expect_err("held, and the caller does not wait");
        control.release_all();
        held.try_recv().expect("released").expect("a volume has a root");
        ask().try_recv().expect("answered at once").expect("spared");
        assert_eq!(control.counts(), FaultCounts { passed: 1, failed: 1, held: 1, ..FaultCounts::default() });
    }

    #[test]
    fn the_first_rule_that_applies_decides() {
        let (fault, control) = layer();
        let first = control.add(Rule::fail(ErrorKind::Io).next(1));
        let second = control.add(Rule::fail(ErrorKind::Quota));
        let kinds = [(); 2].map(|()| root(&fault).recv().expect("answered").expect_err("struck").kind());
        assert_eq!(kinds, [ErrorKind::Io, ErrorKind::Quota]);
        assert_eq!((control.strikes(first), control.strikes(second)), (1, 1));
        control.remove(second);
        root(&fault).recv().expect("answered").expect("the other rule is used up");
    }

    #[test]
    fn a_rule_may_pick_calls_by_node() {
        let (fault, control) = layer();
        let dir = root(&fault).recv().expect("answered").expect("a volume has a root").node;
        control.add(Rule::fail(ErrorKind::Io).of(dir.id()));
        let node = dir.clone();
        let attr = submit(&fault, |done| Call::Getattr { node, done });
        attr.recv().expect("answered").expect_err("struck");
        root(&fault).recv().expect("answered").expect("about no node");
    }

    #[test]
    fn held_calls_continue_in_the_order_chosen() {
        let (fault, control) = layer();
        control.add(Rule::hold());
        let (first, second, third) = (root(&fault), root(&fault), root(&fault));
        let tickets: Vec<_> = control.wait_held(3, Duration::from_secs(10)).iter().map(|held| held.ticket).collect();
        assert!(control.release(tickets[2]));
        third.try_recv().expect("released").expect("a volume has a root");
        assert!(control.fail(tickets[0], ErrorKind::TimedOut));
        assert_eq!(first.try_recv().expect("failed").expect_err("failed").kind(), ErrorKind::TimedOut);
        second.try_recv().expect_err("still held");
        assert!(!control.release(tickets[0]));
        control.clear();
        control.release_all();
        second.try_recv().expect("released").expect("a volume has a root");
        assert_eq!(control.held(), []);
    }

    #[test]
    fn held_calls_are_abandoned_with_the_layer() {
        let (fault, control) = layer();
        control.add(Rule::hold());
        let answer = root(&fault);
        drop(fault);
        assert_eq!(answer.recv().expect("answered").expect_err("abandoned").kind(), ErrorKind::Abandoned);
        assert_eq!(control.counts().held, 1);
    }
}
