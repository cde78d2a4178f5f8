//! Promised bounds of figures, and whether they were met.

use std::fmt::Write;

use serde_json::{Value, json};

use super::page::escaped;
use super::quantity::figure;
use super::statistics::Estimate;
use super::table::Table;

/// The meaning of `met` and `MISSED`, for the page and the terminal.
pub(crate) const LEGEND: &str = "A figure comes with its 95 % interval. A target is met if the whole interval is on the good side of \
     the bound. MISSED means that at least one end of the interval is on the other side: the figure itself may still be on the good side.";

/// Where a figure should be.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// The bound of a count.
    Exactly(f64),
}

impl Bound {
    /// The name of the bound in JSON, its sign and its value.
    fn parts(self) -> (&'static str, &'static str, f64) {
        match self {
            Self::AtMost(bound) => ("at most", "<=", bound),
            Self::AtLeast(bound) => ("at least", ">=", bound),
            Self::Exactly(bound) => ("exactly", "=", bound),
        }
    }

    /// `<= 1.20`.
    pub(crate) fn text(self) -> String {
        let (_, sign, bound) = self.parts();
        format!("{sign} {}", figure(bound))
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
    /// Whether both ends of the interval meet the bound.
    pub(crate) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(bound) => self.reached.high <= bound,
            Bound::AtLeast(bound) => self.reached.low >= bound,
            Bound::Exactly(bound) => self.reached.low == bound && self.reached.high == bound,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let (kind, _, bound) = self.bound.parts();
        json!({
            "name": self.name, "bound": bound, "kind": kind, "met": self.is_met(),
            "reached": self.reached.value, "low": self.reached.low, "high": self.reached.high,
        })
    }
}

/// The targets with what was reached.
pub(crate) fn table(targets: &[Target]) -> Table {
    let mut table = Table::new("Targets", " | <target | wanted | <reached");
    for target in targets {
        let verdict = if target.is_met() { "met" } else { "MISSED" };
        table.row(verdict).text(&target.name).text(target.bound.text()).estimate(target.reached);
    }
    table
}

/// The intervals beside their bounds, as an SVG element: each row is scaled so that its bound is at the vertical line, and
/// the good side is marked. `None` if no target has a bound other than zero.
pub(crate) fn chart(targets: &[Target]) -> Option<String> {
    const WIDTH: f64 = 920.0;
    const ROW: f64 = 22.0;
    /// Where the axis begins and ends.
    const LEFT: f64 = 560.0;
    const RIGHT: f64 = 900.0;
    /// The ends of the axis are the bound divided and multiplied by this.
    const SPAN: f64 = 10.0;
    let scalable: Vec<&Target> = targets.iter().filter(|target| target.bound.parts().2 > 0.0).collect();
    if scalable.is_empty() {
        return None;
    }
    let middle = f64::midpoint(LEFT, RIGHT);
    let height = ROW * (scalable.len() as f64 + 2.0);
    // Writing to a string does not fail.
    let mut svg = format!(
        "<svg class=\"intervals\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\" \
         fill=\"currentColor\" stroke=\"currentColor\">\n<title>Intervals beside their bounds</title>\n\
         <g stroke=\"none\"><text x=\"{LEFT}\" y=\"14\">bound / 10</text><text x=\"{middle}\" y=\"14\" \
         text-anchor=\"middle\">bound</text><text x=\"{RIGHT}\" y=\"14\" text-anchor=\"end\">bound x 10</text></g>\n\
         <path d=\"M{middle} 20V{height}\"/>\n"
    );
    for (row, target) in scalable.into_iter().enumerate() {
        let (_, sign, bound) = target.bound.parts();
        let at = |value: f64| {
            let decades = (value / bound).clamp(1.0 / SPAN, SPAN).log10() / SPAN.log10();
            middle + decades * (RIGHT - middle)
        };
        let y = ROW * (row as f64 + 1.5);
        let [value, low, high] = [target.reached.value, target.reached.low, target.reached.high].map(at);
        let (dot, dash) = if target.is_met() { ("currentColor", "") } else { ("none", " stroke-dasharray=\"3 2\"") };
        let verdict = if target.is_met() { "" } else { "MISSED  " };
        let name = escaped(&format!("{verdict}{} ({sign} {})", target.name, figure(bound)));
        let (end, top, bottom) = (LEFT - 12.0, y - 4.0, y + 4.0);
        let _ = writeln!(
            svg,
            "<text x=\"{end}\" y=\"{bottom}\" text-anchor=\"end\" stroke=\"none\">{name}</text>\
             <path d=\"M{low:.1} {y}H{high:.1}\" stroke-width=\"2\"{dash}/><path d=\"M{low:.1} {top}V{bottom}M{high:.1} {top}V{bottom}\"/>\
             <circle cx=\"{value:.1}\" cy=\"{y}\" r=\"4\" fill=\"{dot}\"/>"
        );
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(bound: Bound) -> Target {
        Target { name: "x < y".to_owned(), bound, reached: Estimate { value: 1.5, low: 1.4, high: 1.7 } }
    }

    #[test]
    fn the_end_of_the_interval_on_the_bad_side_decides() {
        let is_met = |bound| target(bound).is_met();
        assert!(is_met(Bound::AtMost(1.7)) && !is_met(Bound::AtMost(1.6)));
        assert!(is_met(Bound::AtLeast(1.4)) && !is_met(Bound::AtLeast(1.5)));
        assert!(!is_met(Bound::Exactly(1.5)));
        assert!(Target { reached: Estimate::exactly(1.0), ..target(Bound::Exactly(1.0)) }.is_met());
    }

    #[test]
    fn a_chart_has_an_interval_for_each_bound_above_zero() {
        let svg =
            chart(&[target(Bound::AtMost(1.0)), target(Bound::AtMost(0.0)), target(Bound::AtLeast(1.0))]).unwrap();
        assert!(svg.matches("<circle").count() == 2 && svg.contains("MISSED  x &lt; y (&lt;= 1.00)"), "{svg}");
        assert!(chart(&[target(Bound::AtMost(0.0))]).is_none());
    }
}
