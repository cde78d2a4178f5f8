//! The program that notices a pause: small writes, and looks at attributes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::harness::threads::wait_until;

const FILE: &str = "program";
const BYTES: usize = 512;
/// Calls before the kill, and after the pause.
const CALLS: u64 = 20;
/// A call that takes longer began before the kill was noticed: a takeover takes longer than any other call.
const PAUSED: Duration = Duration::from_millis(5);

/// Makes the file of the program.
pub(super) fn prepare(folder: &Path) -> Result<()> {
    fs::write(folder.join(FILE), [1; BYTES]).context("cannot create a file")
}

/// Makes one write and reads the attributes.
pub(super) fn call(folder: &Path) -> Result<()> {
    let path = folder.join(FILE);
    let file = File::options().write(true).open(&path).context("cannot open the file")?;
    file.write_all_at(&[2; BYTES], 0).context("cannot write")?;
    fs::metadata(&path).context("cannot read attributes").map(drop)
}

/// A thread that makes calls.
pub(super) struct Program {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    calls: AtomicU64,
    longest_ns: AtomicU64,
}

impl Program {
    /// Returns when it has made some calls.
    pub(super) fn start(folder: &Path) -> Result<Self> {
        prepare(folder)?;
        let (shared, folder) = (Arc::new(Shared::default()), PathBuf::from(folder));
        let own = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            while !own.stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                call(&folder)?;
                let ns = u64::try_from(start.elapsed().as_nanos())?;
                own.longest_ns.fetch_max(ns, Ordering::Relaxed);
                own.calls.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let program = Self { shared, thread };
        program.wait_for(CALLS)?;
        program.shared.longest_ns.store(0, Ordering::Relaxed);
        Ok(program)
    }

    /// Waits until a call was held up and others have followed. Returns the longest one since the last time.
    pub(super) fn pause(&self) -> Result<Duration> {
        let longest = || Duration::from_nanos(self.shared.longest_ns.load(Ordering::Relaxed));
        wait_until("a call is held up by the takeover", || Ok(self.thread.is_finished() || longest() > PAUSED))?;
        self.wait_for(self.shared.calls.load(Ordering::Relaxed) + CALLS)?;
        Ok(Duration::from_nanos(self.shared.longest_ns.swap(0, Ordering::Relaxed)))
    }

    /// Stops it.
    pub(super) fn end(self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let outcome = self.thread.join().map_err(|_| anyhow!("the program has panicked"))?;
        outcome.context("a program has noticed the takeover")
    }

    /// The pause of a single takeover.
    pub(super) fn only_pause(self) -> Result<Duration> {
        let pause = self.pause()?;
        self.end()?;
        Ok(pause)
    }

    fn wait_for(&self, calls: u64) -> Result<()> {
        wait_until("the program goes on", || {
            Ok(self.thread.is_finished() || self.shared.calls.load(Ordering::Relaxed) >= calls)
        })
    }
}
