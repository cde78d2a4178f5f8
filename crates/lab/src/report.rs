//! What an experiment leaves behind: tables, targets, and the same for other programs.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::options::{Options, PageOptions};
use crate::page;
use crate::plot::Plot;
use crate::table::Table;
use crate::targets::{self, Target};

/// Everything that an experiment found.
pub(crate) struct Report {
    experiment: &'static str,
    machine: Machine,
    seed: u64,
    rounds: Option<u32>,
    tables: Vec<Table>,
    notes: Vec<String>,
    figures: serde_json::Map<String, Value>,
    targets: Vec<Target>,
    plots: Vec<Plot>,
}

impl Report {
    /// An empty report, with the facts of the machine as they are now; `dir` is where files are made, if any.
    pub(crate) fn new(experiment: &'static str, dir: Option<&Path>, seed: u64, rounds: Option<u32>) -> Self {
        Self {
            experiment,
            machine: Machine::of(dir),
            seed,
            rounds,
            tables: Vec::new(),
            notes: Vec::new(),
            figures: serde_json::Map::new(),
            targets: Vec::new(),
            plots: Vec::new(),
        }
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
    pub(crate) fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    /// Writes everything to one HTML file, plots among it.
    pub(crate) fn write_page(&self, path: &Path) -> Result<()> {
        let (machine, targets) = (self.machine_table(), targets::table(&self.targets));
        let tables: Vec<&Table> = [&machine].into_iter().chain(&self.tables).chain([&targets]).collect();
        let plots = self.plots.iter().map(Plot::svg).collect::<Result<Vec<_>>>()?;
        let page = page::html(&format!("slackwater-lab {}", self.experiment), &tables, &plots, &self.notes);
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
    }

    fn machine_table(&self) -> Table {
        self.machine.table(self.experiment, self.seed, self.rounds)
    }

    /// Prints it and writes the JSON file that `options` ask for. Returns whether all is well: without
    /// `--check` it always is.
    pub(crate) fn publish(&self, options: &Options) -> Result<bool> {
        println!("{}", self.machine_table());
        for table in &self.tables {
            println!("{table}");
        }
        for note in &self.notes {
            println!("{note}");
        }
        if let Some(path) = &options.json {
            let mut text = serde_json::to_string_pretty(&self.json()).context("cannot write the results as JSON")?;
            text.push('\n');
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if !options.check || self.targets.is_empty() {
            return Ok(true);
        }
        println!("{}", targets::table(&self.targets));
        let missed = self.targets.iter().filter(|target| !target.is_met()).count();
        println!("{} of {} targets met", self.targets.len() - missed, self.targets.len());
        Ok(missed == 0)
    }

    /// The same, with a page that has the plots.
    pub(crate) fn publish_with_page(mut self, arguments: &PageOptions) -> Result<bool> {
        let PageOptions { html, options } = arguments;
        let page = html.clone().unwrap_or_else(|| options.dir.join(format!("{}.html", self.experiment)));
        self.write_page(&page)?;
        self.note(format!("With plots: {}", page.display()));
        self.publish(options)
    }

    fn json(&self) -> Value {
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
