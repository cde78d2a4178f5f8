//! How much to free at each event: more and more while events continue.

use std::time::{Duration, Instant};

use slackwater::shrink::LIGHTEST;

/// The step by which the priority approaches 0, and the minimum time between steps. Stalls are reported every one or
/// two seconds, so that everything unused is freed after ten; cgroups version 1 report as often as they are read.
const STEP: u32 = 3;
const STEP_TIME: Duration = Duration::from_secs(1);
/// After this time, an event is unrelated to the previous one.
const QUIET: Duration = Duration::from_secs(10);

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct ShrinkPriority {
    last: Option<Beat>,
}

#[derive(Copy, Clone, Debug)]
struct Beat {
    at: Instant,
    priority: u32,
    /// When that priority was reached.
    since: Instant,
}

impl ShrinkPriority {
    /// The priority for an event at `now`.
    pub(super) fn beat(&mut self, now: Instant) -> u32 {
        let later = |earlier: Instant| now.saturating_duration_since(earlier);
        let beat = match self.last.filter(|last| later(last.at) < QUIET) {
            None => Beat { at: now, priority: LIGHTEST, since: now },
            Some(last) if later(last.since) < STEP_TIME => Beat { at: now, ..last },
            Some(last) => Beat { at: now, priority: last.priority.saturating_sub(STEP), since: now },
        };
        self.last = Some(beat);
        beat.priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priorities<const N: usize>(every: Duration) -> [u32; N] {
        let (mut shrink_priority, mut now) = (ShrinkPriority::default(), Instant::now());
        [(); N].map(|()| {
            now += every;
            shrink_priority.beat(now)
        })
    }

    #[test]
    fn continuing_events_raise_the_priority_to_the_maximum() {
        assert_eq!(priorities(Duration::from_secs(2)), [12, 9, 6, 3, 0, 0]);
        assert_eq!(priorities(Duration::from_millis(500)), [12, 12, 9, 9, 6, 6, 3, 3, 0, 0]);
        let many = priorities::<50>(Duration::from_millis(100));
        assert_eq!([0, 9, 10, 39, 40, 49].map(|event| many[event]), [12, 12, 9, 3, 0, 0]);
    }

    #[test]
    fn after_a_pause_the_priority_starts_over() {
        assert_eq!(priorities(QUIET), [12, 12, 12]);
        assert_eq!(priorities(QUIET - Duration::from_millis(1)), [12, 9, 6]);
    }
}
