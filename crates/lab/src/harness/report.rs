//! The report of an experiment: findings in a few words, tables, plots, targets, and the figures as JSON.

use std::fmt::{Display, Write};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::bars::Bars;
use super::machine::Machine;
use super::options::Options;
use super::page::{self, escaped};
use super::plot::{Curve, Draw, Plot};
use super::quantity::figure;
use super::samples::Series;
use super::statistics::Estimate;
use super::table::{Table, wrapped};
use super::targets::{self, Bound, LEGEND, Target};
use crate::interrupt;

/// Letters in a line of notes.
const WIDTH: usize = 110;

/// The origin of the figures in a finding.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Source {
    /// Published figures of the kernel.
    Published,
    /// The kernel of this machine.
    Kernel,
    Ours,
}

impl Source {
    /// Each with its title and what the page says if there are no findings.
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Published, "Published", "No figures."),
        (Self::Kernel, "The kernel here", "Not measured here."),
        (Self::Ours, "Slackwater", "Not measured here."),
    ];
}

/// Everything that an experiment found.
pub(crate) struct Report {
    pub(crate) experiment: &'static str,
    /// The question of the experiment, in a sentence or two.
    pub(crate) about: &'static str,
    machine: Machine,
    seed: u64,
    rounds: u32,
    /// Everything that was measured.
    pub(crate) series: Series,
    findings: Vec<(Source, String)>,
    tables: Vec<Table>,
    notes: Vec<String>,
    figures: serde_json::Map<String, Value>,
    pub(crate) targets: Vec<Target>,
    plots: Vec<Box<dyn Draw>>,
}

impl Report {
    /// An empty report, with the facts of the machine as they are now.
    pub(crate) fn new(experiment: &'static str, about: &'static str, options: &Options) -> Self {
        let (findings, tables, notes, targets, plots) = Default::default();
        let (machine, figures, series) = (Machine::of(&options.dir), serde_json::Map::new(), Series::default());
        let (seed, rounds) = (options.seed, options.rounds());
        Self { experiment, about, machine, seed, rounds, findings, tables, notes, figures, targets, plots, series }
    }

    /// The most important figures of one source for the page: `what`, and those of `figures` that were measured.
    pub(crate) fn finding(
        &mut self,
        source: Source,
        what: impl Display,
        figures: impl IntoIterator<Item = (impl Display, Option<f64>)>,
    ) {
        let one = |(name, value): (_, Option<f64>)| Some(format!("{name} {}", figure(value?)));
        let all: Vec<String> = figures.into_iter().filter_map(one).collect();
        self.findings.extend((!all.is_empty()).then(|| (source, format!("{what}: {}.", all.join("; ")))));
    }

    /// Adds a table, unless it has no rows.
    pub(crate) fn table(&mut self, table: Table) {
        self.tables.extend(Some(table).filter(|table| !table.is_empty()));
    }

    /// Sentences below the tables.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// A figure for JSON that is not in the series.
    pub(crate) fn figure(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.figures.insert(name.into(), value.into());
    }

    /// A target, if something was measured for it.
    pub(crate) fn target(&mut self, name: impl Into<String>, bound: Bound, reached: impl Into<Option<Estimate>>) {
        let target = |reached| Target { name: name.into(), bound, reached };
        self.targets.extend(reached.into().map(target));
    }

    /// A diagram for the page.
    pub(crate) fn plot(&mut self, plot: impl Draw + 'static) {
        self.plots.push(Box::new(plot));
    }

    /// A diagram of the distributions of a row, with a curve for each of `subjects`. Those without samples are left out.
    pub(crate) fn curves(
        &mut self,
        title: impl Into<String>,
        axis: &'static str,
        row: &str,
        subjects: impl IntoIterator<Item = &'static str>,
    ) {
        let curve = |(color, subject)| Curve::new(subject, color, self.series.of(row, subject).all());
        let curves: Vec<Curve> =
            subjects.into_iter().enumerate().map(curve).filter(|curve| !curve.is_empty()).collect();
        if !curves.is_empty() {
            self.plot(Plot { title: title.into(), axis, curves, marks: Vec::new() });
        }
    }

