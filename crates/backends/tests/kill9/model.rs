//! The expected content of the files, and the possible results of the operations under way.

use std::collections::BTreeMap;

use slackwater_testkit::Random;

pub(crate) const THREADS: usize = 3;
pub(crate) const FILES_PER_THREAD: u64 = 8;
/// Three threads with eight files of this size each need twice the size of the cache.
const FILE_BYTES: u64 = 1 << 20;

/// The next operation of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Write { at: u64, len: usize, seed: u64 },
    Append { len: usize, seed: u64 },
    Truncate { len: u64 },
    Fsync,
    Read { at: u64, len: usize },
    Unlink,
    Create,
    SyncVolume,
}

pub(crate) fn name(thread: usize, file: u64) -> String {
    format!("t{thread}f{file}")
}

pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..THREADS).flat_map(|thread| (0..FILES_PER_THREAD).map(move |file| name(thread, file)))
}

/// Draws the operations of one thread.
pub(crate) struct Steps {
    random: Random,
}

impl Steps {
    pub(crate) fn new(seed: u64, thread: usize) -> Self {
        Self { random: Random::new(seed.wrapping_mul(THREADS as u64) + thread as u64) }
    }

    /// The next file and the operation on it. `size_of` returns the size of a file that exists.
    pub(crate) fn next(&mut self, size_of: impl FnOnce(u64) -> Option<u64>) -> (u64, Step) {
        let random = &mut self.random;
        let file = random.below(FILES_PER_THREAD);
        let Some(size) = size_of(file) else { return (file, Step::Create) };
        let len = match random.below(4) {
            0 => random.below(100) as usize + 1,
            1 => random.below(300_000) as usize + 1,
            _ => random.below(20_000) as usize + 1,
        };
        let seed = random.next();
        let step = match random.below(100) {
            0..40 => Step::Write { at: random.below(FILE_BYTES), len, seed },
            // Repeated writes to the same pages meet pages under write-back.
            40..60 => Step::Write { at: random.below(3) * 4096 + random.below(100), len: len % 9000 + 1, seed },
            60..75 if size < FILE_BYTES => Step::Append { len, seed },
            60..80 => Step::Read { at: random.below(FILE_BYTES), len },
            80..88 => Step::Truncate { len: random.below(FILE_BYTES) },
            88..90 => Step::Truncate { len: 0 },
            90..94 => Step::Fsync,
            94..97 => Step::Unlink,
            97 => Step::SyncVolume,
            _ => Step::Truncate { len: size.saturating_sub(random.below(5000)) },
        };
        (file, step)
    }
}

