//! Programs that work on a volume until it fails, and what must be left of their work.
//!
//! *Savers* replace a file again and again by writing a new one and renaming it. A *maker* makes new files, one after
//! the other, without replacing any. All of them sync now and then.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::fs::RawDir;

use crate::rig::{PATIENCE, bytes};

const SAVERS: usize = 2;
/// The programs of a volume: savers, and the maker as the last.
const PROGRAMS: usize = SAVERS + 1;
const MAKER: usize = SAVERS;
/// Files of a directory, so few that one call lists them.
const FILES_PER_DIRECTORY: u64 = 20;
const SAVES_PER_SYNC: u64 = 5;
const FILES_PER_SYNC: u64 = 30;

/// The steps of one program, numbered from 1 on through all its lives.
pub(crate) struct Work {
    /// The steps of earlier lives.
    before: u64,
    begun: Vec<Instant>,
    /// When each step ended: shorter than `begun` by the step that failed.
    ended: Vec<Instant>,
    /// The last step that an fsync covers.
    durable: u64,
    /// When the last fsync began that succeeded.
    synced: Option<Instant>,
    pub(crate) error: io::Error,
}

impl Work {
    /// Takes steps until one fails. A step returns when its fsync began, if it has one.
    fn until_failure(before: u64, step: impl Fn(u64) -> io::Result<Option<Instant>>) -> Self {
        let (mut begun, mut ended, mut durable, mut synced) = (Vec::new(), Vec::new(), before, None);
        let deadline = Instant::now() + PATIENCE;
        loop {
            begun.push(Instant::now());
            match step(before + begun.len() as u64) {
                Ok(sync) => {
                    ended.push(Instant::now());
                    if sync.is_some() {
                        (durable, synced) = (before + ended.len() as u64, sync);
                    }
                }
                Err(error) => return Self { before, begun, ended, durable, synced, error },
            }
            assert!(Instant::now() < deadline, "the volume is gone, and no call fails");
        }
    }

    fn returned(&self) -> u64 {
        self.before + self.ended.len() as u64
    }

    fn at(&self, of: &[Instant], step: u64) -> Option<Instant> {
        of.get(step.checked_sub(self.before + 1)? as usize).copied()
    }
}

/// Programs at work.
pub(crate) struct Programs(Vec<JoinHandle<Work>>);

impl Programs {
    /// Starts them on the volume at `dir`, where `state` was found.
    pub(crate) fn start(dir: &Path, state: &State) -> Self {
        let start = |program| {
            let (dir, before) = (dir.to_path_buf(), state.steps[program]);
            thread::spawn(move || match program {
                MAKER => Work::until_failure(before, |nth| make(&dir, nth)),
                _ => Work::until_failure(before, |nth| save(&dir, program, nth)),
            })
        };
        Self((0..PROGRAMS).map(start).collect())
    }

    /// Waits until each of them has failed.
    pub(crate) fn join(self) -> Vec<Work> {
        self.0.into_iter().map(|program| program.join().unwrap()).collect()
    }
}

fn saved_path(dir: &Path, saver: usize) -> PathBuf {
    dir.join(format!("saved-{saver}"))
}

/// The file's content in its `nth` version, which begins with the number. Some are uploaded as segments, and some travel
/// with a commit.
fn version(saver: usize, nth: u64) -> Vec<u8> {
    let seed = (saver as u64) << 32 | nth;
    let most = if seed.is_multiple_of(3) { 200_000 } else { 9_000 };
    let mut version = nth.to_le_bytes().to_vec();
    version.extend(bytes(seed, (seed.wrapping_mul(0x9e37_79b9) % most) as usize));
    version
}

