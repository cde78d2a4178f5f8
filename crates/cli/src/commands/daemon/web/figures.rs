//! The figures of all volumes as JSON, from two samples.
//!
//! A sample is taken when a client asks and the last one is old enough. All clients get the same text until then.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::commands::daemon::volumes::Volumes;
use crate::commands::survey::{Answer, Survey};
use crate::commands::top::{Snapshot, Watch};

/// The page asks once per second.
const SAMPLE_EVERY: Duration = Duration::from_millis(900);
/// Rates over a longer time, in which no client asked, would mislead.
const FORGET_AFTER: Duration = Duration::from_secs(10);
/// The volumes, and the tenants on each, that an answer has at most: those with most unwritten data.
const VOLUMES_MAX: usize = 200;
const TENANTS_MAX: usize = 50;

/// Everything that the page shows.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    /// Time between the two samples. `None` for the first, which has no rates.
    interval_ms: Option<u64>,
    daemon: Daemon<'a>,
    cache: Cache,
    /// Sources with data that an earlier daemon left, and that have not been mounted since.
    left: Vec<String>,
    /// Volumes that are not in the list.
    more_volumes: usize,
    #[serde(flatten)]
    snapshot: Snapshot,
}

#[derive(Serialize)]
struct Daemon<'a> {
    pid: u32,
    program_version: &'static str,
    host: String,
    socket: &'a PathBuf,
}

/// The cache, in bytes. The last four are all of it.
#[derive(Serialize)]
struct Cache {
    bytes: u64,
    dirty_bytes: u64,
    writeback_bytes: u64,
    clean_bytes: u64,
    free_bytes: u64,
}

/// The samples so far.
pub(super) struct Figures {
    volumes: Arc<Volumes>,
    watch: Watch,
    /// The last sample.
    last: Option<(Instant, Arc<str>)>,
}

impl Figures {
    /// Without a sample.
    pub(super) fn of(volumes: &Arc<Volumes>) -> Self {
        Self { volumes: Arc::clone(volumes), watch: Watch::default(), last: None }
    }

    /// The figures, at most [`SAMPLE_EVERY`] old.
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub(super) fn json(&mut self) -> serde_json::Result<Arc<str>> {
        let age = self.last.as_ref().map(|(at, _)| at.elapsed());
        if let Some((_, text)) = self.last.as_ref().filter(|(at, _)| at.elapsed() < SAMPLE_EVERY) {
            return Ok(Arc::clone(text));
        }
        let interval = age.filter(|age| *age < FORGET_AFTER);
        if interval.is_none() {
            self.watch = Watch::default();
        }
        let at = Instant::now();
        let text: Arc<str> = serde_json::to_string(&self.document(interval))?.into();
        self.last = Some((at, Arc::clone(&text)));
        Ok(text)
    }

    fn document(&mut self, interval: Option<Duration>) -> Document<'_> {
        let statuses = self.volumes.mounted().into_iter().map(|(_, session)| session.status());
        let answers = statuses.map(|status| Answer { at: Instant::now(), status }).collect();
        let mut snapshot = self.watch.add(Survey { answers, ..Survey::default() });
        let more_volumes = snapshot.keep_fullest(VOLUMES_MAX, TENANTS_MAX);
        let shared = &self.volumes.shared;
        let engine = shared.engine.status();
        Document {
            version: 1,
            interval_ms: interval.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            daemon: Daemon {
                pid: std::process::id(),
                program_version: env!("CARGO_PKG_VERSION"),
                host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
                socket: &shared.socket,
            },
            cache: Cache {
                bytes: engine.arena_bytes,
                dirty_bytes: engine.dirty_bytes,
                writeback_bytes: engine.writeback_bytes,
                clean_bytes: engine.clean_bytes,
                free_bytes: engine.free_bytes,
            },
            left: self.volumes.left(),
            more_volumes,
            snapshot,
        }
    }
}
