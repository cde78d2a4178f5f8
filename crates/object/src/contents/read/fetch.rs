//! Ranged requests for segments.
//!
//! A reader that is far ahead asks for many units at once. Only a part of them is on its way, and each request that ends
//! starts the next. With all of them on their way, all would end at about the same time. The store would then have
//! nothing to do until the reader has come that far.
//!
//! Ranges that wait and are neighbours in a segment become one request. Files with waiting ranges take turns.
//!
//! # Locks
//! The lock of the queue is a leaf: under it, no request is started, and no unit is answered.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use parking_lot::Mutex;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::format::SegmentId;
use crate::pieces::Pieces;
use crate::segments::Segments;

/// The most bytes of one request that is made of several ranges.
const MERGED_BYTES_MAX: u32 = 4 << 20;
/// A request is started while fewer bytes than this are on their way from the store, of all files and of its own.
const IN_FLIGHT_BYTES: u32 = 64 << 20;
const IN_FLIGHT_BYTES_OF_FILE: u32 = 32 << 20;

/// A range that someone waits for.
struct Wanted {
    segment: SegmentId,
    range: Range<u32>,
    answer: oneshot::Sender<Result<Pieces, BackendError>>,
}

/// Ranges of one file that become one request: neighbours in a segment, and not empty.
struct Run {
    ino: u64,
    segment: SegmentId,
    range: Range<u32>,
    wanted: Vec<Wanted>,
}

/// The requests of one file.
#[derive(Default)]
struct File {
    /// In the order in which they came.
    waiting: VecDeque<Wanted>,
    in_flight_bytes: u32,
}

#[derive(Default)]
struct Queue {
    /// Files with ranges that wait or are on their way.
    files: HashMap<u64, File>,
    /// Files with ranges that wait, each once, in the order of their turns.
    turns: VecDeque<u64>,
    in_flight_bytes: u32,
    /// Whether a task will look at what waits.
    is_scheduled: bool,
}

/// See the [module documentation](self).
pub(super) struct Fetcher {
    segments: Segments,
    runtime: Handle,
    queue: Mutex<Queue>,
}

impl Fetcher {
    pub(super) fn new(segments: Segments, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { segments, runtime, queue: Mutex::default() })
    }

    /// A range of a segment, for the file `ino`.
    ///
    /// # Errors
    /// As [`Segments::get`].
    pub(super) async fn get(
        self: &Arc<Self>,
        ino: u64,
        segment: SegmentId,
        range: Range<u32>,
    ) -> Result<Pieces, BackendError> {
        let (answer, answered) = oneshot::channel();
        let schedule = {
            let mut queue = self.queue.lock();
            queue.push(ino, Wanted { segment, range, answer });
            !std::mem::replace(&mut queue.is_scheduled, true)
        };
        if schedule {
            let fetcher = Arc::clone(self);
            self.runtime.spawn(async move { fetcher.dispatch() });
        }
        answered.await.unwrap_or_else(|_| Err(ErrorKind::Abandoned.into()))
    }

    /// Starts the requests that may start.
    fn dispatch(self: &Arc<Self>) {
        let runs: Vec<Run> = {
            let mut queue = self.queue.lock();
            queue.is_scheduled = false;
            std::iter::from_fn(|| queue.start_next()).collect()
        };
        for run in runs {
            let fetcher = Arc::clone(self);
            self.runtime.spawn(async move { fetcher.fetch(run).await });
        }
    }

    async fn fetch(self: Arc<Self>, run: Run) {
        let Run { ino, segment, range, wanted } = run;
        let fetched = self.segments.get(segment, range.clone()).await;
        self.queue.lock().end(ino, range.len() as u32);
        self.dispatch();
        let is_alone = wanted.len() == 1;
        for Wanted { range: part, answer, .. } in wanted {
            let part = match &fetched {
                Ok(pieces) => Ok(pieces.slice((part.start - range.start) as usize..(part.end - range.start) as usize)),
                Err(error) if is_alone => Err(error.clone()),
                // Only a part of the object may be damaged.
                Err(_) => self.segments.get(segment, part).await,
            };
            // One that does not wait any more has failed by another part of its unit.
            let _ = answer.send(part);
        }
    }
}

impl Queue {
    fn push(&mut self, ino: u64, wanted: Wanted) {
        let file = self.files.entry(ino).or_default();
        if file.waiting.is_empty() {
            self.turns.push_back(ino);
        }
        file.waiting.push_back(wanted);
    }

