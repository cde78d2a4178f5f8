//! What every experiment can be told.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

/// Rounds of a full and of a quick run.
const ROUNDS: (u32, u32) = (20, 10);
const ROUNDS_MIN: i64 = 10;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Less of everything, to end within a minute
    #[arg(long)]
    pub(crate) quick: bool,

    /// Also write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Print each target with the figure reached and its 95 % interval; exit with 1 if one is missed
    #[arg(long)]
    pub(crate) check: bool,

    /// Where files are made: a directory on the disk in question
    #[arg(long, value_name = "PATH", default_value = "target/lab")]
    pub(crate) dir: PathBuf,

    /// Rounds in which everything that is compared takes its turn [default: 20, quick 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(ROUNDS_MIN..=100_000))]
    rounds: Option<u32>,

    /// Number that the random orders follow from
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// The same for what leaves a page.
#[derive(Args, Clone, Debug)]
pub(crate) struct PageOptions {
    /// Write the report with plots to this file, as HTML [default: in --dir, named after the command]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) options: Options,
}

impl PageOptions {
    /// Where the page of `experiment` goes. The folder is there.
    pub(crate) fn page(&self, experiment: &str) -> Result<PathBuf> {
        if let Some(path) = &self.html {
            return Ok(path.clone());
        }
        let dir = &self.options.dir;
        fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
        Ok(dir.join(format!("{experiment}.html")))
    }
}

impl Options {
    /// How many rounds.
    pub(crate) fn rounds(&self) -> u32 {
        let (full, quick) = ROUNDS;
        self.rounds.unwrap_or(if self.quick { quick } else { full })
    }

    /// One of two amounts.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
