//! Rules for faults: the calls that match, those of them that are struck, and the effect.

use slackwater::backend::Call;
use slackwater::{ErrorKind, NodeId};

use crate::Random;

/// A kind of fault. Built from its effect; without further conditions, it strikes every call.
///
/// ```
/// use slackwater::ErrorKind;
/// use slackwater_testkit::Rule;
///
/// let third_write = Rule::fail(ErrorKind::NoSpace).on("write").nth(3);
/// let flaky_reads = Rule::fail(ErrorKind::Io).on("read").chance(0.01, 42);
/// let torn_writes = Rule::short_write(4096).next(2);
/// # let _ = (third_write, flaky_reads, torn_writes);
/// ```
#[must_use = "a rule does nothing until it is added"]
pub struct Rule {
    effect: Effect,
    name: Option<&'static str>,
    node: Option<NodeId>,
    predicate: Option<Predicate>,
    timing: Timing,
    matches: u64,
    strikes: u64,
}

type Predicate = Box<dyn Fn(&Call) -> bool + Send>;

/// Identifies a rule that was added.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct RuleId(pub(super) u64);

/// The effect on a struck call.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Effect {
    Fail(ErrorKind),
    ShortWrite(usize),
    Hold,
}

/// Which of the matching calls are struck.
enum Timing {
    Always,
    Next(u64),
    Nth(u64),
    Chance { per_2_64: u64, random: Random },
}

impl Rule {
    /// Fails calls with `kind`; the backend does not see them.
    pub fn fail(kind: ErrorKind) -> Self {
        Self::new(Effect::Fail(kind))
    }

    /// Cuts writes to their first `len_bytes`; the backend does not see the rest.
    pub fn short_write(len_bytes: usize) -> Self {
        Self::new(Effect::ShortWrite(len_bytes)).on("write")
    }

    /// Holds calls until they are released one by one, or the layer is dropped.
    pub fn hold() -> Self {
        Self::new(Effect::Hold)
    }

    fn new(effect: Effect) -> Self {
        Self { effect, name: None, node: None, predicate: None, timing: Timing::Always, matches: 0, strikes: 0 }
    }

    /// Only calls of this [`Call::name`].
    pub fn on(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }

    /// Only calls about this node, by [`Call::node_id`].
    pub fn of(self, node: NodeId) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Only calls that satisfy `predicate`, which must not use the layer.
    pub fn matching(self, predicate: impl Fn(&Call) -> bool + Send + 'static) -> Self {
        Self { predicate: Some(Box::new(predicate)), ..self }
    }

    /// Only the next `calls` that match.
    pub fn next(self, calls: u64) -> Self {
        Self { timing: Timing::Next(calls), ..self }
    }

    /// Only the `call`th that matches, counted from 1.
    pub fn nth(self, call: u64) -> Self {
        Self { timing: Timing::Nth(call), ..self }
    }

    /// Each matching call with this `probability`; the same `seed` strikes the same calls.
    pub fn chance(self, probability: f64, seed: u64) -> Self {
        let per_2_64 = (probability.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        Self { timing: Timing::Chance { per_2_64, random: Random::new(seed) }, ..self }
    }

    /// How many calls were struck.
    pub(super) fn strikes(&self) -> u64 {
        self.strikes
    }

    /// The effect on `call`, if it is struck.
    pub(super) fn judge(&mut self, call: &Call) -> Option<Effect> {
        let matches = self.name.is_none_or(|name| name == call.name())
            && self.node.is_none_or(|node| call.node_id() == Some(node))
            && self.predicate.as_ref().is_none_or(|predicate| predicate(call));
        if !matches {
            return None;
        }
        self.matches += 1;
        let strikes = match &mut self.timing {
            Timing::Always => true,
            Timing::Next(calls) => self.matches <= *calls,
            Timing::Nth(call) => self.matches == *call,
            Timing::Chance { per_2_64, random } => random.next() < *per_2_64,
        };
        self.strikes += u64::from(strikes);
        strikes.then_some(self.effect)
    }
}

#[cfg(test)]
mod tests {
    use slackwater::backend::Done;

    use super::*;

    fn strikes(mut rule: Rule, calls: usize) -> Vec<usize> {
        let call = Call::SyncVolume { done: Done::new(|_| ()) };
        (1..=calls).filter(|_| rule.judge(&call).is_some()).collect()
    }

    #[test]
    fn a_rule_strikes_the_calls_that_it_selects() {
        let rule = || Rule::fail(ErrorKind::Io);
        assert_eq!(strikes(rule(), 3), [1, 2, 3]);
        assert_eq!(strikes(rule().next(2), 4), [1, 2]);
        assert_eq!(strikes(rule().nth(3), 4), [3]);
        assert_eq!(strikes(rule().on("sync_volume").nth(1), 4), [1]);
        assert_eq!(strikes(rule().on("write"), 4), []);
        assert_eq!(strikes(rule().matching(|call| call.name() == "root"), 4), []);
        assert_eq!(strikes(rule().of(NodeId { dev: 0, ino: 1, generation: 1 }), 4), []);
    }

    #[test]
    fn chance_is_fair_and_repeats_with_its_seed() {
        let rule = |probability| Rule::fail(ErrorKind::Io).chance(probability, 7);
        assert_eq!(strikes(rule(0.0), 1000), []);
        assert_eq!(strikes(rule(1.0), 1000).len(), 1000);
        let struck = strikes(rule(0.25), 1000);
        assert!((200..300).contains(&struck.len()), "{}", struck.len());
        assert_eq!(struck, strikes(rule(0.25), 1000));
    }
}
