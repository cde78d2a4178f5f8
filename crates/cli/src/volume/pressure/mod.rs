//! Memory pressure: when the machine or our cgroup is short of memory, unused objects are freed.
//!
//! A thread waits for a report of the kernel ([`sources`]) and uses no CPU time meanwhile. At each report it makes the
//! engine shrink, with increasing priority while the pressure lasts ([`shrink_priority`]). Unused inodes can be freed;
//! the memory for pages has a fixed size.

mod shrink_priority;
mod sources;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use slackwater::Engine;
use slackwater_control::protocol;

use crate::volume::process::exceed_limits;

use self::shrink_priority::ShrinkPriority;
use self::sources::{Report, Source};

/// Minimum time between two shrinks.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Number of reports, and objects freed.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// The sources that are watched.
    sources: OnceLock<Vec<String>>,
    events: AtomicU64,
    freed: AtomicU64,
}

impl Figures {
    /// In the form of the protocol.
    pub(crate) fn report(&self) -> protocol::MemoryPressure {
        protocol::MemoryPressure {
            sources: self.sources.get().cloned().unwrap_or_default(),
            events: self.events.load(Ordering::Relaxed),
            freed_objects: self.freed.load(Ordering::Relaxed),
        }
    }
}

/// The kernel files that report memory pressure to this process.
pub(crate) fn sources() -> Vec<String> {
    names(&sources::find())
}

fn names(sources: &[Source]) -> Vec<String> {
    sources.iter().map(|source| source.path().to_string_lossy().into_owned()).collect()
}

/// The listening thread. It shrinks nothing any more when this is dropped, and ends soon after that: closing the kernel
/// files waits for grace periods of the kernel, some ten milliseconds each.
pub(crate) struct Listener {
    end: Arc<OwnedFd>,
    /// Disconnected once the thread has dropped what it shrinks by.
    released: Receiver<()>,
}

impl Listener {
    /// Shrinks `engine` at every report of pressure, with a priority from 12 (a little) to 0 (everything). The thread
    /// opens the sources, which may take as long as closing them, and ends at once if there are none. `None` if there
    /// is no thread.
    pub(crate) fn start(figures: Arc<Figures>, engine: Engine) -> Option<Self> {
        Self::on(sources::find, figures, move |priority| engine.shrink(priority))
    }

    /// Calls `shrink` at every report, which returns the number of freed objects.
    fn on(
        find: impl FnOnce() -> Vec<Source> + Send + 'static,
        figures: Arc<Figures>,
        shrink: impl Fn(u32) -> u64 + Send + 'static,
    ) -> Option<Self> {
        let start = || -> std::io::Result<Self> {
            let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            let ended = Arc::clone(&end);
            let (releasing, released) = channel();
            let run = move || {
                exceed_limits(true); // some triggers need it
                let mut sources = find();
                exceed_limits(false);
                let _ = figures.sources.set(names(&sources));
                if sources.is_empty() {
                    tracing::debug!("no source of memory pressure is available");
                } else {
                    listen(&mut sources, &ended, &figures, &shrink);
                }
                drop(shrink);
                drop(releasing);
                drop(sources);
            };
            thread::Builder::new().name("sw-pressure".to_owned()).spawn(run)?;
            Ok(Self { end, released })
        };
        start().inspect_err(|error| tracing::debug!(%error, "cannot watch memory pressure")).ok()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It is a counter to which nothing else adds.
        let _ = rustix::io::write(&*self.end, &1_u64.to_ne_bytes());
        // Nothing is sent: the thread has dropped its end, also by a panic, which it has reported.
        let _ = self.released.recv();
    }
}

fn listen(sources: &mut Vec<Source>, end: &OwnedFd, figures: &Figures, shrink: &dyn Fn(u32) -> u64) {
    let mut shrink_priority = ShrinkPriority::default();
    while let Some(is_pressed) = wait(sources, end) {
        if !is_pressed {
            continue;
        }
        let priority = shrink_priority.beat(Instant::now());
        figures.events.fetch_add(1, Ordering::Relaxed);
        let freed = shrink(priority);
        figures.freed.fetch_add(freed, Ordering::Relaxed);
        tracing::debug!(priority, freed, "memory is short");
        if is_over(end, &PAUSE) {
            return;
        }
    }
}

/// Waits for the next report, and drops sources that are gone. `None`: the listener is dropped.
fn wait(sources: &mut Vec<Source>, end: &OwnedFd) -> Option<bool> {
    let mut polled: Vec<_> =
        sources.iter().map(|source| PollFd::from_borrowed_fd(source.fd(), source.interest())).collect();
    polled.push(PollFd::new(end, PollFlags::IN));
    match poll(&mut polled, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => {
            tracing::debug!(%error, "memory pressure is no longer watched");
            return None;
        }
    }
    let answers: Vec<_> = polled.iter().map(PollFd::revents).collect();
    let (last, answers) = answers.split_last()?;
    if !last.is_empty() {
        return None;
    }
    let mut is_pressed = false;
    let mut answers = answers.iter();
    sources.retain_mut(|source| match source.check(answers.next().copied().unwrap_or(PollFlags::empty())) {
        Report::Nothing => true,
        Report::Pressure => {
            is_pressed = true;
            true
        }
        Report::Gone => false,
    });
    Some(is_pressed)
}

/// Whether the listener is dropped within `time`.
fn is_over(end: &OwnedFd, time: &Timespec) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)];
    poll(&mut polled, Some(time)).is_ok() && !polled[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Limit for every wait. Nothing takes that long, even on a loaded machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn each_report_shrinks_until_the_listener_is_dropped() {
        let (source, kernel) = Source::counter();
        let figures = Arc::new(Figures::default());
        let (shrunk, priorities) = mpsc::channel();
        let shrink = move |priority| shrunk.send(priority).map_or(0, |()| 7);
        let listener = Listener::on(|| vec![source], Arc::clone(&figures), shrink).unwrap();
        let press = || {
            rustix::io::write(&kernel, &1_u64.to_ne_bytes()).unwrap();
            priorities.recv_timeout(PATIENCE).unwrap()
        };
        assert_eq!(press(), 12, "a little first");
        assert!([(); 3].iter().all(|()| press() <= 12));
        drop(listener);
        assert!(priorities.recv().is_err(), "the thread has ended, and with it what it shrank by");
        let report = figures.report();
        assert_eq!((report.events, report.freed_objects, report.sources.len()), (4, 28, 1));
    }

    #[test]
    fn a_source_that_is_gone_is_dropped() {
        let (source, kernel) = Source::counter();
        let (gone, writer) = Source::pipe();
        let mut sources = vec![gone, source];
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        drop(writer);
        assert_eq!(wait(&mut sources, &end), Some(false), "a pipe without a writer says end of file");
        assert_eq!(sources.len(), 1);
        rustix::io::write(&kernel, &1_u64.to_ne_bytes()).unwrap();
        assert_eq!(wait(&mut sources, &end), Some(true));
        rustix::io::write(&end, &1_u64.to_ne_bytes()).unwrap();
        assert_eq!(wait(&mut sources, &end), None);
        assert!(is_over(&end, &PAUSE));
    }

    #[test]
    fn without_sources_nothing_is_shrunk() {
        let figures = Arc::new(Figures::default());
        drop(Listener::on(Vec::new, Arc::clone(&figures), |_| unreachable!("it is never called")));
        assert_eq!(figures.report(), protocol::MemoryPressure::default());
    }
}