    /// The next request, which counts as on its way from now on, if one may start.
    fn start_next(&mut self) -> Option<Run> {
        if self.in_flight_bytes >= IN_FLIGHT_BYTES {
            return None;
        }
        let may_start =
            |ino: &u64| self.files.get(ino).is_some_and(|file| file.in_flight_bytes < IN_FLIGHT_BYTES_OF_FILE);
        let turn = self.turns.iter().position(may_start)?;
        let ino = self.turns.remove(turn)?;
        let file = self.files.get_mut(&ino)?;
        let run = file.next_run(ino)?;
        file.in_flight_bytes += run.range.len() as u32;
        self.in_flight_bytes += run.range.len() as u32;
        if !file.waiting.is_empty() {
            self.turns.push_back(ino);
        }
        Some(run)
    }

    /// A request has ended.
    fn end(&mut self, ino: u64, bytes: u32) {
        self.in_flight_bytes -= bytes;
        if let Some(file) = self.files.get_mut(&ino) {
            file.in_flight_bytes -= bytes;
            if file.in_flight_bytes == 0 && file.waiting.is_empty() {
                self.files.remove(&ino);
            }
        }
    }
}

impl File {
    /// Takes the oldest range, with its neighbours before and behind it.
    fn next_run(&mut self, ino: u64) -> Option<Run> {
        let oldest = self.waiting.pop_front()?;
        let mut run = Run { ino, segment: oldest.segment, range: oldest.range.clone(), wanted: vec![oldest] };
        let neighbour = |run: &Run, waiting: &VecDeque<Wanted>| {
            waiting.iter().enumerate().find_map(|(at, wanted)| Some((at, run.joined_with(wanted)?)))
        };
        while let Some((at, joined)) = neighbour(&run, &self.waiting) {
            run.range = joined;
            run.wanted.extend(self.waiting.remove(at));
        }
        Some(run)
    }
}

impl Run {
    /// The range with that of a neighbour, if it is one, and both are not too much for one request.
    fn joined_with(&self, wanted: &Wanted) -> Option<Range<u32>> {
        let (one, other) = (&self.range, &wanted.range);
        let joined = one.start.min(other.start)..one.end.max(other.end);
        let touch = wanted.segment == self.segment && one.start <= other.end && other.start <= one.end;
        (touch && joined.len() as u32 <= MERGED_BYTES_MAX).then_some(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    /// Asks for ranges of segments in MiB.
    fn ask(queue: &mut Queue, ino: u64, ranges: &[(u64, Range<u32>)]) {
        for (segment, range) in ranges {
            let segment = SegmentId::new(*segment, 1, *segment);
            queue
                .push(ino, Wanted { segment, range: range.start * MIB..range.end * MIB, answer: oneshot::channel().0 });
        }
    }

    /// The requests that start now: file, segment, range in MiB.
    fn started(queue: &mut Queue) -> Vec<(u64, u64, Range<u32>)> {
        let runs = std::iter::from_fn(|| queue.start_next());
        runs.map(|run| (run.ino, run.segment.unix_ms(), run.range.start / MIB..run.range.end / MIB)).collect()
    }

    #[test]
    fn neighbours_in_a_segment_become_one_request_of_a_limited_size() {
        let mut queue = Queue::default();
        ask(&mut queue, 7, &[(2, 1..2), (1, 1..2), (1, 0..1), (1, 3..4), (2, 0..1), (2, 2..4), (2, 4..5)]);
        assert_eq!(started(&mut queue), [(7, 2, 0..4), (7, 1, 0..2), (7, 1, 3..4), (7, 2, 4..5)]);
    }

    #[test]
    fn a_file_has_a_part_of_the_requests_and_goes_on_when_one_ends() {
        let mut queue = Queue::default();
        let units: Vec<_> = (0..48).map(|at| (1, at..at + 1)).collect();
        ask(&mut queue, 7, &units);
        assert_eq!(started(&mut queue).len(), 8, "4 MiB each");
        ask(&mut queue, 8, &[(5, 0..1)]);
        assert_eq!(started(&mut queue), [(8, 5, 0..1)], "another file does not wait");
        queue.end(7, 4 * MIB);
        assert_eq!(started(&mut queue), [(7, 1, 32..36)]);
    }

    #[test]
    fn files_take_turns() {
        let mut queue = Queue::default();
        for ino in [7, 8, 9] {
            let units: Vec<_> = (0..32).map(|at| (ino, 2 * at..2 * at + 1)).collect();
            ask(&mut queue, ino, &units);
        }
        let first = started(&mut queue);
        assert_eq!(first.len(), 64);
        assert_eq!(first[..4].iter().map(|(ino, ..)| *ino).collect::<Vec<_>>(), [7, 8, 9, 7]);
        first.into_iter().for_each(|(ino, ..)| queue.end(ino, MIB));
        let rest = started(&mut queue);
        assert_eq!(rest.len(), 32);
        rest.into_iter().for_each(|(ino, ..)| queue.end(ino, MIB));
        assert!(queue.files.is_empty() && queue.turns.is_empty() && queue.in_flight_bytes == 0);
    }
}
