//! Recorded samples give the recorded figures: the harness computes medians, intervals, quantiles, ratios, verdicts and cells
//! as the lab did before the experiments shared one.
//!
//! `fixtures/recorded.json` has samples and figures of `--quick` runs at commit 23dd9f6, a few of each shape. The variable
//! `SLACKWATER_LAB_RECORDED` names another file of this kind.

use serde_json::Value;

use super::quantity::figure;
use super::samples::{Samples, ratio};
use super::statistics::Estimate;
use super::table::Table;
use super::targets::{Bound, Target};

const RECORDED: &str = include_str!("../../fixtures/recorded.json");
const QUANTILES: [f64; 4] = [0.5, 0.95, 0.99, 1.0];

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn samples(rounds: &Value) -> Samples {
    let mut samples = Samples::default();
    rounds.as_array().unwrap().iter().for_each(|round| samples.push_round(numbers(round)));
    samples
}

/// The same, but for the last digit, which JSON does not keep.
fn assert_is_near(value: &Value, recorded: &Value, name: &Value) {
    let [value, recorded] = [value, recorded].map(|value| value.as_f64().unwrap());
    assert!((value - recorded).abs() <= recorded.abs() * 1e-12, "{name}: {value}, not {recorded}");
}

fn assert_is_target(reached: Estimate, recorded: &Value, name: &Value) {
    let bound = recorded["bound"].as_f64().unwrap();
    let bound = match recorded["kind"].as_str().unwrap() {
        "at most" => Bound::AtMost(bound),
        "at least" => Bound::AtLeast(bound),
        _ => Bound::Exactly(bound),
    };
    let json = Target { name: String::new(), bound, reached }.json();
    assert_eq!((&json["kind"], &json["met"]), (&recorded["kind"], &recorded["met"]), "{name}");
    ["reached", "low", "high"].iter().for_each(|part| assert_is_near(&json[part], &recorded[part], name));
}

#[test]
fn recorded_samples_give_the_recorded_figures() {
    let other = std::env::var_os("SLACKWATER_LAB_RECORDED").map(|path| std::fs::read_to_string(path).unwrap());
    let recorded: Value = serde_json::from_str(other.as_deref().unwrap_or(RECORDED)).unwrap();
    let list = |name: &str| recorded[name].as_array().unwrap();
    for one in list("series") {
        let mut samples = Samples::default();
        numbers(&one["samples"]).into_iter().for_each(|sample| samples.push_round(vec![sample]));
        let Estimate { value, low, high } = samples.estimate().unwrap();
        for (part, value) in [("median", value), ("low", low), ("high", high)] {
            assert_is_near(&value.into(), &one[part], &one["name"]);
        }
    }
    for one in list("ratios") {
        let reached = ratio(&numbers(&one["top"]), &numbers(&one["bottom"])).unwrap();
        assert_is_target(reached, &one["target"], &one["name"]);
    }
    for one in list("rounds") {
        let (top, bottom, name) = (samples(&one["top"]), samples(&one["bottom"]), &one["name"]);
        let mut table = Table::new("", " | a | b | c | d | e | f");
        let row = table.row(top.count()).figures(top.quantiles(QUANTILES)).figure(bottom.quantile(0.5));
        row.estimate(top.quantile_by(&bottom, 0.5));
        let cells = one["cells"].as_array().unwrap().iter().chain([&one["control_p50"], &one["ratio"]]);
        let cells: Vec<&str> = [&one["count"]].into_iter().chain(cells).map(|cell| cell.as_str().unwrap()).collect();
        let html: String = cells.iter().map(|cell| format!(">{cell}</td>")).collect();
        assert_eq!(cells_of(&table), html, "{name}");
        assert_eq!(top.quantile(0.5).map(figure).as_deref(), Some(cells[1]), "{name}");
        for target in one["targets"].as_array().unwrap() {
            let share = target["share"].as_f64().unwrap();
            assert_is_target(top.quantile_by(&bottom, share).unwrap(), &target["target"], name);
        }
    }
}

/// The cells of the only row, without their classes.
fn cells_of(table: &Table) -> String {
    let html = table.html();
    let row = html.split("<tbody>").nth(1).unwrap();
    let cells = row.split("<td").skip(1).map(|cell| &cell[cell.find('>').unwrap()..=cell.rfind("</td>").unwrap() + 4]);
    cells.collect()
}
