//! `docs/METRICS.md` lists exactly the metrics that are rendered, with the same text.

use std::collections::BTreeMap;
use std::fs;

use super::page::Head;
use super::{nested, of_tenants, render};
use crate::metrics::bounds::{TENANTS_MAX, VOLUMES_MAX};
use crate::metrics::render::Renderer;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/METRICS.md");

/// The rows of the table in the document: name as in queries, type, unit, labels, meaning, alert.
fn rows() -> Vec<Vec<String>> {
    let text = fs::read_to_string(PAGE).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `slackwater_"));
    rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_is_there() {
    let page = render(&mut Renderer::default(), &of_tenants(nested()));
    let mut documented = BTreeMap::new();
    for row in rows() {
        let [name, kind, unit, labels, meaning, alert] = &row[..] else { panic!("six cells: {row:?}") };
        let labels = labels.split(", ").filter(|label| !label.is_empty());
        let labels = labels.map(|label| label.trim_matches('`').to_owned()).collect::<Vec<_>>();
        assert!(!meaning.is_empty() && !alert.is_empty(), "{row:?}");
        let head = Head { kind: kind.clone(), unit: unit.clone(), help: meaning.clone(), labels };
        assert!(documented.insert(name.trim_matches('`').to_owned(), head).is_none(), "twice: {name}");
    }
    let mut rendered = BTreeMap::new();
    for (name, head) in &page.heads {
        let suffix = match head.kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        rendered.insert(format!("{name}{suffix}"), head.clone());
    }
    let names = |metrics: &BTreeMap<String, Head>| metrics.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&documented), names(&rendered));
    assert_eq!(documented, rendered);
}

#[test]
fn the_bounds_that_are_documented_are_the_bounds() {
    let text = fs::read_to_string(PAGE).unwrap();
    for bound in [format!("{VOLUMES_MAX} volumes"), format!("{TENANTS_MAX} tenants")] {
        assert!(text.contains(&bound), "{bound}");
    }
}
