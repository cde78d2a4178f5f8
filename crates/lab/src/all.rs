//! `all`: every experiment, one after the other, and one page of them all.
//!
//! What cannot be measured here is named with the reason. The page is written anew after each experiment, so that an
//! interrupt costs the one that runs.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use crate::machine::Machine;
use crate::options::PageOptions;
use crate::page::{self, escaped};
use crate::report::{Report, write_json};
use crate::table::{Align, Table};
use crate::targets::Target;
use crate::{cache, daemon, dontcache, fuse, gate, idle, interrupt, isolation, namespace, reclaim, shrinker, umount};

type Run = fn(&PageOptions) -> Result<Report>;

/// In the order of the page: what the project is about first, then what it costs.
const EXPERIMENTS: [(&str, Run); 11] = [
    ("umount", |page| umount::run(&page.options)),
    ("isolation", |page| isolation::run(&page.options)),
    ("dontcache", |page| dontcache::run(&dontcache::Arguments::usual(page.clone()))),
    ("shrinker", |page| shrinker::run(&shrinker::Arguments::usual(page.clone()))),
    ("namespace", |page| namespace::run(&page.options)),
    ("daemon", |page| daemon::run(&page.options)),
    ("cache", |page| cache::run(&page.options)),
    ("fuse", |page| fuse::run(&page.options)),
    ("gate", |page| gate::run(&gate::Arguments::usual(page.clone()))),
    ("reclaim", |page| reclaim::run(&page.options)),
    ("idle", |page| idle::run(&idle::Arguments::usual(page.clone()))),
];

const TITLE: &str = "Slackwater, measured";

/// What became of an experiment.
enum Outcome {
    Measured(Box<Report>),
    /// And why.
    NotHere(String),
    /// Its turn has not come.
    Ahead,
}

struct Chapter {
    name: &'static str,
    outcome: Outcome,
}

/// Runs all experiments; false when a target is to be checked and missed.
pub(crate) fn run(arguments: &PageOptions) -> Result<bool> {
    let options = &arguments.options;
    let path = arguments.page("all")?;
    let machine = Machine::of(Some(&options.dir));
    println!("The page, after each experiment: {}\n", path.display());
    let mut chapters = EXPERIMENTS.map(|(name, _)| Chapter { name, outcome: Outcome::Ahead });
    for (number, (name, run)) in EXPERIMENTS.into_iter().enumerate() {
        let outcome = match run(arguments) {
            Ok(report) => Outcome::Measured(Box::new(report)),
            Err(error) => {
                interrupt::check()?;
                // What another program said may be empty, or have an end of line.
                Outcome::NotHere(format!("{error:#}").trim_end_matches([':', ' ', '\n']).to_owned())
            }
        };
        chapters[number] = Chapter { name, outcome };
        println!("{name:>10}  {}", chapters[number].verdict());
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

    /// What is said of it in a list.
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

/// Those met, and all.
fn targets_met(chapters: &[Chapter]) -> (usize, usize) {
    let reports = || chapters.iter().filter_map(Chapter::report);
    (reports().map(Report::targets_met).sum(), reports().map(|report| report.targets.len()).sum())
}

fn missed_table(chapters: &[Chapter]) -> Table {
    let columns = [("", Align::Left), ("target", Align::Left), ("wanted", Align::Right), ("reached", Align::Left)];
    let mut table = Table::new("Targets that were missed", &columns);
    for report in chapters.iter().filter_map(Chapter::report) {
        for Target { name, bound, reached } in report.targets.iter().filter(|target| !target.is_met()) {
            table.row([report.experiment.to_owned(), name.clone(), bound.text(), reached.text()]);
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
         <p>Slackwater is a page cache and write-back engine outside the kernel. These are its experiments, on one machine, \
         each beside what was published of the Linux kernel and beside the kernel that runs here. What is compared took \
         turns in every round; ratios are medians of the rounds, or of all samples where it says so, with 95&nbsp;% \
         intervals. A target is met when the bad end of its interval meets it.</p>\n"
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
    use crate::statistics::Estimate;
    use crate::targets::Bound;

    fn chapter(name: &'static str, bounds: &[f64]) -> Chapter {
        let mut report = Report::new(name, None, 1, Some(1));
        report.about("What it asks.");
        let reached = Estimate { value: 2.0, low: 2.0, high: 2.0 };
        for (number, bound) in bounds.iter().enumerate() {
            report.target(Target::new(format!("{name} {number}"), Bound::AtMost(*bound), reached));
        }
        Chapter { name, outcome: Outcome::Measured(Box::new(report)) }
    }

    #[test]
    fn a_page_counts_targets_names_what_is_missing_and_links_to_every_part() {
        let reason = Outcome::NotHere("only root < may".to_owned());
        let chapters = [
            chapter("umount", &[3.0, 1.0]),
            Chapter { name: "isolation", outcome: reason },
            chapter("idle", &[3.0]),
            Chapter { name: "fuse", outcome: Outcome::Ahead },
        ];
        let html = body(&Machine::of(None), 5, &chapters).unwrap();
        for part in [
            "2 of 3 targets met",
            "Targets that were missed",
            "<td>umount 1</td>",
            "not measured here: only root &lt; may",
            "not measured yet",
            "<a href=\"#isolation\">",
            "<section id=\"isolation\">",
            "What it asks.",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(!html.contains("<td>umount 0</td>\n<td>"), "a target that was met is not among the missed");
        assert_eq!(chapters[1].json()["missing"], "not measured here: only root < may");
    }

    #[test]
    fn experiments_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = EXPERIMENTS.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), EXPERIMENTS.len());
    }
}
