//! What an experiment leaves behind: what was found in a few words, tables, targets, plots, and the same for other programs.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::options::{Options, PageOptions};
use crate::page::{self, escaped};
use crate::plot::Draw;
use crate::table::Table;
use crate::targets::{self, Target};

/// Whose figures they are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Source {
    /// What others published of the kernel.
    Published,
    /// What the running kernel does.
    Kernel,
    Ours,
}

impl Source {
    const ALL: [Self; 3] = [Self::Published, Self::Kernel, Self::Ours];

    fn title(self) -> &'static str {
        match self {
            Self::Published => "Published",
            Self::Kernel => "The kernel here",
            Self::Ours => "Slackwater",
        }
    }

    /// What is said where nothing was.
    fn nothing(self) -> &'static str {
        match self {
            Self::Published => "No figures.",
            Self::Kernel | Self::Ours => "Not measured here.",
        }
    }
}

/// Everything that an experiment found.
pub(crate) struct Report {
    pub(crate) experiment: &'static str,
    pub(crate) about: &'static str,
    machine: Machine,
    seed: u64,
    rounds: Option<u32>,
    findings: Vec<(Source, String)>,
    tables: Vec<Table>,
    notes: Vec<String>,
    figures: serde_json::Map<String, Value>,
    pub(crate) targets: Vec<Target>,
    plots: Vec<Box<dyn Draw>>,
}

impl Report {
    /// An empty report, with the facts of the machine as they are now; `dir` is where files are made, if any.
    pub(crate) fn new(experiment: &'static str, dir: Option<&Path>, seed: u64, rounds: Option<u32>) -> Self {
        Self {
            experiment,
            about: "",
            machine: Machine::of(dir),
            seed,
            rounds,
            findings: Vec::new(),
            tables: Vec::new(),
            notes: Vec::new(),
            figures: serde_json::Map::new(),
            targets: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// What is asked, in a sentence or two for the page.
    pub(crate) fn about(&mut self, text: &'static str) {
        self.about = text;
    }

    /// The figures of one source that matter most, in a sentence or two for the page.
    pub(crate) fn finding(&mut self, source: Source, text: impl Into<String>) {
        self.findings.push((source, text.into()));
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// A sentence below the tables.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// A figure for other programs.
    pub(crate) fn figure(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.figures.insert(name.into(), value.into());
    }

    pub(crate) fn target(&mut self, target: Target) {
        self.targets.push(target);
    }

    /// A diagram for the page.
    pub(crate) fn plot(&mut self, plot: impl Draw + 'static) {
        self.plots.push(Box::new(plot));
    }

    pub(crate) fn targets_met(&self) -> usize {
        self.targets.iter().filter(|target| target.is_met()).count()
    }

    /// Everything as HTML, but for a heading.
    ///
    /// # Errors
    /// A diagram cannot be drawn.
    pub(crate) fn html(&self) -> Result<String> {
        let mut html = format!("<p>{}</p>\n<dl>\n", escaped(self.about));
        // Writing to a string does not fail.
        for source in Source::ALL {
            let of_source = self.findings.iter().filter(|(other, _)| *other == source).map(|(_, text)| text.as_str());
            let said: Vec<&str> = of_source.collect();
            let said = if said.is_empty() { source.nothing().to_owned() } else { said.join(" ") };
            let _ = writeln!(html, "<dt>{}</dt><dd>{}</dd>", source.title(), escaped(&said));
        }
        html.push_str("</dl>\n<div class=\"plots\">\n");
        for plot in &self.plots {
            html.push_str(&plot.svg()?);
        }
        html.push_str("</div>\n");
        self.tables.iter().for_each(|table| html.push_str(&table.html()));
        if !self.targets.is_empty() {
            html.push_str(&targets::table(&self.targets).html());
        }
        let _ = writeln!(html, "<p class=\"notes\">{}</p>", escaped(&self.notes.join(" ")));
        html.push_str(&self.machine_table().html());
        Ok(html)
    }

    /// Writes everything to one HTML file, plots among it.
    pub(crate) fn write_page(&self, path: &Path) -> Result<()> {
        let title = format!("slackwater-lab {}", self.experiment);
        let page = page::page(&title, &format!("<h1>{}</h1>\n{}", escaped(&title), self.html()?));
        fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
    }

    fn machine_table(&self) -> Table {
        self.machine.table(self.experiment, self.seed, self.rounds)
    }

    /// Prints it and writes the JSON file that `options` ask for. Returns whether all is well: without
    /// `--check` it always is.
    pub(crate) fn publish(&self, options: &Options) -> Result<bool> {
        self.print();
        if let Some(path) = &options.json {
            write_json(path, &self.json())?;
        }
        if !options.check || self.targets.is_empty() {
            return Ok(true);
        }
        println!("{}", targets::table(&self.targets));
        let met = self.targets_met();
        println!("{met} of {} targets met", self.targets.len());
        Ok(met == self.targets.len())
    }

    /// The same, with a page that has the plots.
    pub(crate) fn publish_with_page(mut self, arguments: &PageOptions) -> Result<bool> {
        let page = arguments.page(self.experiment)?;
        self.write_page(&page)?;
        self.note(format!("With plots: {}", page.display()));
        self.publish(&arguments.options)
    }

    /// What was found, without the targets.
    pub(crate) fn print(&self) {
        println!("{}", self.machine_table());
        for table in &self.tables {
            println!("{table}");
        }
        for note in &self.notes {
            println!("{note}");
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "experiment": self.experiment,
            "machine": self.machine.json(),
            "seed": self.seed,
            "rounds": self.rounds,
            "figures": self.figures,
            "targets": self.targets.iter().map(Target::json).collect::<Vec<_>>(),
        })
    }
}

/// Writes a file for other programs.
pub(crate) fn write_json(path: &Path, value: &Value) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write the results as JSON")?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Curve, Plot};
    use crate::statistics::Estimate;
    use crate::table::Align;
    use crate::targets::Bound;

    #[test]
    fn the_page_of_a_report_has_all_that_is_in_it() {
        let mut report = Report::new("cache", None, 7, Some(3));
        report.about("Is it < so?");
        report.finding(Source::Ours, "It is.");
        report.finding(Source::Ours, "Really.");
        let mut table = Table::new("T & U", &[("a", Align::Left)]);
        table.row(["cell".to_owned()]);
        report.table(table);
        report.note("a note");
        let curves = vec![Curve::new("one", 0, vec![1.0, 2.0])];
        report.plot(Plot { title: "plotted".to_owned(), axis: "ms", curves, marks: Vec::new() });
        let reached = Estimate { value: 2.0, low: 2.0, high: 2.0 };
        report.target(Target::new("a target", Bound::AtMost(1.0), reached));
        let html = report.html().unwrap();
        for part in [
            "Is it &lt; so?",
            "<dt>Published</dt><dd>No figures.</dd>",
            "<dt>The kernel here</dt><dd>Not measured here.</dd>",
            "<dd>It is. Really.</dd>",
            "T &amp; U",
            "a note",
            "plotted",
            "MISSED",
            "3, seed 7",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert_eq!(report.targets_met(), 0);
    }
}
