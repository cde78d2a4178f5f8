//! The dashboards and alerts in `dist` ask only for metrics and labels that are rendered, and every alert is described in
//! `docs/METRICS.md` and has a test.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::page::Page;
use super::{nested, of_tenants, render};
use crate::metrics::render::Renderer;

/// Labels that Prometheus adds, or that only the buckets of a histogram have.
const FOREIGN_LABELS: [&str; 3] = ["instance", "job", "le"];
const DASHBOARDS: [&str; 3] = ["slackwater-host", "slackwater-volume", "slackwater-tenants"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

fn dashboard(name: &str) -> Value {
    serde_json::from_str(&read(&format!("dist/grafana/{name}.json"))).unwrap()
}

/// The names of the alerts, each with its whole text.
fn alerts() -> Vec<(String, String)> {
    let text = read("dist/prometheus/slackwater-alerts.yaml");
    let rules = text.split("- alert: ").skip(1);
    rules.map(|rule| (rule.lines().next().unwrap().to_owned(), rule.to_owned())).collect()
}

/// Labels of each name that a query can use.
fn known() -> BTreeMap<String, Vec<String>> {
    let page: Page = render(&mut Renderer::default(), &of_tenants(nested()));
    let mut known = BTreeMap::new();
    for (name, head) in page.heads {
        let suffixes: &[&str] = match head.kind.as_str() {
            "counter" => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        known.extend(suffixes.iter().map(|suffix| (format!("{name}{suffix}"), head.labels.clone())));
    }
    known
}

/// The text after each occurrence of `mark`, up to `end`.
fn each_between<'t>(text: &'t str, mark: &str, end: &[char]) -> Vec<&'t str> {
    let after = text.split(mark).skip(1);
    after.map(|rest| &rest[..rest.find(end).unwrap_or(rest.len())]).collect()
}

/// The mistakes in a text that has queries, and legends or annotations for their results.
fn wrong(text: &str, known: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut labels: Vec<&str> = FOREIGN_LABELS.into();
    for rest in text.split("slackwater_").skip(1) {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
        let name = format!("slackwater_{}", &rest[..end]);
        let Some(of_metric) = known.get(&name) else {
            wrong.push(format!("no metric {name}"));
            continue;
        };
        labels.extend(of_metric.iter().map(String::as_str));
        let Some(selector) = rest[end..].strip_prefix('{') else { continue };
        for label in selector[..selector.find('}').unwrap()].split(',').filter_map(|it| it.split(['=', '!']).next()) {
            let label = label.trim();
            if !FOREIGN_LABELS.contains(&label) && !of_metric.iter().any(|it| it == label) {
                wrong.push(format!("{name} has no label {label}"));
            }
        }
    }
    // The `up` of Prometheus is no metric of ours.
    let grouped = each_between(text, "by (", &[')']).into_iter().flat_map(|list| list.split(','));
    let legends = each_between(text, "{{", &['}']).into_iter().filter(|legend| !legend.contains('$'));
    let annotations = each_between(text, "$labels.", &[' ', '}']);
    for label in grouped.chain(legends).chain(annotations).map(str::trim) {
        if !labels.contains(&label) {
            wrong.push(format!("no label {label} in {text}"));
        }
    }
    wrong
}

#[test]
fn panels_ask_only_for_metrics_and_labels_that_exist() {
    let known = known();
    let mut all = String::new();
    for name in DASHBOARDS {
        let board = dashboard(name);
        assert_eq!(board["uid"], name);
        let mut ids = Vec::new();
        for panel in board["panels"].as_array().unwrap() {
            ids.push(panel["id"].as_u64().unwrap());
            for target in panel["targets"].as_array().into_iter().flatten() {
                let text = format!("{} {}", target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
                assert_eq!(wrong(&text, &known), [""; 0], "{name}: {}", panel["title"]);
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{name}: {}", panel["title"]);
                all += &text;
            }
        }
        assert!(ids.is_sorted_by(|a, b| a < b), "{name}: unique numbers");
        for variable in board["templating"]["list"].as_array().unwrap() {
            if let Some(query) = variable["definition"].as_str() {
                assert_eq!(wrong(query, &known), [""; 0], "{name}: {query}");
            }
        }
    }
    // Beginnings of names, so that a metric in no dashboard is left out on purpose.
    let left_out =
        ["slackwater_engine_", "slackwater_shrinker", "slackwater_unmount_seconds_", "slackwater_volume_dontcache_"];
    let seldom = ["slackwater_memory_pressure_sources", "slackwater_tenant_parent_info", "slackwater_volume_tenants"];
    let is_shown = |name: &str| all.contains(name) || left_out.iter().chain(&seldom).any(|it| name.starts_with(it));
    let unseen: Vec<_> = known.keys().filter(|name| !is_shown(name)).collect();
    assert!(unseen.is_empty(), "in no dashboard: {unseen:?}");
}

#[test]
fn alerts_ask_only_for_metrics_and_labels_that_exist_and_each_is_tested_and_described() {
    let known = known();
    let (tests, page) = (read("dist/prometheus/slackwater-alerts.test.yaml"), read("docs/METRICS.md"));
    assert!(alerts().len() > 10);
    for (name, text) in alerts() {
        assert_eq!(wrong(&text, &known), [""; 0], "{name}");
        let described = page.lines().any(|line| line.starts_with(&format!("| `{name}` |")));
        assert!(described, "docs/METRICS.md does not describe {name}");
        assert!(tests.contains(&format!("- alertname: {name}\n")), "no test in which {name} fires");
    }
    assert_eq!(page.matches("| `Slackwater").count(), alerts().len(), "an alert is described that does not exist");
}

#[test]
fn a_metric_or_label_that_is_gone_is_found() {
    let known = known();
    for (text, is_found) in [
        ("rate(slackwater_volume_written_bytes_total{volume=~\"a\", instance!=\"b\"}[5m]) {{volume}}", false),
        ("sum by (le) (slackwater_unmount_seconds_bucket)", false),
        ("slackwater_volume_written_bytes", true),
        ("slackwater_volume_written_bytes_total{tenant=\"a\"}", true),
        ("sum by (volume, tenant) (slackwater_volume_dirty_bytes)", true),
        ("slackwater_volume_dirty_bytes {{tenant}}", true),
        ("slackwater_tenant_at_limit {{ $labels.volume }}", true),
    ] {
        assert_eq!(!wrong(text, &known).is_empty(), is_found, "{text}");
    }
}
