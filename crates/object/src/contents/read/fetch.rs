//! Ranged requests for segments.
//!
//! Ranges that are asked for at the same time and are neighbours in a segment become one request: a reader that is far
//! ahead asks for many units at once.

use std::ops::Range;

use parking_lot::Mutex;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use crate::format::SegmentId;
use crate::pieces::Pieces;
use crate::segments::Segments;

/// The most bytes of one request that is made of several ranges.
const MERGED_BYTES_MAX: u32 = 4 << 20;
/// The most bytes on their way from the store.
const IN_FLIGHT_BYTES_MAX: u32 = 64 << 20;

/// A range that someone waits for.
struct Wanted {
    segment: SegmentId,
    range: Range<u32>,
    answer: oneshot::Sender<Result<Pieces, BackendError>>,
}

#[derive(Default)]
struct Queue {
    wanted: Vec<Wanted>,
    /// Whether a task will take them.
    is_scheduled: bool,
}

/// See the [module documentation](self).
pub(super) struct Fetcher {
    segments: Segments,
    runtime: Handle,
    queue: Mutex<Queue>,
    in_flight_bytes: Semaphore,
}

impl Fetcher {
    pub(super) fn new(segments: Segments, runtime: Handle) -> Arc<Self> {
        let in_flight_bytes = Semaphore::new(IN_FLIGHT_BYTES_MAX as usize);
        Arc::new(Self { segments, runtime, queue: Mutex::default(), in_flight_bytes })
    }

    /// A range of a segment.
    ///
    /// # Errors
    /// As [`Segments::get`].
    pub(super) async fn get(self: &Arc<Self>, segment: SegmentId, range: Range<u32>) -> Result<Pieces, BackendError> {
        let (answer, answered) = oneshot::channel();
        let schedule = {
            let mut queue = self.queue.lock();
            queue.wanted.push(Wanted { segment, range, answer });
            !std::mem::replace(&mut queue.is_scheduled, true)
        };
        if schedule {
            let fetcher = Arc::clone(self);
            self.runtime.spawn(async move { fetcher.dispatch() });
        }
        answered.await.unwrap_or_else(|_| Err(ErrorKind::Abandoned.into()))
    }

    /// Starts requests for all that is wanted.
    fn dispatch(self: &Arc<Self>) {
        let wanted = {
            let mut queue = self.queue.lock();
            queue.is_scheduled = false;
            std::mem::take(&mut queue.wanted)
        };
        runs(wanted).into_iter().for_each(|run| self.start(run));
    }

    /// One request for the ranges of `run`.
    fn start(self: &Arc<Self>, run: Vec<Wanted>) {
        let fetcher = Arc::clone(self);
        self.runtime.spawn(async move {
            let (segment, start) = (run[0].segment, run[0].range.start);
            let end = run.iter().map(|wanted| wanted.range.end).max().unwrap_or(start);
            // The semaphore is never closed.
            let permit = fetcher.in_flight_bytes.acquire_many((end - start).min(IN_FLIGHT_BYTES_MAX)).await;
            let fetched = fetcher.segments.get(segment, start..end).await;
            let is_alone = run.len() == 1;
            for Wanted { range, answer, .. } in run {
                let part = match &fetched {
                    Ok(pieces) => Ok(pieces.slice((range.start - start) as usize..(range.end - start) as usize)),
                    Err(error) if is_alone => Err(error.clone()),
                    // Only a part of the object may be damaged, and each range may be another file's.
                    Err(_) => fetcher.segments.get(segment, range).await,
                };
                // One that does not wait any more has failed by another part of its unit.
                let _ = answer.send(part);
            }
            drop(permit);
        });
    }
}

/// Ranges that become one request each: neighbours in one segment, up to [`MERGED_BYTES_MAX`] together.
fn runs(mut wanted: Vec<Wanted>) -> Vec<Vec<Wanted>> {
    wanted.sort_by_key(|wanted| (wanted.segment, wanted.range.start));
    let mut runs: Vec<Vec<Wanted>> = Vec::new();
    for wanted in wanted {
        match runs.last_mut() {
            Some(run) if continues(run, &wanted) => run.push(wanted),
            _ => runs.push(vec![wanted]),
        }
    }
    runs
}

fn continues(run: &[Wanted], next: &Wanted) -> bool {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return false };
    last.segment == next.segment
        && next.range.start <= last.range.end
        && next.range.end.saturating_sub(first.range.start) <= MERGED_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_a_segment_become_one_request_of_a_limited_size() {
        let mib = 1 << 20;
        let wanted = |segment: u64, range: Range<u32>| Wanted {
            segment: SegmentId::new(segment, 1, segment),
            range,
            answer: oneshot::channel().0,
        };
        let all = vec![
            wanted(2, 0..mib),
            wanted(1, mib..2 * mib),
            wanted(1, 0..mib),
            wanted(1, 3 * mib..4 * mib),
            wanted(2, mib - 100..2 * mib),
            wanted(2, 2 * mib..4 * mib),
            wanted(2, 4 * mib..5 * mib),
        ];
        let merged = runs(all).into_iter().map(|run| {
            let end = run.iter().map(|wanted| wanted.range.end).max();
            (run[0].segment.unix_ms(), run[0].range.start, end.unwrap_or_default())
        });
        let expected = [(1, 0, 2 * mib), (1, 3 * mib, 4 * mib), (2, 0, 4 * mib), (2, 4 * mib, 5 * mib)];
        assert_eq!(merged.collect::<Vec<_>>(), expected);
    }
}
