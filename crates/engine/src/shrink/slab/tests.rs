//! Tests of the arithmetic, by table and against a plain model.

use std::sync::Mutex;

use proptest::prelude::*;

use super::*;

/// Behaviour of a scan.
#[derive(Copy, Clone, Debug)]
enum Behaviour {
    Stop,
    /// Frees and examines these fractions of the request, in 255ths.
    Parts {
        freed: u8,
        examined: u8,
    },
}

const ALL: Behaviour = Behaviour::Parts { freed: 255, examined: 255 };

fn part(of: u64, part: u8) -> u64 {
    (u128::from(of) * u128::from(part) / 255) as u64
}

/// Behaves as scripted, repeating the last entry, and records the requests.
struct Scripted {
    count: Count,
    seeks: u32,
    batch: u64,
    behaviours: Vec<Behaviour>,
    asked: Mutex<Vec<u64>>,
}

impl Scripted {
    fn new(objects: u64, behaviours: &[Behaviour]) -> Self {
        let (count, behaviours) = (Count::Objects(objects), behaviours.to_vec());
        Self { count, seeks: super::super::DEFAULT_SEEKS, batch: 0, behaviours, asked: Mutex::default() }
    }

    fn asked(&self) -> Vec<u64> {
        self.asked.lock().unwrap().clone()
    }
}

impl Shrinker for Scripted {
    fn name(&self) -> String {
        "scripted".into()
    }

    fn count(&self, control: &ShrinkControl) -> Count {
        assert_eq!(*control, ShrinkControl::default());
        self.count
    }

    fn scan(&self, control: &mut ShrinkControl) -> Scanned {
        assert_eq!(control.nr_scanned, control.nr_to_scan, "preset");
        let mut asked = self.asked.lock().unwrap();
        let behaviour = self.behaviours.get(asked.len()).or(self.behaviours.last()).copied().unwrap_or(Behaviour::Stop);
        asked.push(control.nr_to_scan);
        match behaviour {
            Behaviour::Stop => Scanned::Stop,
            Behaviour::Parts { freed, examined } => {
                control.nr_scanned = part(control.nr_to_scan, examined);
                Scanned::Freed(part(control.nr_to_scan, freed))
            }
        }
    }

    fn seeks(&self) -> u32 {
        self.seeks
    }

    fn batch(&self) -> u64 {
        self.batch
    }
}

/// The result of a pass: objects freed, deferred afterwards, and the request of each scan.
fn pass(shrinker: &Scripted, deferred: u64, priority: u32) -> (u64, u64, Vec<u64>) {
    let deferred = AtomicU64::new(deferred);
    let freed = do_shrink_slab(shrinker, &deferred, priority);
    (freed, deferred.load(Ordering::Relaxed), shrinker.asked())
}

#[test]
fn sem_10_2_a_million_objects() {
    let shrinker = Scripted::new(1_000_000, &[ALL]);
    assert_eq!(pass(&shrinker, 0, 12), (384, 104, vec![128; 3]));
}

#[test]
fn passes_by_table() {
    let batches = |count: usize| vec![128; count];
    // objects, seeks, deferred, priority -> freed, deferred, scans
    for (objects, seeks, deferred, priority, freed, left, asked) in [
        (1_000_000, 2, 104, 12, 384, 208, batches(3)), // the same fraction of the deferred ones counts
        (1_000_000, 1, 0, 12, 896, 80, batches(7)),
        (1_000_000, 0, 0, 12, 499_968, 32, batches(3906)), // no cost to recreate: half, however light the walk
        (100, 2, 0, 12, 0, 0, vec![]),                     // too few for a batch
        (100, 2, 0, 3, 0, 24, vec![]),
        (100, 2, 0, 0, 128, 72, batches(1)),
        (100, 2, 1_000_000, 0, 128, 200, batches(1)), // at most twice what there is
        (60, 2, 0, 0, 120, 0, vec![120]),             // a heavy walk empties a small cache
        (1, 2, 0, 0, 2, 0, vec![2]),
    ] {
        let shrinker = Scripted { seeks, ..Scripted::new(objects, &[ALL]) };
        let name = format!("{objects} objects, seeks {seeks}, {deferred} deferred, priority {priority}");
        assert_eq!(pass(&shrinker, deferred, priority), (freed, left, asked), "{name}");
    }
}

#[test]
fn refused_work_is_made_up_for_later() {
    let shrinker = Scripted::new(1_000_000, &[ALL, Behaviour::Stop]);
    assert_eq!(pass(&shrinker, 0, 12), (128, 360, vec![128, 128]));
    let willing = Scripted::new(1_000_000, &[ALL]);
    let (freed, left, _) = pass(&willing, 1 << 22, 12);
    assert_eq!((freed, left), (1408, 1_999_999 + 1), "1024 and 488 more, in whole batches");
}

