//! A history: its operations, their order, and the checks after each.

use std::time::Duration;

use slackwater::ErrorKind;
use slackwater::backend::FallocateMode;
use slackwater_testkit::{Random, Rule};

use crate::world::{FILES, World};

/// Operations in a history.
const LENGTH: u64 = 40;
/// Files stay below this: 24 pages.
const SIZE_MAX: u64 = 96 << 10;

/// The choices of a seed.
pub(crate) struct Dice(Random);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    fn file(&mut self) -> usize {
        self.below(FILES as u64) as usize
    }

    /// An offset or size, often at or next to a page boundary.
    fn offset(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(SIZE_MAX / 4096) * 4096,
            1 => (self.below(SIZE_MAX / 4096) * 4096 + self.below(3)).saturating_sub(1),
            2 => self.below(300),
            _ => self.below(SIZE_MAX),
        }
    }

    fn bytes(&mut self, offset: u64) -> Vec<u8> {
        let len = match self.below(3) {
            0 => 1 + self.below(200),
            1 => 4096 * (1 + self.below(4)),
            _ => 1 + self.below(20_000),
        };
        let len = len.min(SIZE_MAX + 4096 - offset);
        let first = self.0.next();
        (0..len).map(|at| (first.wrapping_add(at * 7) % 255 + 1) as u8).collect()
    }
}

/// How often each operation ran.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    writes: u64,
    cuts: u64,
    allocations: u64,
    seeks: u64,
    fsyncs: u64,
    fsyncs_failed: u64,
    volume_syncs: u64,
    process_deaths: u64,
    machine_crashes: u64,
    forgetful_backends: u64,
    unlinks: u64,
    remounts: u64,
    held: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        let Tally { writes, cuts, fsyncs, fsyncs_failed, volume_syncs, .. } = other;
        self.writes += writes;
        self.cuts += cuts;
        self.allocations += other.allocations;
        self.seeks += other.seeks;
        self.fsyncs += fsyncs;
        self.fsyncs_failed += fsyncs_failed;
        self.volume_syncs += volume_syncs;
        self.process_deaths += other.process_deaths;
        self.machine_crashes += other.machine_crashes;
        self.forgetful_backends += other.forgetful_backends;
        self.unlinks += other.unlinks;
        self.remounts += other.remounts;
        self.held += other.held;
    }

    pub(crate) fn is_varied(&self) -> bool {
        [
            self.writes,
            self.cuts,
            self.allocations,
            self.seeks,
            self.fsyncs,
            self.fsyncs_failed,
            self.volume_syncs,
            self.process_deaths,
            self.machine_crashes,
            self.forgetful_backends,
            self.unlinks,
            self.remounts,
            self.held,
        ]
        .into_iter()
        .all(|count| count != 0)
    }
}

/// Runs the history of `seed`, with checks all the way.
pub(crate) fn run(seed: u64) -> Tally {
    let mut dice = Dice(Random::new(seed));
    let mut tally = Tally::default();
    let mut world = World::new();
    for _ in 0..LENGTH {
        step(&mut world, &mut dice, &mut tally);
    }
    world.heal();
    world.check_reads();
    world.remount();
    world.check_reads();
    world.finish();
    tally
}

fn step(world: &mut World, dice: &mut Dice, tally: &mut Tally) {
    let choice = dice.below(100);
    world.note(choice);
    match choice {
        0..=34 => {
            let (file, offset) = (dice.file(), dice.offset());
            let bytes = dice.bytes(offset);
            world.write(file, offset, &bytes);
            tally.writes += 1;
        }
        35..=39 => {
            let file = dice.file();
            let at = world.len(file);
            if at < SIZE_MAX {
                let bytes = dice.bytes(at);
                world.append(file, &bytes);
                tally.writes += 1;
            }
        }
        40..=46 => {
            world.cut(dice.file(), dice.offset());
            tally.cuts += 1;
        }
        47..=49 => {
            use FallocateMode::{Allocate, AllocateKeepSize, PunchHole, Zero, ZeroKeepSize};
            let mode = [PunchHole, PunchHole, Zero, ZeroKeepSize, Allocate, AllocateKeepSize][dice.below(6) as usize];
            let (file, offset) = (dice.file(), dice.offset());
            let len = dice.bytes(offset).len() as u64;
            world.allocate(file, mode, offset, len);
            tally.allocations += 1;
        }
        50..=51 => {
            world.check_seek(dice.file(), dice.offset());
            tally.seeks += 1;
        }
        52..=54 => {
            world.check_read(dice.file(), dice.offset(), 1 + dice.below(9000));
        }
        55..=62 => {
            let failed = world.fsync(dice.file(), dice.below(2) == 0);
            tally.fsyncs += 1;
            tally.fsyncs_failed += u64::from(failed);
        }
        63..=65 => {
            world.sync_volume();
            tally.volume_syncs += 1;
        }
        66..=77 => world.advance(Duration::from_millis(100 + dice.below(9000))),
        78..=79 => world.advance(Duration::from_secs(40)),
        80..=83 => {
            let kind = [ErrorKind::Io, ErrorKind::NoSpace][dice.below(2) as usize];
            let call = ["write", "sync", "sync_volume", "setattr", "read"][dice.below(5) as usize];
            // The caller must repeat a failed truncation or read; the engine repeats the others.
            if !matches!(call, "setattr" | "read") {
                world.fault(Rule::fail(kind).on(call).next(1 + dice.below(3)));
            }
        }
        84..=85 => world.fault(Rule::short_write(dice.below(12_000) as usize).on("write").next(2)),
        86..=88 => {
            world.hold(1 + dice.below(4));
            tally.held += 1;
        }
        89..=90 => world.release(dice),
        91 => world.heal(),
        92..=93 => {
            world.process_dies();
            tally.process_deaths += 1;
        }
        94..=95 => {
            world.machine_crashes();
            tally.machine_crashes += 1;
        }
        96 => tally.forgetful_backends += u64::from(world.backend_forgets()),
        97..=98 => {
            world.unlink(dice.file());
            tally.unlinks += 1;
        }
        _ => {
            world.remount();
            tally.remounts += 1;
        }
    }
    if dice.below(3) == 0 {
        world.check_reads();
    }
}
