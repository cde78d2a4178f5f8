//! A random history of one file, used by turns through two open files and a mapping of each, and compared with a plain
//! model of its bytes.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use super::sys::Mapping;

/// Most bytes of the file. The mappings have this length, whatever the size of the file.
const MAX: usize = 192 << 10;
/// Most bytes of one operation. Most operations do not begin or end on a page.
const LEN_MAX: usize = 12_000;
/// Operations that a failure prints.
const SHOWN: usize = 40;

/// Numbers that depend on the seed only: a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }

    /// A range that is not empty and ends at `end` at the latest. Every fourth consists of whole pages, if there are any.
    fn range(&mut self, end: usize) -> (usize, usize) {
        let at = self.below(end);
        let len = 1 + self.below(LEN_MAX.min(end - at));
        match (at / super::PAGE * super::PAGE, len / super::PAGE * super::PAGE) {
            (page, pages) if pages != 0 && self.below(4) == 0 => (page, pages),
            _ => (at, len),
        }
    }
}

/// An open file of the two, with its mapping.
struct Way {
    file: File,
    mapping: Mapping,
}

impl Way {
    fn new(path: &str) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mapping = Mapping::of_len(&file, MAX);
        Self { file, mapping }
    }
}

struct Walk {
    random: Random,
    paths: [String; 2],
    ways: [Way; 2],
    /// The expected bytes.
    model: Vec<u8>,
    log: VecDeque<String>,
}

/// Makes `operations` random operations on the file, which has both `paths`, and checks its bytes.
pub(super) fn walk(paths: [&str; 2], seed: u64, operations: usize) {
    drop(File::create(paths[0]).unwrap());
    let paths = paths.map(str::to_owned);
    let ways = [Way::new(&paths[0]), Way::new(&paths[1])];
    let mut walk = Walk { random: Random(seed), paths, ways, model: Vec::new(), log: VecDeque::new() };
    for number in 0..operations {
        walk.step(number);
    }
    walk.check_all();
    walk.ways[0].file.sync_all().unwrap();
}

impl Walk {
    fn note(&mut self, what: String) {
        self.log.push_back(what);
        if self.log.len() > SHOWN {
            self.log.pop_front();
        }
    }

    fn same(&self, how: &str, at: usize, found: &[u8]) {
        let wanted = &self.model[at..at + found.len()];
        if found != wanted {
            let first = (0..found.len()).find(|i| found[*i] != wanted[*i]).expect("they differ");
            let same = |i: &usize| found[*i] != wanted[*i];
            let count = (first..found.len()).filter(same).count();
            let log: Vec<_> = self.log.iter().map(String::as_str).collect();
            panic!(
                "{how}: byte {} is {:#x}, not {:#x} ({count} differ), after\n{}",
                at + first,
                found[first],
                wanted[first],
                log.join("\n")
            );
        }
    }

    /// Sets the bytes of the model, which grows as the file does.
    fn set(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[at..end].copy_from_slice(bytes);
    }

    fn step(&mut self, number: usize) {
        let (size, by) = (self.model.len(), self.random.below(2));
        let byte = number as u8 | 1;
        match self.random.below(100) {
            0..22 if size > 0 => {
                let (at, len) = self.random.range(size);
                self.note(format!("{number}: store {at} {len} by {by}"));
                self.ways[by].mapping.store(at, &vec![byte; len]);
                self.set(at, &vec![byte; len]);
            }
            22..36 if size > 0 => {
                let (at, len) = self.random.range(size);
                self.note(format!("{number}: load {at} {len} by {by}"));
                self.same("load", at, &self.ways[by].mapping.load(at, len));
            }
            36..50 => {
                let (at, len) = self.random.range(MAX);
                self.note(format!("{number}: write {at} {len} by {by}"));
                self.ways[by].file.write_all_at(&vec![byte; len], at as u64).unwrap();
                self.set(at, &vec![byte; len]);
            }
            50..60 if size > 0 => {
                let (at, len) = self.random.range(size);
                self.note(format!("{number}: read {at} {len} by {by}"));
                let mut found = vec![0; len];
                self.ways[by].file.read_exact_at(&mut found, at as u64).unwrap();
                self.same("read", at, &found);
            }
            60..72 => self.clear(number, by),
            72..80 => {
                let to = self.random.below(MAX);
                self.note(format!("{number}: truncate to {to} by {by}"));
                self.ways[by].file.set_len(to as u64).unwrap();
                self.model.resize(to, 0);
            }
            80..90 if size > 1 => self.copy(number, by),
            90..93 => {
                self.note(format!("{number}: msync by {by}"));
                self.ways[by].mapping.sync().unwrap();
            }
            93..95 => {
                self.note(format!("{number}: fsync by {by}"));
                self.ways[by].file.sync_all().unwrap();
            }
            95 => {
                self.note(format!("{number}: open {by} again"));
                self.ways[by] = Way::new(&self.paths[by]);
            }
            96 => {
                self.note(format!("{number}: truncate and open"));
                drop(File::options().write(true).truncate(true).open(&self.paths[by]).unwrap());
                self.model.clear();
            }
            97 if size > 0 => {
                // By a descriptor that may use the kernel's cache.
                self.note(format!("{number}: read all by a reader"));
                self.same("reader", 0, &std::fs::read(&self.paths[by]).unwrap());
            }
            98 => self.check_all(),
            _ => {}
        }
        if self.random.below(16) == 0 {
            let size = self.ways[by].file.metadata().unwrap().len();
            assert_eq!(size, self.model.len() as u64, "size, after {:?}", self.log);
        }
    }

    /// A hole, a range of zeroes, or an allocation.
    fn clear(&mut self, number: usize, by: usize) {
        let (at, len) = self.random.range(MAX);
        let (how, clears, grows) = match self.random.below(4) {
            0 | 1 => (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, true, false),
            2 if self.random.below(2) == 0 => (FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, true, false),
            2 => (FallocateFlags::ZERO_RANGE, true, true),
            _ => (FallocateFlags::empty(), false, true),
        };
        self.note(format!("{number}: fallocate {how:?} {at} {len} by {by}"));
        fallocate(&self.ways[by].file, how, at as u64, len as u64).unwrap();
        if grows {
            self.model.resize(self.model.len().max(at + len), 0);
        }
        let size = self.model.len();
        if clears {
            self.model[at.min(size)..(at + len).min(size)].fill(0);
        }
    }

    /// A copy to another place of the same file.
    fn copy(&mut self, number: usize, by: usize) {
        let (from, len) = self.random.range(self.model.len());
        let (to, _) = self.random.range(MAX);
        if to + len > MAX || (from < to + len && to < from + len) {
            return;
        }
        self.note(format!("{number}: copy {from} {len} to {to} from {by}"));
        let mut done = 0;
        while done < len {
            let (mut off_in, mut off_out) = ((from + done) as u64, (to + done) as u64);
            let [a, b] = [by, 1 - by].map(|way| &self.ways[way].file);
            let copied = copy_file_range(a, Some(&mut off_in), b, Some(&mut off_out), len - done).unwrap();
            assert_ne!(copied, 0, "the source has {} bytes left", len - done);
            done += copied;
        }
        let bytes = self.model[from..from + len].to_vec();
        self.set(to, &bytes);
    }

    fn check_all(&self) {
        for Way { file, mapping } in &self.ways {
            self.same("load of all", 0, &mapping.load(0, self.model.len()));
            let mut found = vec![0; self.model.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            self.same("read of all", 0, &found);
        }
    }
}