/// Bytes that differ from write to write and from sector to sector, and are never zero: a written byte differs from a
/// hole.
pub(crate) fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let sector: Vec<u8> = (0..64).flat_map(|_| (random.next() | 0x0101_0101_0101_0101).to_le_bytes()).collect();
    let mut bytes = sector.repeat(len / sector.len() + 1);
    for sector in bytes.chunks_mut(sector.len()) {
        sector[..8].copy_from_slice(&(random.next() | 0x0101_0101_0101_0101).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The files, and the operation of each thread that may have been under way.
#[derive(Default)]
pub(crate) struct Model {
    files: BTreeMap<String, Vec<u8>>,
    under_way: BTreeMap<String, Step>,
}

impl Model {
    /// A child was killed after `returned` operations of each thread.
    pub(crate) fn learn(&mut self, seed: u64, returned: [u64; THREADS]) {
        self.under_way.clear();
        for (thread, count) in returned.into_iter().enumerate() {
            let mut steps = Steps::new(seed, thread);
            for nth in 0..=count {
                let size_of = |file| self.files.get(&name(thread, file)).map(|bytes| bytes.len() as u64);
                let (file, step) = steps.next(size_of);
                let name = name(thread, file);
                if nth == count {
                    self.under_way.insert(name, step);
                } else {
                    self.apply(name, step);
                }
            }
        }
    }

    fn apply(&mut self, name: String, step: Step) {
        match step {
            Step::Create => drop(self.files.insert(name, Vec::new())),
            Step::Unlink => drop(self.files.remove(&name)),
            Step::Fsync | Step::SyncVolume | Step::Read { .. } => {}
            Step::Truncate { len } => self.files.get_mut(&name).unwrap().resize(len as usize, 0),
            Step::Write { at, len, seed } => {
                write(self.files.get_mut(&name).unwrap(), at as usize, &payload(seed, len))
            }
            Step::Append { len, seed } => self.files.get_mut(&name).unwrap().extend(payload(seed, len)),
        }
    }

    /// Compares the content that the engine finds, and accepts it as the file's content if it is possible.
    pub(crate) fn compare_and_adopt(&mut self, name: &str, found: Option<Vec<u8>>, seed: u64) {
        let (before, step) = (self.files.get(name), self.under_way.get(name));
        let verdict = judge(before, step, found.as_ref());
        verdict.unwrap_or_else(|what| {
            let size = before.map(Vec::len);
            panic!("seed {seed}, file {name}: {what}; acknowledged size {size:?}, under way {step:?}")
        });
        match found {
            Some(bytes) => drop(self.files.insert(name.to_owned(), bytes)),
            None => drop(self.files.remove(name)),
        }
    }

    /// Compares a file of the directory with the content that the engine found.
    pub(crate) fn compare(&self, name: &str, found: Option<Vec<u8>>, seed: u64) {
        judge(self.files.get(name), None, found.as_ref())
            .unwrap_or_else(|what| {
                let lost = self.files.get(name).zip(found.as_ref()).and_then(|(wanted, found)| wanted.get(found.len()..));
                let is_hole = lost.map(|lost| lost.iter().all(|byte| *byte == 0));
                let step = self.under_way.get(name);
                panic!("seed {seed}, file {name} after the unmount: {what}; lost end is zeroes: {is_hole:?}, under way {step:?}")
            });
    }
}

/// Whether `found` is `before`, with or without a part of `step`.
fn judge(before: Option<&Vec<u8>>, step: Option<&Step>, found: Option<&Vec<u8>>) -> Result<(), String> {
    let same = || match (before, found) {
        (None, None) => Ok(()),
        (Some(before), Some(found)) => same_bytes(before, found),
        (before, found) => Err(format!("exists: {}, should: {}", found.is_some(), before.is_some())),
    };
    match (step, before, found) {
        (Some(Step::Unlink), Some(_), None) => Ok(()),
        (Some(Step::Create), None, Some(found)) if found.is_empty() => Ok(()),
        (Some(Step::Truncate { len }), Some(before), Some(found)) if found.len() as u64 == *len => {
            let mut after = before.clone();
            after.resize(*len as usize, 0);
            same_bytes(&after, found)
        }
        (Some(Step::Write { at, len, seed }), Some(before), Some(found)) => {
            a_part(before, *at as usize, &payload(*seed, *len), found)
        }
        (Some(Step::Append { len, seed }), Some(before), Some(found)) => {
            a_part(before, before.len(), &payload(*seed, *len), found)
        }
        _ => same(),
    }
}

/// Whether `found` is `before` with some of the bytes of a write, at any size on the way.
fn a_part(before: &[u8], at: usize, part: &[u8], found: &[u8]) -> Result<(), String> {
    let mut after = before.to_vec();
    write(&mut after, at, part);
    if found.len() < before.len() || found.len() > after.len() {
        return Err(format!("{} bytes, should be {} to {}", found.len(), before.len(), after.len()));
    }
    let mut old = before.to_vec();
    old.resize(found.len(), 0);
    // Byte by byte only where the write is: comparing megabytes that way is slow in a test build.
    let (from, to) = (at.min(found.len()), (at + part.len()).min(found.len()));
    same_bytes(&old[..from], &found[..from])?;
    same_bytes(&old[to..], &found[to..])?;
    match (from..to).find(|&nth| found[nth] != old[nth] && found[nth] != after[nth]) {
        Some(nth) => Err(format!("byte {nth} is neither the old nor the new one; the write is at {at}")),
        None => Ok(()),
    }
}

fn same_bytes(wanted: &[u8], found: &[u8]) -> Result<(), String> {
    if wanted == found {
        return Ok(());
    }
    let first = wanted.iter().zip(found).position(|(a, b)| a != b);
    let zero = first.map(|at| found[at] == 0);
    let count = wanted.iter().zip(found).filter(|(a, b)| a != b).count();
    Err(format!(
        "{} bytes, should be {}; {count} differ, first at {first:?} (zero: {zero:?})",
        found.len(),
        wanted.len()
    ))
}

fn write(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
    bytes.resize(bytes.len().max(at + part.len()), 0);
    bytes[at..at + part.len()].copy_from_slice(part);
}
