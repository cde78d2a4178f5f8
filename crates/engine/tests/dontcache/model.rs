//! Random histories against a plain model of the bytes and of the pages that stay.

use std::collections::BTreeMap;

use proptest::prelude::*;
use slackwater::{File, PAGE_BYTES, ReadFlags, ReadRequest, WriteFlags, WriteRequest, Written};

use crate::rig::{PAGE, Rig};

const PAGES: u64 = 80;

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, len: usize, dontcache: bool },
    Read { at: u64, len: usize, dontcache: bool },
    Cut { to: u64 },
    Flush,
    Pass { seconds: u64 },
    Fsync,
    Sync,
    Fail { units: u32, commits: u32 },
    Hold,
    LetGo,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = PAGES * PAGE_BYTES;
    let at = prop_oneof![0..end, (0..PAGES).prop_map(|index| index * PAGE_BYTES)];
    let len = prop_oneof![1..3 * PAGE, (1_usize..8).prop_map(|pages| pages * PAGE)];
    let step = prop_oneof![
        8 => (at.clone(), len.clone(), prop::bool::weighted(0.7)).prop_map(|(at, len, dontcache)| Step::Write { at, len, dontcache }),
        2 => (at.clone(), len, any::<bool>()).prop_map(|(at, len, dontcache)| Step::Read { at, len, dontcache }),
        1 => at.prop_map(|to| Step::Cut { to }),
        3 => Just(Step::Flush),
        2 => (1..7_u64).prop_map(|seconds| Step::Pass { seconds }),
        1 => Just(Step::Fsync),
        1 => Just(Step::Sync),
        1 => (0..3_u32, 0..2_u32).prop_map(|(units, commits)| Step::Fail { units, commits }),
        1 => Just(Step::Hold),
        2 => Just(Step::LetGo),
    ];
    prop::collection::vec(step, 1..60)
}

/// Why a page is in the cache, if it is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Wanted {
    /// An ordinary write wrote to it.
    Yes,
    /// The page may have been evicted before it was read.
    Perhaps,
}

#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    wanted: BTreeMap<u64, Wanted>,
}

fn pages_of(at: u64, len: usize) -> std::ops::Range<u64> {
    at / PAGE_BYTES..(at + len as u64).div_ceil(PAGE_BYTES)
}

impl Model {
    fn write(&mut self, at: u64, bytes: &[u8], dontcache: bool) {
        let (at_byte, end) = (at as usize, at as usize + bytes.len());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at_byte..end].copy_from_slice(bytes);
        if !dontcache {
            self.wanted.extend(pages_of(at, bytes.len()).map(|index| (index, Wanted::Yes)));
        }
    }

    fn read(&mut self, at: u64, len: usize, dontcache: bool) -> &[u8] {
        let from = (at as usize).min(self.bytes.len());
        let to = (at as usize + len).min(self.bytes.len());
        let mut stay = pages_of(from as u64, to - from);
        if dontcache {
            stay.start = to as u64 / PAGE_BYTES; // a sequential reader continues there
        }
        for index in stay {
            self.wanted.entry(index).or_insert(Wanted::Perhaps);
        }
        &self.bytes[from..to]
    }

    fn truncate(&mut self, to: u64) {
        self.bytes.resize(to as usize, 0);
        self.wanted.retain(|index, _| index * PAGE_BYTES < to);
    }
}

/// Performs steps that do not wait for a held unit.
fn run(rig: &Rig, file: &File, model: &mut Model, nth: usize, step: Step, holds: &mut bool) {
    match step {
        Step::Write { at, len, dontcache } => {
            let bytes: Vec<u8> = (0..len).map(|byte| (byte + 7 * nth) as u8).collect();
            let flags = if dontcache { WriteFlags::DONTCACHE } else { WriteFlags::NONE };
            assert_eq!(file.write(WriteRequest::at(at).flags(flags), &bytes).unwrap(), Written::Bytes(bytes.len()));
            model.write(at, &bytes, dontcache);
        }
        Step::Read { at, len, dontcache } => {
            let mut bytes = vec![0xee; len];
            let flags = if dontcache { ReadFlags::DONTCACHE } else { ReadFlags::NONE };
            let read = file.read(ReadRequest::at(at).flags(flags), &mut bytes).unwrap();
            assert!(bytes[..read] == *model.read(at, len, dontcache), "{len} bytes at {at}");
        }
        Step::Cut { to } if !*holds => {
            file.set_len(to).unwrap();
            model.truncate(to);
        }
        Step::Flush => _ = rig.engine.step(),
        Step::Pass { seconds } => rig.advance(seconds),
        Step::Fsync if !*holds => drop(file.fsync()),
        Step::Sync if !*holds => drop(rig.volume.sync()),
        Step::Cut { .. } | Step::Fsync | Step::Sync => {}
        Step::Fail { units, commits } => rig.backend.fail(units, commits),
        Step::Hold => {
            rig.backend.hold_units();
            *holds = true;
        }
        Step::LetGo => {
            rig.backend.release();
            *holds = false;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn bytes_read_are_bytes_written_and_unwanted_pages_leave(steps in steps()) {
        let rig = Rig::small();
        let file = rig.create("x");
        let mut model = Model::default();
        let mut holds = false;
        for (nth, step) in steps.into_iter().enumerate() {
            run(&rig, &file, &mut model, nth, step, &mut holds);
            rig.engine.check_counts().unwrap();
        }
        rig.backend.release();
        rig.backend.fail(0, 0);
        drop(file.fsync()); // an earlier error may still have to be reported
        rig.volume.sync().unwrap();
        rig.engine.check_counts().unwrap();
        prop_assert_eq!(rig.volume.status().bytes_left(), 0);
        let count = |wanted: fn(Wanted) -> bool| model.wanted.values().filter(|page| wanted(**page)).count() as u64;
        let (least, most) = (count(|page| page == Wanted::Yes), count(|_| true));
        prop_assert!((least..=most).contains(&rig.cached()), "{} of {least} to {most} pages", rig.cached());
        prop_assert!(rig.backend.mem.durable_file(file.inode().id()).unwrap() == model.bytes);
        drop(file);
        rig.umount();
    }
}
