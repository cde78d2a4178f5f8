//! Progress of a flush or of the allocation of a cache: a bar on a terminal, otherwise a line from time to time.

use std::collections::VecDeque;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use humantime::format_duration;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use slackwater_control::errln;
use slackwater_host::size;

/// The rate is an average over this time.
const WINDOW: Duration = Duration::from_secs(3);
/// Interval between two lines if there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Shows the progress of one operation. Prints nothing if it ends at once.
pub(crate) struct Meter {
    action: String,
    bar: Option<ProgressBar>,
    rate: Rate,
    most_left: u64,
    printed_at: Instant,
}

impl Meter {
    /// `action` is the operation, such as "flushing".
    pub(crate) fn new(action: impl Into<String>) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            // The template is a constant; if it were invalid, the default style would do.
            bar.with_style(
                ProgressStyle::with_template("{bar:24} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        });
        Self { action: action.into(), bar, rate: Rate::default(), most_left: 0, printed_at: Instant::now() }
    }

    /// Shows the bytes left, given the bytes written back since the mount.
    pub(crate) fn update(&mut self, left: u64, written: u64) {
        self.rate.add(Instant::now(), written);
        self.most_left = self.most_left.max(left);
        let text = description(left, self.rate.per_second());
        self.show(self.most_left - left, self.most_left, &text);
    }

    /// Shows `done` bytes of `of`.
    pub(crate) fn fill(&mut self, done: u64, of: u64) {
        self.show(done, of, &format!("{} of {}", size::text(done), size::text(of)));
    }

    /// Shows a position with a text.
    pub(crate) fn show(&mut self, position: u64, length: u64, text: &str) {
        let now = Instant::now();
        match &self.bar {
            Some(bar) => {
                bar.set_length(length);
                bar.set_position(position);
                bar.set_message(format!("{}: {text}", self.action));
            }
            None if now.duration_since(self.printed_at) >= LINE_EVERY => {
                errln!("{}: {text}", self.action);
                self.printed_at = now;
            }
            None => {}
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Bytes left, rate, and time left.
pub(crate) fn description(left: u64, per_second: Option<f64>) -> String {
    let left_text = size::text(left);
    match (per_second, time_left(left, per_second)) {
        (Some(rate), Some(time)) => {
            let time = format_duration(Duration::from_secs(time.as_secs()));
            format!("{left_text} left, {:.1} MB/s, about {time}", rate / 1e6)
        }
        _ => format!("{left_text} left"),
    }
}

/// The time for `left` bytes at this rate; `None` while there is no progress.
pub(crate) fn time_left(left: u64, per_second: Option<f64>) -> Option<Duration> {
    let rate = per_second.filter(|rate| *rate >= 1.0)?;
    Duration::try_from_secs_f64(left as f64 / rate).ok()
}

/// Bytes per second over [`WINDOW`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    samples: VecDeque<(Instant, u64)>,
}

impl Rate {
    pub(crate) fn add(&mut self, at: Instant, written: u64) {
        self.samples.push_back((at, written));
        while self.samples.len() > 2 && at.duration_since(self.samples[0].0) > WINDOW {
            self.samples.pop_front();
        }
    }

    pub(crate) fn per_second(&self) -> Option<f64> {
        let ((first, from), (last, to)) = (self.samples.front()?, self.samples.back()?);
        let time = last.duration_since(*first);
        (time >= Duration::from_millis(100)).then(|| to.saturating_sub(*from) as f64 / time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_covers_only_recent_samples() {
        let start = Instant::now();
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(), None);
        rate.add(start, 0);
        rate.add(start + Duration::from_secs(1), 50);
        assert_eq!(rate.per_second(), Some(50.0));
        rate.add(start + Duration::from_secs(5), 450);
        rate.add(start + Duration::from_secs(6), 550);
        assert_eq!(rate.per_second(), Some(100.0));
    }

    #[test]
    fn without_progress_the_time_left_is_unknown() {
        assert_eq!(time_left(1000, None), None);
        assert_eq!(time_left(1000, Some(0.0)), None);
        assert_eq!(time_left(1000, Some(400.0)), Some(Duration::from_millis(2500)));
        assert_eq!(time_left(0, Some(400.0)), Some(Duration::ZERO));
        assert!(time_left(u64::MAX / 2, Some(1.0)).is_some());
    }

    #[test]
    fn a_description_says_what_is_known() {
        assert_eq!(description(5 << 20, None), "5.0 MiB left");
        assert_eq!(description(200_000_000, Some(50_000_000.0)), "191 MiB left, 50.0 MB/s, about 4s");
        assert_eq!(description(5 << 20, Some(0.0)), "5.0 MiB left");
    }
}
