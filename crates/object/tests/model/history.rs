//! A history: the choices of its seed, and the calls that they make.

use std::sync::Arc;

use slackwater::backend::{FallocateMode, NewNode, Removal, RenameMode};
use slackwater_testkit::Random;

use crate::tree::{Change, Id, ROOT, Tree};
use crate::world::{Subject, World};

/// Calls of a history, without those that end a life.
const LENGTH: u64 = 60;
/// Few names, so that they meet.
const NAMES: u64 = 7;
/// Files and directories together.
const NODES_MAX: usize = 24;
pub(crate) const PAGE: u64 = 4096;
/// Most offsets are below this, so that writes meet.
const NEAR: u64 = 24 * PAGE;
/// The first offset in the second record of a file's map.
const SECOND_CHUNK: u64 = 1 << 20;
/// Units from here on are uploaded at once, and smaller ones with the commit.
pub(crate) const LARGE: u64 = 64 << 10;

/// How often each kind of call ran, and how each life ended.
#[derive(Clone, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) names: u64,
    pub(crate) refused: u64,
    pub(crate) writes: u64,
    pub(crate) large_writes: u64,
    pub(crate) together: u64,
    pub(crate) ranges: u64,
    pub(crate) attributes: u64,
    pub(crate) reads: u64,
    pub(crate) syncs: u64,
    pub(crate) failures: u64,
    pub(crate) cuts: u64,
    pub(crate) crashes: u64,
    pub(crate) crashes_that_lost: u64,
    pub(crate) kills: u64,
    pub(crate) remounts: u64,
}

impl Tally {
    fn counts(&self) -> [(&'static str, u64); 15] {
        [
            ("names", self.names),
            ("refused", self.refused),
            ("writes", self.writes),
            ("large writes", self.large_writes),
            ("together", self.together),
            ("ranges", self.ranges),
            ("attributes", self.attributes),
            ("reads", self.reads),
            ("syncs", self.syncs),
            ("failures", self.failures),
            ("cuts", self.cuts),
            ("crashes", self.crashes),
            ("crashes that lost something", self.crashes_that_lost),
            ("kills", self.kills),
            ("remounts", self.remounts),
        ]
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.names += other.names;
        self.refused += other.refused;
        self.writes += other.writes;
        self.large_writes += other.large_writes;
        self.together += other.together;
        self.ranges += other.ranges;
        self.attributes += other.attributes;
        self.reads += other.reads;
        self.syncs += other.syncs;
        self.failures += other.failures;
        self.cuts += other.cuts;
        self.crashes += other.crashes;
        self.crashes_that_lost += other.crashes_that_lost;
        self.kills += other.kills;
        self.remounts += other.remounts;
    }

    /// The kinds of calls and ends that never ran.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        self.counts().iter().filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect()
    }
}