fn save(dir: &Path, saver: usize, nth: u64) -> io::Result<Option<Instant>> {
    let temporary = dir.join(format!("saved-{saver}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(&version(saver, nth))?;
    if nth == 1 {
        // It replaces nothing. Only an fsync orders its data before its name then.
        file.sync_all()?;
    }
    drop(file);
    fs::rename(&temporary, saved_path(dir, saver))?;
    if !nth.is_multiple_of(SAVES_PER_SYNC) {
        return Ok(None);
    }
    let synced = Instant::now();
    File::open(dir)?.sync_all()?;
    Ok(Some(synced))
}

fn made_path(dir: &Path, nth: u64) -> PathBuf {
    dir.join(format!("made-{}", (nth - 1) / FILES_PER_DIRECTORY)).join(nth.to_string())
}

fn made_bytes(nth: u64) -> Vec<u8> {
    bytes(nth, 100)
}

fn make(dir: &Path, nth: u64) -> io::Result<Option<Instant>> {
    let path = made_path(dir, nth);
    if nth % FILES_PER_DIRECTORY == 1 {
        fs::create_dir_all(path.parent().expect("a directory"))?;
    }
    let mut file = File::create_new(&path)?;
    file.write_all(&made_bytes(nth))?;
    if !nth.is_multiple_of(FILES_PER_SYNC) {
        return Ok(None);
    }
    let synced = Instant::now();
    file.sync_all()?;
    Ok(Some(synced))
}

/// The state of a volume: the last step of each program whose result is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    steps: [u64; PROGRAMS],
}

impl State {
    /// Reads the volume at `dir`. Asserts that each saved file is a whole version, and that no made file is missing before
    /// the last one.
    ///
    /// # Errors
    /// A call failed.
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let mut steps = [0; PROGRAMS];
        for (saver, nth) in steps[..SAVERS].iter_mut().enumerate() {
            let found = match fs::read(saved_path(dir, saver)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            let number = found.first_chunk().map(|number| u64::from_le_bytes(*number));
            let whole = number.filter(|nth| found == version(saver, *nth));
            *nth = whole.unwrap_or_else(|| panic!("saver {saver}: {} bytes, no version: {number:?}", found.len()));
        }
        steps[MAKER] = made(dir)?;
        Ok(Self { steps })
    }

    /// Reads the volume as [`State::read`] does, and asserts that no call fails.
    #[track_caller]
    pub(crate) fn of(dir: &Path) -> Self {
        Self::read(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
    }

    /// Whether no program is behind `other`.
    pub(crate) fn is_not_before(&self, other: &Self) -> bool {
        self.steps.iter().zip(&other.steps).all(|(own, other)| own >= other)
    }

    /// Asserts that this is what `works` may have left at `dir`: the state of one moment, in which everything is there
    /// that was synced before.
    #[track_caller]
    pub(crate) fn check_after_crash(&self, dir: &Path, works: &[Work]) {
        self.check(works, |work| work.durable);
        // An fsync of any file covers all names before it (P1).
        let begun = works.iter().zip(self.steps).filter_map(|(work, step)| work.at(&work.begun, step).max(work.synced));
        let ended = works.iter().zip(self.steps).filter_map(|(work, step)| work.at(&work.ended, step + 1));
        if let (Some(last), Some(first)) = (begun.max(), ended.min()) {
            assert!(last <= first, "{self:?} mixes moments: a step that ended is missing, and a later one is there");
        }
        check_made_bytes(dir, &works[MAKER], works[MAKER].durable, FILES_PER_SYNC);
    }

    /// Asserts that this is what `works` left at `dir`: everything that returned is there.
    #[track_caller]
    pub(crate) fn check_after_kill(&self, dir: &Path, works: &[Work]) {
        self.check(works, Work::returned);
        check_made_bytes(dir, &works[MAKER], works[MAKER].returned(), 1);
    }

    #[track_caller]
    fn check(&self, works: &[Work], least: fn(&Work) -> u64) {
        for (program, (work, step)) in works.iter().zip(self.steps).enumerate() {
            let allowed = least(work)..=work.before + work.begun.len() as u64;
            assert!(allowed.contains(&step), "program {program}: {allowed:?} are allowed, and step {step} is found");
        }
    }

    /// Whether a program has done nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.steps.contains(&0)
    }

    /// Asserts that every program has done something.
    #[track_caller]
    pub(crate) fn assert_work(&self) {
        assert!(!self.is_idle(), "nothing was done: {self:?}");
    }
}

/// The number of made files. They are listed from the last to the first, so that a writer that goes on leaves no gap.
fn made(dir: &Path) -> io::Result<u64> {
    let mut directories = Vec::new();
    for entry in fs::read_dir(dir)? {
        directories
            .extend(entry?.file_name().to_str().and_then(|name| name.strip_prefix("made-")?.parse::<u64>().ok()));
    }
    directories.sort_unstable();
    let mut last = None;
    for directory in directories.into_iter().rev() {
        let mut found = listed_at_once(&dir.join(format!("made-{directory}")))?;
        found.sort_unstable();
        let first = directory * FILES_PER_DIRECTORY + 1;
        assert!(
            found.iter().copied().eq((first..).take(found.len())),
            "a file is missing in directory {directory}: {found:?}"
        );
        let is_whole = found.len() as u64 == FILES_PER_DIRECTORY;
        assert!(last.is_none() || is_whole, "files are missing at the end of directory {directory}: {found:?}");
        if last.is_none() {
            last = found.last().copied();
        }
    }
    Ok(last.unwrap_or(0))
}

/// The numbers in a directory, from one call: a second call, even for the end, may show a later moment.
fn listed_at_once(dir: &Path) -> io::Result<Vec<u64>> {
    let opened = File::open(dir)?;
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(opened, buffer.spare_capacity_mut());
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            found.push(name.to_str().ok().and_then(|name| name.parse().ok()).expect("a number"));
        }
        if entries.is_buffer_empty() {
            break;
        }
    }
    Ok(found)
}

/// Checks every `nth` file that was made in this life, up to the last one.
#[track_caller]
fn check_made_bytes(dir: &Path, maker: &Work, last: u64, nth: u64) {
    for file in (maker.before + 1..=last).filter(|file| file.is_multiple_of(nth)) {
        let found = fs::read(made_path(dir, file)).unwrap();
        assert!(found == made_bytes(file), "{} bytes in made file {file}", found.len());
    }
}