#[test]
fn an_empty_or_undecided_shrinker_is_not_scanned() {
    for count in [Count::Empty, Count::Unknown, Count::Objects(0)] {
        let shrinker = Scripted { count, ..Scripted::new(0, &[ALL]) };
        assert_eq!(pass(&shrinker, 77, 0), (0, 77, vec![]), "{count:?}");
    }
}

#[test]
fn implausible_answers_are_bounded() {
    let behaviours = [
        ALL,
        Behaviour::Parts { freed: 255, examined: 0 },
        Behaviour::Parts { freed: 0, examined: 1 },
        Behaviour::Stop,
    ];
    for behaviour in behaviours {
        for (objects, batch, seeks) in
            [(u64::MAX, 0, 0), (u64::MAX, u64::MAX, 1), (u64::MAX - 1, 1, u32::MAX), (1, 1, 1)]
        {
            for deferred in [0, u64::MAX] {
                for priority in [0, 12] {
                    let shrinker = Scripted { seeks, batch, ..Scripted::new(objects, &[behaviour]) };
                    let (_, _, asked) = pass(&shrinker, deferred, priority);
                    assert!(asked.len() <= CALLS_MAX as usize);
                }
            }
        }
    }
}

/// Reports that it freed and examined more than requested.
struct Overreporting;

impl Shrinker for Overreporting {
    fn name(&self) -> String {
        "boaster".into()
    }

    fn count(&self, _control: &ShrinkControl) -> Count {
        Count::Objects(256)
    }

    fn scan(&self, control: &mut ShrinkControl) -> Scanned {
        control.nr_scanned = u64::MAX;
        Scanned::Freed(u64::MAX)
    }
}

#[test]
fn a_scan_frees_at_most_what_was_requested() {
    let deferred = AtomicU64::new(0);
    assert_eq!(do_shrink_slab(&Overreporting, &deferred, 0), 512);
    assert_eq!(deferred.load(Ordering::Relaxed), 0);
}

/// Sem. 10.2 as written, in integers that cannot overflow.
fn model(shrinker: &Scripted, deferred: u64, priority: u32) -> (u64, u64, Vec<u64>) {
    let Count::Objects(freeable) = shrinker.count else { return (0, deferred, vec![]) };
    if freeable == 0 {
        return (0, deferred, vec![]);
    }
    let (freeable, nr) = (i128::from(freeable), i128::from(deferred));
    let batch = if shrinker.batch == 0 { 128 } else { i128::from(shrinker.batch) };
    let delta =
        if shrinker.seeks == 0 { freeable / 2 } else { (freeable >> priority) * 4 / i128::from(shrinker.seeks) };
    let mut total = ((nr >> priority) + delta).min(2 * freeable);
    let (mut scanned, mut freed, mut asked) = (0, 0, vec![]);
    while total >= batch || total >= freeable {
        let request = batch.min(total) as u64;
        let behaviour = shrinker.behaviours.get(asked.len()).or(shrinker.behaviours.last()).copied().unwrap();
        asked.push(request);
        let Behaviour::Parts { freed: freed_part, examined } = behaviour else { break };
        freed += part(request, freed_part);
        if part(request, examined) == 0 {
            break;
        }
        total -= i128::from(part(request, examined));
        scanned += i128::from(part(request, examined));
    }
    (freed, (nr + delta - scanned).clamp(0, 2 * freeable) as u64, asked)
}

fn behaviour() -> impl Strategy<Value = Behaviour> {
    let parts = |(freed, examined)| Behaviour::Parts { freed, examined };
    prop_oneof![1 => Just(Behaviour::Stop), 4 => Just(ALL), 4 => (0..=255_u8, 100..=255_u8).prop_map(parts)]
}

proptest! {
    #[test]
    fn passes_follow_the_model(
        (objects, deferred) in (0..1_000_000_u64, prop_oneof![Just(0), 0..5_000_000_u64]),
        priority in 0..=12_u32,
        seeks in prop_oneof![Just(0), 1..10_u32],
        batch in prop_oneof![Just(0), 200..5000_u64],
        behaviours in prop::collection::vec(behaviour(), 1..6),
    ) {
        let shrinker = Scripted { seeks, batch, ..Scripted::new(objects, &behaviours) };
        let expected = model(&shrinker, deferred, priority);
        prop_assert_eq!(pass(&shrinker, deferred, priority), expected);
    }
}
