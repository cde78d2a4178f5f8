//! `all`: every experiment, one after the other, on one page.
//!
//! An experiment that cannot run here is listed with the reason. The page is written again after each experiment, so that an
//! interrupt only loses the one that runs.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use crate::harness::machine::Machine;
use crate::harness::page::{self, escaped};
use crate::harness::report::write_json;
use crate::harness::targets::LEGEND;
use crate::harness::{Options, Report, Table};
use crate::{EXPERIMENTS, interrupt};

const TITLE: &str = "Slackwater, measured";

/// The result of an experiment.
enum Outcome {
    Measured(Box<Report>),
    /// The experiment cannot run here, for this reason.
    NotHere(String),
    /// The experiment has not run yet.
    Ahead,
}

struct Chapter {
    name: &'static str,
    outcome: Outcome,
}

/// Runs all experiments; false if targets are checked and one is missed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let path = options.page("all")?;
    let machine = Machine::of(&options.dir);
    println!("The page, after each experiment: {}\n", path.display());
    let mut chapters = EXPERIMENTS.map(|experiment| Chapter { name: experiment.name, outcome: Outcome::Ahead });
    for (chapter, experiment) in EXPERIMENTS.iter().enumerate() {
        let outcome = match experiment.report(options) {
            Ok(report) => Outcome::Measured(Box::new(report)),
            Err(error) => {
                interrupt::check()?;
                // The message of another program may be empty, or end with a newline.
                Outcome::NotHere(format!("{error:#}").trim_end_matches([':', ' ', '\n']).to_owned())
            }
        };
        chapters[chapter].outcome = outcome;
        println!("{:>10}  {}", experiment.name, chapters[chapter].verdict());
        write_page(&path, &machine, options.seed, &chapters)?;
        if let Some(path) = &options.json {
            write_json(path, &json!({ "experiments": chapters.iter().map(Chapter::json).collect::<Vec<_>>() }))?;
        }
    }
    let (met, all) = targets_met(&chapters);
    if met != all {
        println!("\n{}", missed_table(&chapters));
    }
    println!("\n{met} of {all} targets met");
    Ok(!options.check || met == all)
}

impl Chapter {
    fn report(&self) -> Option<&Report> {
        match &self.outcome {
            Outcome::Measured(report) => Some(report),
            Outcome::NotHere(_) | Outcome::Ahead => None,
        }
    }

    /// The result in a few words.
    fn verdict(&self) -> String {
        match &self.outcome {
            Outcome::Measured(report) => format!("{} of {} targets met", report.targets_met(), report.targets.len()),
            Outcome::NotHere(reason) => format!("not measured here: {reason}"),
            Outcome::Ahead => "not measured yet".to_owned(),
        }
    }

    fn json(&self) -> serde_json::Value {
        match &self.outcome {
            Outcome::Measured(report) => report.json(),
            Outcome::NotHere(_) | Outcome::Ahead => json!({ "experiment": self.name, "missing": self.verdict() }),
        }
    }
}

/// Targets that are met, and all targets.
fn targets_met(chapters: &[Chapter]) -> (usize, usize) {
    let reports = || chapters.iter().filter_map(Chapter::report);
    (reports().map(Report::targets_met).sum(), reports().map(|report| report.targets.len()).sum())
}

fn missed_table(chapters: &[Chapter]) -> Table {
    let mut table = Table::new("Targets that were missed", " | <target | wanted | <reached");
    for report in chapters.iter().filter_map(Chapter::report) {
        for target in report.targets.iter().filter(|target| !target.is_met()) {
            let row = table.row(report.experiment).text(&target.name).text(target.bound.text());
            row.estimate(target.reached);
        }
    }
    table
}

fn write_page(path: &Path, machine: &Machine, seed: u64, chapters: &[Chapter]) -> Result<()> {
    let page = page::page(TITLE, &body(machine, seed, chapters)?);
    fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
}

fn body(machine: &Machine, seed: u64, chapters: &[Chapter]) -> Result<String> {
    let mut html = format!(
        "<h1>{TITLE}</h1>\n\
         <p>Slackwater is a page cache and writeback engine outside the kernel. These are its experiments on one machine, each \
         beside what was published of the Linux kernel and beside the kernel of this machine. Subjects that are compared take turns \
         in every round. Ratios are medians of the rounds' ratios, or ratios of quantiles of all samples where it says so, with \
         95&nbsp;% intervals. {}</p>\n",
        escaped(LEGEND)
    );
    html.push_str(&machine.table("all", seed, None).html());
    let (met, all) = targets_met(chapters);
    // Writing to a string does not fail.
    let _ = writeln!(html, "<p><strong>{met} of {all} targets met.</strong></p>");
    if met != all {
        html.push_str(&missed_table(chapters).html());
    }
    html.push_str("<h3>Contents</h3>\n<ol>\n");
    for chapter in chapters {
        let (name, verdict) = (chapter.name, escaped(&chapter.verdict()));
        let about = chapter.report().map_or("", |report| report.about);
        let _ = writeln!(
            html,
            "<li><a href=\"#{name}\">{name}</a>: {} <span class=\"dim\">{verdict}.</span></li>",
            escaped(about)
        );
    }
    html.push_str("</ol>\n");
    for chapter in chapters {
        let _ = writeln!(html, "<section id=\"{0}\">\n<h2>{0}</h2>", chapter.name);
        match chapter.report() {
            Some(report) => html.push_str(&report.html()?),
            None => {
                let _ = writeln!(html, "<p>{}.</p>", escaped(&chapter.verdict()));
            }
        }
        html.push_str("</section>\n");
    }
    Ok(html)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Bound, Estimate};

    fn chapter(name: &'static str, bounds: &[f64]) -> Chapter {
        let mut report = Report::of_test(name);
        for (number, bound) in bounds.iter().enumerate() {
            report.target(format!("{name} {number}"), Bound::AtMost(*bound), Estimate::exactly(2.0));
        }
        Chapter { name, outcome: Outcome::Measured(Box::new(report)) }
    }

    #[test]
    fn a_page_counts_targets_lists_the_missed_ones_and_links_to_every_part() {
        let reason = Outcome::NotHere("only root < may".to_owned());
        let chapters = [
            chapter("umount", &[3.0, 1.0]),
            Chapter { name: "isolation", outcome: reason },
            chapter("idle", &[3.0]),
            Chapter { name: "fuse", outcome: Outcome::Ahead },
        ];
        let html = body(&Machine::of(Path::new(".")), 5, &chapters).unwrap();
        for part in [
            "2 of 3 targets met",
            "Targets that were missed",
            "<td>umount 1</td>",
            "not measured here: only root &lt; may",
            "not measured yet",
            "<a href=\"#isolation\">",
            "<section id=\"isolation\">",
            "Is it &lt; so?",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(!html.contains("<td>umount 0</td>\n<td>"), "a target that was met is not listed");
        assert_eq!(chapters[1].json()["missing"], "not measured here: only root < may");
    }
}
