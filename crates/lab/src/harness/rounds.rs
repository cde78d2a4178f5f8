//! Rounds: everything that is compared takes its turn in each, in an order that moves on.
//!
//! The machine's speed drifts over seconds. What is compared is therefore measured side by side, and a ratio
//! is taken within a round and never across rounds.

use std::borrow::Cow;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;

/// A progress bar over `steps` steps, on the terminal if there is one.
pub(crate) fn bar(what: impl Into<Cow<'static, str>>, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>14} [{bar:30}] {pos}/{len}  {msg}  {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
    ProgressBar::new(steps).with_style(style).with_prefix(what)
}

/// Runs `count` rounds of `turns` turns each. `turn` gets the round and whose turn it is; whose comes first
/// moves on by one each round.
///
/// # Errors
/// The first of a turn, or that an interrupt came.
pub(crate) fn run(
    what: impl Into<Cow<'static, str>>,
    count: u32,
    turns: usize,
    mut turn: impl FnMut(u32, usize) -> Result<()>,
) -> Result<()> {
    let bar = bar(what, u64::from(count) * turns as u64);
    for round in 0..count {
        for place in 0..turns {
            interrupt::check()?;
            turn(round, (place + round as usize) % turns)?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_takes_its_turn_and_each_is_first_once() {
        let mut seen = Vec::new();
        run("", 3, 3, |round, turn| {
            seen.push((round, turn));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0), (2, 2), (2, 0), (2, 1)]);
    }
}
