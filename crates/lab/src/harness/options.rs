//! The arguments that all experiments have.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

/// Rounds of a full and of a quick run.
const ROUNDS: (u32, u32) = (20, 10);
/// Fewer samples than this have no 95 % interval of the median worth the name.
const ROUNDS_MIN: i64 = 10;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Write the report with plots to this file, as HTML [default: in --dir, named after the command]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Measure less of everything, to finish within one or two minutes
    #[arg(long)]
    pub(crate) quick: bool,

    /// Also write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Print each target with the figure reached and its 95 % interval; exit with 1 if one is missed
    #[arg(long)]
    pub(crate) check: bool,

    /// Directory for the experiment's files, on the disk to be measured
    #[arg(long, value_name = "PATH", default_value = "target/lab")]
    pub(crate) dir: PathBuf,

    /// Rounds; in each, everything that is compared takes its turn [default: 20, quick 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(ROUNDS_MIN..=100_000))]
    rounds: Option<u32>,

    /// Seed of all random orders
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Declares a struct of amounts, each with its value in a full and in a quick run, which `of` chooses from.
macro_rules! amounts {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$about:meta])* $amount:ident: $kind:ty = $full:expr, $quick:expr;)+
    }) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Debug)]
        $vis struct $name { $($(#[$about])* $vis $amount: $kind),+ }

        impl $name {
            $vis fn of(options: &$crate::harness::Options) -> Self {
                Self { $($amount: options.pick($full, $quick)),+ }
            }
        }
    };
}

pub(crate) use amounts;

impl Options {
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(self.pick(ROUNDS.0, ROUNDS.1))
    }

    /// The file for the page of `experiment`, in a folder that exists.
    pub(crate) fn page(&self, experiment: &str) -> Result<PathBuf> {
        if let Some(path) = &self.html {
            return Ok(path.clone());
        }
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot create the directory {}", self.dir.display()))?;
        Ok(self.dir.join(format!("{experiment}.html")))
    }

    /// The amount of a full or of a quick run.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

#[cfg(test)]
impl Options {
    /// Three rounds.
    pub(crate) fn of_test() -> Self {
        Self { html: None, quick: true, json: None, check: false, dir: PathBuf::from("."), rounds: Some(3), seed: 7 }
    }
}