/// The choices of a seed.
pub(crate) struct Dice(Random);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    pub(crate) fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub(crate) fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    fn name(&mut self) -> String {
        format!("n{}", self.below(NAMES))
    }

    fn node(&mut self, tree: &Tree) -> Id {
        self.one_of(&tree.ids().collect::<Vec<_>>())
    }

    /// Mostly the root, so that names meet.
    fn dir(&mut self, tree: &Tree) -> Id {
        let dirs: Vec<Id> = tree.ids().filter(|id| tree.is_directory(*id)).collect();
        if self.chance(2) { ROOT } else { self.one_of(&dirs) }
    }

    /// A name that exists, mostly.
    fn entry(&mut self, tree: &Tree) -> (Id, String) {
        let dir = self.dir(tree);
        let names: Vec<_> = tree.entries(dir).keys().cloned().collect();
        if names.is_empty() || self.chance(10) { (dir, self.name()) } else { (dir, self.one_of(&names)) }
    }

    fn file(&mut self, tree: &Tree) -> Option<Id> {
        let files: Vec<Id> = tree.ids().filter(|id| tree.bytes(*id).is_some()).collect();
        (!files.is_empty()).then(|| self.one_of(&files))
    }

    fn offset(&mut self) -> u64 {
        match self.below(12) {
            0 => SECOND_CHUNK - self.below(3) * PAGE,
            1 => self.below(SECOND_CHUNK + NEAR),
            2..5 => self.below(NEAR),
            5 => self.below(NEAR / PAGE) * PAGE + self.below(3),
            _ => self.below(NEAR / PAGE) * PAGE,
        }
    }

    fn len(&mut self) -> u64 {
        match self.below(8) {
            0 | 1 => 1 + self.below(300),
            2 | 3 => PAGE * (1 + self.below(4)),
            4 => LARGE + self.below(4 * LARGE),
            _ => 1 + self.below(20_000),
        }
    }

    /// A write as the engine makes it: from a page boundary, of whole pages unless it ends the file.
    fn write(&mut self, tree: &Tree, node: Id) -> Change {
        let offset = self.offset() / PAGE * PAGE;
        let mut len = self.len();
        let size = tree.bytes(node).map_or(0, |bytes| bytes.len() as u64);
        if offset + len < size {
            len = len.next_multiple_of(PAGE);
        }
        Change::Write { node, offset, bytes: Arc::new(self.bytes(len as usize)) }
    }

    /// Bytes that differ from write to write and from page to page, and are never zero, so that none looks like a hole.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = (self.0.next() | 0x0101_0101_0101_0101).to_le_bytes().repeat(len / 8 + 1);
        for page in bytes.chunks_mut(PAGE as usize) {
            page[0] = self.0.next() as u8 | 1;
        }
        bytes.truncate(len);
        bytes
    }

    fn name_change(&mut self, tree: &Tree) -> Change {
        let is_full = tree.ids().count() >= NODES_MAX;
        match self.below(16) {
            0..6 if !is_full => {
                let what = match self.below(10) {
                    0..3 => NewNode::Directory,
                    3 => NewNode::Symlink(format!("target-{}", self.below(100)).into()),
                    4 => NewNode::Special { type_bits: 0o010_000, rdev: 0 },
                    _ => NewNode::File,
                };
                let mode = if matches!(what, NewNode::Symlink(_)) { 0o777 } else { 0o600 | self.below(0o200) as u32 };
                Change::Make { dir: self.dir(tree), name: self.name(), what, mode }
            }
            6 if !is_full => Change::Tmpfile { dir: self.dir(tree) },
            7 | 8 => Change::Link { node: self.node(tree), dir: self.dir(tree), name: self.name() },
            9..13 => {
                use RenameMode::{Exchange, NoReplace, Replace, Whiteout};
                let modes = [Replace, Replace, Replace, NoReplace, Exchange, Whiteout];
                let (from, mode) = (self.entry(tree), self.one_of(&modes));
                let to = if self.chance(2) { self.entry(tree) } else { (self.dir(tree), self.name()) };
                Change::Rename { from, to, mode }
            }
            _ => {
                let (dir, name) = self.entry(tree);
                let is_directory = tree.entries(dir).get(&name).is_some_and(|node| tree.is_directory(*node));
                let removal = if is_directory != self.chance(12) { Removal::Directory } else { Removal::File };
                Change::Remove { dir, name, removal }
            }
        }
    }

    fn attribute_change(&mut self, tree: &Tree) -> Change {
        let node = self.node(tree);
        let name = format!("user.{}", self.below(3));
        match self.below(4) {
            0 => Change::RemoveXattr { node: self.node_for_xattrs(tree), name },
            1 | 2 => {
                // Some are too long to be stored with the node.
                let len = if self.chance(3) { 3000 + self.below(5000) } else { self.below(100) };
                let value = vec![self.below(256) as u8; len as usize];
                Change::SetXattr { node: self.node_for_xattrs(tree), name, value }
            }
            _ if tree.get(node).is_some_and(|node| matches!(node.body, crate::tree::Body::Symlink(_))) => {
                Change::Chmod { node: ROOT, mode: 0o755 }
            }
            _ => Change::Chmod { node, mode: self.below(0o1000) as u32 },
        }
    }

    fn node_for_xattrs(&mut self, tree: &Tree) -> Id {
        self.file(tree).unwrap_or(ROOT)
    }

    fn range_change(&mut self, node: Id) -> Change {
        use FallocateMode::{Allocate, AllocateKeepSize, PunchHole, Zero, ZeroKeepSize};
        let (offset, len) = (self.offset(), self.len());
        let modes = [PunchHole, PunchHole, PunchHole, Zero, ZeroKeepSize, Allocate, AllocateKeepSize];
        match self.below(2) {
            0 => Change::Resize { node, size: if self.chance(6) { 0 } else { offset } },
            _ => Change::Range { node, mode: self.one_of(&modes), offset, len },
        }
    }
}

/// Runs the history of `seed`, with checks all the way.
pub(crate) fn run<S: Subject>(seed: u64) -> Tally {
    let mut dice = Dice(Random::new(seed));
    let mut world = World::<S>::new(&mut dice);
    for _ in 0..LENGTH {
        step(&mut world, &mut dice);
        if world.is_cut() {
            // The process goes on for a while before it notices that the machine is about to crash.
            for _ in 0..dice.below(6) {
                step(&mut world, &mut dice);
            }
            end_life(&mut world, &mut dice);
        }
    }
    world.finish()
}

fn end_life<S: Subject>(world: &mut World<S>, dice: &mut Dice) {
    if dice.chance(2) { world.machine_crashes(dice) } else { world.process_is_killed(dice) }
}

fn step<S: Subject>(world: &mut World<S>, dice: &mut Dice) {
    if world.is_stuck() {
        return;
    }
    match dice.below(100) {
        0..36 => world.change(&dice.name_change(world.tree())),
        36..56 => {
            if let Some(node) = dice.file(world.tree()) {
                let write = dice.write(world.tree(), node);
                world.write_together(&[write], false);
            }
        }
        56..62 => {
            let mut writes = Vec::new();
            let mut files: Vec<Id> = (0..3).filter_map(|_| dice.file(world.tree())).collect();
            files.sort_unstable();
            files.dedup();
            files.into_iter().for_each(|file| writes.push(dice.write(world.tree(), file)));
            let syncs = dice.chance(2);
            world.write_together(&writes, syncs);
        }
        62..70 => {
            if let Some(node) = dice.file(world.tree()) {
                world.change(&dice.range_change(node));
            }
        }
        70..76 => world.change(&dice.attribute_change(world.tree())),
        76..82 => {
            if let Some(node) = dice.file(world.tree()) {
                world.check_read(node, dice.offset(), dice.len());
            }
        }
        82..90 => {
            let node = if dice.chance(2) { dice.node(world.tree()) } else { ROOT };
            world.sync(dice.chance(2).then_some(node));
        }
        90..92 => world.close(dice.node(world.tree())),
        92..96 => world.fault(dice),
        96 => {
            if !world.is_cut() {
                world.heal();
            }
        }
        _ if world.is_cut() => {}
        97 => world.remount(dice),
        _ if !S::CRASHES => {}
        98 => world.machine_crashes(dice),
        _ => world.process_is_killed(dice),
    }
}