    /// A diagram of medians: a group of bars for each of `rows`, and a bar for each of `subjects`. `named` turns the label of
    /// a group into its row.
    pub(crate) fn bars(
        &mut self,
        title: &str,
        subjects: &[&'static str],
        rows: impl IntoIterator<Item = impl Into<String>>,
        named: fn(&str) -> String,
    ) {
        let group = |label: String| {
            let row = named(&label);
            (label, subjects.iter().map(|subject| self.series.estimate(&row, subject)).collect())
        };
        let groups = rows.into_iter().map(|label| group(label.into())).collect();
        self.plot(Bars { title: title.to_owned(), subjects: subjects.to_vec(), groups });
    }

    /// A table of medians, with a line for each of `rows` and a column for each of `subjects`.
    pub(crate) fn medians(
        &mut self,
        title: impl Into<String>,
        subjects: &[&'static str],
        rows: impl IntoIterator<Item = impl AsRef<str>>,
    ) {
        let mut table = Table::new(title, format!("| {}", subjects.join(" | ")));
        for row in rows {
            let row = row.as_ref();
            table.row(row).figures(subjects.iter().map(|subject| self.series.median(row, subject)));
        }
        self.table(table);
    }

    /// `subject`, or a note why it cannot be measured here. Interrupts are still errors.
    pub(crate) fn optional<T>(&mut self, what: &str, subject: Result<T>) -> Result<Option<T>> {
        match subject {
            Ok(subject) => Ok(Some(subject)),
            Err(error) => {
                interrupt::check()?;
                self.note(format!("No rows for {what}: {error:#}."));
                Ok(None)
            }
        }
    }

    pub(crate) fn targets_met(&self) -> usize {
        self.targets.iter().filter(|target| target.is_met()).count()
    }

    /// Everything as HTML, except a heading.
    ///
    /// # Errors
    /// A diagram cannot be drawn.
    pub(crate) fn html(&self) -> Result<String> {
        let mut html = format!("<p>{}</p>\n<dl>\n", escaped(self.about));
        // Writing to a string does not fail.
        for (source, title, nothing) in Source::ALL {
            let of_source = self.findings.iter().filter(|(other, _)| *other == source).map(|(_, text)| text.as_str());
            let findings = of_source.collect::<Vec<_>>().join(" ");
            let text = if findings.is_empty() { nothing } else { &findings };
            let _ = writeln!(html, "<dt>{title}</dt><dd>{}</dd>", escaped(text));
        }
        html.push_str("</dl>\n<div class=\"plots\">\n");
        for plot in &self.plots {
            html.push_str(&plot.svg()?);
        }
        html.push_str("</div>\n");
        self.tables.iter().for_each(|table| html.push_str(&table.html()));
        if !self.targets.is_empty() {
            html.push_str(&targets::table(&self.targets).html());
            html.push_str(&targets::chart(&self.targets).unwrap_or_default());
            let _ = writeln!(html, "<p class=\"notes\">{}</p>", escaped(LEGEND));
        }
        let _ = writeln!(html, "<p class=\"notes\">{}</p>", escaped(&self.notes.join(" ")));
        html.push_str(&self.machine_table().html());
        Ok(html)
    }

    /// Everything as one HTML page.
    ///
    /// # Errors
    /// A diagram cannot be drawn.
    pub(crate) fn page(&self) -> Result<String> {
        let title = format!("slackwater-lab {}", self.experiment);
        Ok(page::page(&title, &format!("<h1>{}</h1>\n{}", escaped(&title), self.html()?)))
    }

    fn machine_table(&self) -> Table {
        self.machine.table(self.experiment, self.seed, Some(self.rounds))
    }

    /// Writes the page with the plots, prints the report, and writes the JSON file, if `options` have one. Returns whether all
    /// targets are met; without `--check` always true.
    pub(crate) fn publish(mut self, options: &Options) -> Result<bool> {
        let path = options.page(self.experiment)?;
        fs::write(&path, self.page()?).with_context(|| format!("cannot write {}", path.display()))?;
        self.note(format!("With plots: {}", path.display()));
        self.print();
        if let Some(path) = &options.json {
            write_json(path, &self.json())?;
        }
        if !options.check || self.targets.is_empty() {
            return Ok(true);
        }
        println!("\n{}", targets::table(&self.targets));
        let met = self.targets_met();
        println!("{met} of {} targets met", self.targets.len());
        if met != self.targets.len() {
            println!("{}", wrapped(LEGEND, WIDTH));
        }
        Ok(met == self.targets.len())
    }

    /// Prints everything but the targets.
    fn print(&self) {
        println!("{}", self.machine_table());
        for table in &self.tables {
            println!("{table}");
        }
        for note in &self.notes {
            println!("{}", wrapped(note, WIDTH));
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "experiment": self.experiment,
            "machine": self.machine.json(),
            "seed": self.seed,
            "rounds": self.rounds,
            "figures": self.figures,
            "series": self.series.json(),
            "targets": self.targets.iter().map(Target::json).collect::<Vec<_>>(),
        })
    }
}

/// Writes a JSON file.
pub(crate) fn write_json(path: &Path, value: &Value) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write the results as JSON")?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
impl Report {
    /// A report without anything.
    pub(crate) fn of_test(experiment: &'static str) -> Self {
        Self::new(experiment, "Is it < so?", &Options::of_test())
    }

    /// Fails unless the page has all of `parts`.
    pub(crate) fn assert_page_has(&self, parts: &[&str]) {
        let page = self.page().unwrap();
        parts.iter().for_each(|part| assert!(page.contains(part), "{part}: {page}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_report_has_all_that_is_in_it() {
        let mut report = Report::of_test("cache");
        report.finding(Source::Ours, "It is", [("a", Some(1.0)), ("b", None), ("c", Some(2.0))]);
        report.finding(Source::Ours, "Really", [("d", Some(3.0))]);
        report.finding(Source::Published, "No", [("e", None)]);
        let mut table = Table::new("T & U", "a");
        table.row("cell");
        report.table(table);
        report.note("a note");
        report.series.add_round("row", "one", vec![1.0, 2.0]);
        report.curves("plotted", "ms", "row", ["one", "none"]);
        report.curves("not plotted", "ms", "row", ["none"]);
        report.target("a target", Bound::AtMost(1.0), Estimate::exactly(2.0));
        report.target("not measured", Bound::AtMost(1.0), None);
        report.assert_page_has(&[
            "Is it &lt; so?",
            "<dt>Published</dt><dd>No figures.</dd>",
            "<dt>The kernel here</dt><dd>Not measured here.</dd>",
            "<dd>It is: a 1.00; c 2.00. Really: d 3.00.</dd>",
            "T &amp; U",
            "a note",
            "plotted",
            "MISSED means",
            "class=\"intervals\"",
            "commit",
            "3, seed 7",
        ]);
        assert_eq!((report.targets_met(), report.targets.len()), (0, 1));
    }
}
