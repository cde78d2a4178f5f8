//! Rounds: in each, everything that is compared takes its turn, in an order that rotates.
//!
//! The machine's speed drifts over seconds. Subjects are therefore measured side by side, and ratios are taken within a
//! round and never across rounds.

use std::borrow::Cow;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;

/// A progress bar over `steps` steps, shown on a terminal only.
pub(crate) fn bar(what: impl Into<Cow<'static, str>>, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>14} [{bar:30}] {pos}/{len}  {msg}  {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
    ProgressBar::new(steps).with_style(style).with_prefix(what)
}

/// Runs `count` rounds with a turn for each of `turns`, and calls `take` with the round and the turn. The turn that comes
/// first moves on by one each round.
///
/// # Errors
/// That of the first turn that failed, or an interrupt.
pub(crate) fn run<T>(
    what: impl Into<Cow<'static, str>>,
    count: u32,
    turns: &[T],
    mut take: impl FnMut(u32, &T) -> Result<()>,
) -> Result<()> {
    let bar = bar(what, u64::from(count) * turns.len() as u64);
    for round in 0..count {
        for place in 0..turns.len() {
            interrupt::check()?;
            take(round, &turns[(place + round as usize) % turns.len()])?;
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
        run("", 3, &['a', 'b', 'c'], |round, turn| {
            seen.push((round, *turn));
            Ok(())
        })
        .unwrap();
        let order: String = seen.iter().map(|(_, turn)| *turn).collect();
        assert_eq!((order.as_str(), seen[8].0), ("abcbcacab", 2));
    }
}
