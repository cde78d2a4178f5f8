//! What was promised, and whether it was reached.

use serde_json::{Value, json};

use crate::quantity::figure;
use crate::statistics::Estimate;
use crate::table::{Align, Table};

/// Where a figure should be.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// Of what is counted.
    Exactly(f64),
}

impl Bound {
    /// As people write it.
    pub(crate) fn text(self) -> String {
        match self {
            Self::AtMost(bound) => format!("<= {}", figure(bound)),
            Self::AtLeast(bound) => format!(">= {}", figure(bound)),
            Self::Exactly(bound) => format!("= {}", figure(bound)),
        }
    }
}

/// A promise and the figure reached.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) bound: Bound,
    pub(crate) reached: Estimate,
}

impl Target {
    pub(crate) fn new(name: impl Into<String>, bound: Bound, reached: Estimate) -> Self {
        Self { name: name.into(), bound, reached }
    }

    /// It is met when the bad end of the interval meets it.
    pub(crate) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(bound) => self.reached.high <= bound,
            Bound::AtLeast(bound) => self.reached.low >= bound,
            Bound::Exactly(bound) => self.reached.low == bound && self.reached.high == bound,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let (kind, bound) = match self.bound {
            Bound::AtMost(bound) => ("at most", bound),
            Bound::AtLeast(bound) => ("at least", bound),
            Bound::Exactly(bound) => ("exactly", bound),
        };
        json!({
            "name": self.name, "bound": bound, "kind": kind, "met": self.is_met(),
            "reached": self.reached.value, "low": self.reached.low, "high": self.reached.high,
        })
    }
}

/// The targets with what was reached, as a table.
pub(crate) fn table(targets: &[Target]) -> Table {
    let mut table = Table::new(
        "Targets",
        &[("", Align::Left), ("target", Align::Left), ("wanted", Align::Right), ("reached", Align::Left)],
    );
    for target in targets {
        let verdict = if target.is_met() { "met" } else { "MISSED" };
        table.row([verdict.to_owned(), target.name.clone(), target.bound.text(), target.reached.text()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bad_end_of_the_interval_decides() {
        let reached = Estimate { value: 1.5, low: 1.4, high: 1.7 };
        let is_met = |bound| Target::new("x", bound, reached).is_met();
        assert!(is_met(Bound::AtMost(1.7)) && !is_met(Bound::AtMost(1.6)));
        assert!(is_met(Bound::AtLeast(1.4)) && !is_met(Bound::AtLeast(1.5)));
        assert!(!is_met(Bound::Exactly(1.5)));
        let counted = Estimate { value: 1.0, low: 1.0, high: 1.0 };
        assert!(Target::new("x", Bound::Exactly(1.0), counted).is_met());
    }
}
