//! Units that wait for a request, and the number of requests on their way.

use std::collections::VecDeque;
use std::time::Duration;

use slackwater::backend::WriteUnit;

use super::SEGMENT_BYTES;

/// The units of one segment: not empty, and all of one queue.
pub(super) struct Batch(pub(super) Vec<(u64, WriteUnit)>);

impl Batch {
    pub(super) fn is_for_sync(&self) -> bool {
        self.0.iter().any(|(_, unit)| unit.is_for_sync())
    }
}

/// A request that takes longer than this takes a slot away, and any other one gives a slot back. On a slow line, requests
/// that share it would otherwise all meet their time limits.
const SLOW: Duration = Duration::from_secs(20);

/// See the [module documentation](self).
pub(super) struct Queue {
    units: VecDeque<(u64, WriteUnit)>,
    bytes: usize,
    /// Requests on their way, how many may be, and how many if the line is fast.
    uploads: usize,
    slots: usize,
    slots_max: usize,
    gathers: bool,
    /// A timer runs for what is being gathered, or has run out.
    gathering: Gathering,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Gathering {
    No,
    Since,
    Over,
}

impl Queue {
    /// A queue whose units go as soon as there is a slot. It begins with half of the slots.
    pub(super) fn eager(slots_max: usize) -> Self {
        Self {
            units: VecDeque::new(),
            bytes: 0,
            uploads: 0,
            slots: slots_max.div_ceil(2),
            slots_max,
            gathers: false,
            gathering: Gathering::No,
        }
    }

    /// A queue whose units wait for others if requests are on their way already.
    pub(super) fn gathering(slots_max: usize) -> Self {
        Self { gathers: true, ..Self::eager(slots_max) }
    }

    pub(super) fn push(&mut self, ino: u64, unit: WriteUnit) {
        self.bytes += unit.len_bytes();
        self.units.push_back((ino, unit));
    }

    /// The batches to start now. Each takes a slot, which [`Queue::end_upload`] frees.
    pub(super) fn ready(&mut self) -> Vec<Batch> {
        let mut batches = Vec::new();
        while self.uploads < self.slots && self.may_start() {
            let (mut units, mut bytes) = (Vec::new(), 0);
            while bytes < SEGMENT_BYTES
                && let Some((ino, unit)) =
                    self.units.pop_front_if(|(_, unit)| bytes + unit.len_bytes() <= SEGMENT_BYTES)
            {
                bytes += unit.len_bytes();
                units.push((ino, unit));
            }
            self.bytes -= bytes;
            self.uploads += 1;
            if self.gathering == Gathering::Over {
                self.gathering = Gathering::No;
            }
            batches.push(Batch(units));
        }
        batches
    }

    fn may_start(&self) -> bool {
        let waits_no_longer = !self.gathers || self.uploads == 0 || self.gathering == Gathering::Over;
        !self.units.is_empty() && (waits_no_longer || self.bytes >= SEGMENT_BYTES)
    }

    /// Whether a timer must be started for the units that wait for others.
    pub(super) fn begin_gathering(&mut self) -> bool {
        let begins = self.gathers && self.gathering == Gathering::No && !self.units.is_empty();
        if begins {
            self.gathering = Gathering::Since;
        }
        begins
    }

    /// The timer has run out.
    pub(super) fn end_gathering(&mut self) {
        self.gathering = if self.units.is_empty() { Gathering::No } else { Gathering::Over };
    }

    /// A request has ended, after this time.
    pub(super) fn end_upload(&mut self, took: Duration) {
        self.uploads -= 1;
        self.slots = if took > SLOW { (self.slots - 1).max(1) } else { (self.slots + 1).min(self.slots_max) };
    }
}

#[cfg(test)]
mod tests {
    use slackwater::NodeId;
    use slackwater::backend::{Done, Node};
    use slackwater_arena::{Arena, ArenaConfig, Gather, Pool};
    use slackwater_sync::shim::Arc;

    use super::*;

    const PAGES: usize = 32;
    const UNITS: usize = SEGMENT_BYTES / (PAGES * slackwater_arena::FRAME_BYTES);

    struct Units(Arc<Arena>);

    impl Units {
        fn new() -> Self {
            Self(Arena::create(&ArenaConfig::memfd(256 << 20)).expect("memory for an arena"))
        }

