//! Limits similar lines: a failing source reports the same error for every attempt and every file.
//!
//! Lines are of one kind if the same place in the code writes them. Of each kind, [`LINES`] are written per [`WINDOW`],
//! and the rest are counted. After the window, the last of them is written with the count, before the next line of any
//! kind.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem;
use std::time::{Duration, Instant};

/// Lines of a kind that are written in one window.
pub(super) const LINES: u32 = 10;
/// The length of a window, which begins with the first line of a kind.
pub(super) const WINDOW: Duration = Duration::from_secs(30);

/// The lines written so far, by kind.
pub(super) struct Limiter<K> {
    kinds: HashMap<K, Kind>,
}

struct Kind {
    begun: Instant,
    lines: u32,
    left_out: u64,
    /// The last line that was left out.
    last: String,
}

/// A line that stands for others too.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct LeftOut {
    pub(super) line: String,
    /// The number of lines that were left out, including `line`.
    pub(super) lines: u64,
}

impl<K: Eq + Hash> Limiter<K> {
    pub(super) fn new() -> Self {
        Self { kinds: HashMap::new() }
    }

    /// The lines to write before a line that comes at `now`: those of kinds whose window is over.
    pub(super) fn over(&mut self, now: Instant) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        self.kinds.retain(|_, kind| {
            let is_over = now.saturating_duration_since(kind.begun) >= WINDOW;
            if is_over && kind.left_out != 0 {
                left_out.push(LeftOut { line: mem::take(&mut kind.last), lines: kind.left_out });
            }
            !is_over
        });
        left_out
    }

    /// Whether to write a `line` of `kind` at `now`; otherwise it is counted.
    pub(super) fn passes(&mut self, kind: K, line: &str, now: Instant) -> bool {
        let kind =
            self.kinds.entry(kind).or_insert_with(|| Kind { begun: now, lines: 0, left_out: 0, last: String::new() });
        if kind.lines < LINES {
            kind.lines += 1;
            return true;
        }
        kind.left_out += 1;
        kind.last.clear();
        kind.last.push_str(line);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_lines_and_a_count_of_the_others() {
        let (mut limiter, start) = (Limiter::new(), Instant::now());
        let written = (0..1000).filter(|nth| limiter.passes("fails", &format!("line {nth}"), start)).count();
        assert_eq!(written, LINES as usize);
        assert!(limiter.passes("another", "x", start), "kinds do not count for each other");
        assert_eq!(limiter.over(start + WINDOW / 2), []);
        let expected = LeftOut { line: "line 999".into(), lines: 1000 - u64::from(LINES) };
        assert_eq!(limiter.over(start + WINDOW), [expected]);
        assert_eq!(limiter.over(start + WINDOW), [], "once");
        assert!(limiter.passes("fails", "line", start + WINDOW), "another window");
    }
}