        fn push(&self, queue: &mut Queue, count: usize) {
            for _ in 0..count {
                let mut frames = Vec::new();
                assert_eq!(self.0.alloc_many(Pool::Reserve, PAGES, &mut frames), PAGES);
                let mut gather = Gather::new(self.0.clone(), PAGES);
                assert!(frames.iter().all(|frame| gather.push(*frame)));
                let node = Node::new(NodeId { dev: 1, ino: 5, generation: 0 }, ());
                let len_bytes = PAGES * slackwater_arena::FRAME_BYTES;
                queue.push(5, WriteUnit::detached(node, 0, gather, len_bytes, Done::new(|_| ())));
            }
        }
    }

    const FAST: Duration = Duration::from_millis(50);

    /// A queue that has all of its slots.
    fn on_a_fast_line(queue: Queue) -> Queue {
        Queue { slots: queue.slots_max, ..queue }
    }

    /// The numbers of units in the batches that start now.
    fn started(queue: &mut Queue) -> Vec<usize> {
        queue.ready().iter().map(|batch| batch.0.len()).collect()
    }

    #[test]
    fn background_units_wait_for_a_full_segment_while_requests_are_on_their_way() {
        let (units, mut queue) = (Units::new(), on_a_fast_line(Queue::gathering(3)));
        units.push(&mut queue, 1);
        assert_eq!(started(&mut queue), [1], "nothing is on its way");
        units.push(&mut queue, UNITS - 1);
        assert!(started(&mut queue).is_empty());
        units.push(&mut queue, 2);
        assert_eq!(started(&mut queue), [UNITS]);
        assert!(queue.begin_gathering());
        assert!(!queue.begin_gathering(), "one timer is enough");
        queue.end_gathering();
        assert_eq!(started(&mut queue), [1]);
        units.push(&mut queue, 2 * UNITS);
        assert!(started(&mut queue).is_empty(), "there is no slot");
        queue.end_upload(FAST);
        assert_eq!(started(&mut queue), [UNITS]);
    }

    #[test]
    fn the_last_units_start_when_nothing_else_is_on_its_way() {
        let (units, mut queue) = (Units::new(), on_a_fast_line(Queue::gathering(3)));
        units.push(&mut queue, 1);
        assert_eq!(started(&mut queue), [1]);
        units.push(&mut queue, 2);
        assert!(started(&mut queue).is_empty());
        queue.end_upload(FAST);
        assert_eq!(started(&mut queue), [2]);
        assert!(!queue.begin_gathering(), "nothing waits");
    }

    #[test]
    fn units_of_syncs_start_as_long_as_there_are_slots() {
        let (units, mut queue) = (Units::new(), on_a_fast_line(Queue::eager(2)));
        for _ in 0..2 {
            units.push(&mut queue, 1);
            assert_eq!(started(&mut queue), [1]);
        }
        units.push(&mut queue, UNITS + 1);
        assert!(started(&mut queue).is_empty());
        queue.end_upload(FAST);
        assert_eq!(started(&mut queue), [UNITS], "gathered meanwhile");
        queue.end_upload(FAST);
        assert_eq!(started(&mut queue), [1]);
    }

    #[test]
    fn a_slow_line_has_fewer_requests_at_once() {
        let (units, mut queue) = (Units::new(), Queue::eager(4));
        // Adds one full segment, and returns how many start.
        let add = |queue: &mut Queue| {
            units.push(queue, UNITS);
            started(queue).len()
        };
        assert_eq!([add(&mut queue), add(&mut queue), add(&mut queue)], [1, 1, 0], "it is not known to be fast");
        queue.end_upload(FAST);
        assert_eq!([started(&mut queue).len(), add(&mut queue), add(&mut queue)], [1, 1, 0]);
        queue.end_upload(FAST);
        assert_eq!([started(&mut queue).len(), add(&mut queue)], [1, 1], "all four are on their way");
        (0..4).for_each(|_| queue.end_upload(SLOW + FAST));
        assert_eq!([add(&mut queue), add(&mut queue)], [1, 0]);
        queue.end_upload(SLOW + FAST);
        assert_eq!(started(&mut queue).len(), 1, "one always may");
        queue.end_upload(FAST);
        assert_eq!([add(&mut queue), add(&mut queue), add(&mut queue)], [1, 1, 0]);
    }
}
