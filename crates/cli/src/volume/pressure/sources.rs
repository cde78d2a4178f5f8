//! The sources of memory pressure: kernel files that poll(2) waits for.
//!
//! | File | Scope | Reports |
//! |---|---|---|
//! | `memory.pressure` | our cgroup, version 2 | tasks in it stall for memory |
//! | `memory.events`, where the first one is not ours to write | the same | it is at one of its limits |
//! | `memory.pressure_level` | our cgroup, version 1 | reclaim in it finds little |
//! | `/proc/pressure/memory` | the machine | tasks stall for memory |

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;
use slackwater_host::Printable as _;
use slackwater_host::memory_cgroups;

const MACHINE: &str = "/proc/pressure/memory";
/// Some task stalls for 15 % of a window: microseconds in a window of microseconds. A window that is not a multiple of
/// two seconds needs CAP_SYS_RESOURCE.
const TRIGGERS: [&str; 2] = ["some 150000 1000000", "some 300000 2000000"];
/// Larger than `memory.events`.
const EVENTS_BYTES: usize = 4096;

/// An open source of memory pressure.
pub(super) struct Source {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    /// A descriptor with a trigger. Polling it consumes the report.
    Stalls(File),
    /// Read after each change, with the number of limits met until the last one.
    Events(File, u64),
    /// A counter that the kernel increments.
    Level(OwnedFd),
}

/// The result of checking a source.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Report {
    Nothing,
    Pressure,
    /// The source reports nothing any more: the cgroup is gone.
    Gone,
}

/// All sources for this process.
pub(super) fn find() -> Vec<Source> {
    find_in(&memory_cgroups(), Path::new(MACHINE))
}

/// The sources of the `cgroups`, nearest first, and of the whole machine. A file that cannot be opened is skipped.
fn find_in(cgroups: &[PathBuf], machine: &Path) -> Vec<Source> {
    let nearest = |name: &str| cgroups.iter().map(|cgroup| cgroup.join(name)).find(|path| path.exists());
    let of_cgroup = |name: &str, open| Source::open(nearest(name)?, open);
    let unified = of_cgroup("memory.pressure", stalls).or_else(|| of_cgroup("memory.events", events));
    let first = of_cgroup("memory.pressure_level", level);
    unified.into_iter().chain(first).chain(Source::open(machine.to_owned(), stalls)).collect()
}

impl Source {
    fn open(path: PathBuf, open: fn(&Path) -> io::Result<Kind>) -> Option<Self> {
        match open(&path) {
            Ok(kind) => Some(Self { path, kind }),
            Err(error) => {
                tracing::debug!(path = %path.printable(), %error, "this source of memory pressure is not available");
                None
            }
        }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor to poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Stalls(file) | Kind::Events(file, _) => file.as_fd(),
            Kind::Level(counter) => counter.as_fd(),
        }
    }

    /// The events to poll for.
    pub(super) fn interest(&self) -> PollFlags {
        match &self.kind {
            Kind::Stalls(_) | Kind::Events(..) => PollFlags::PRI,
            Kind::Level(_) => PollFlags::IN,
        }
    }

    /// The meaning of the `revents` of poll(2).
    pub(super) fn check(&mut self, revents: PollFlags) -> Report {
        if !revents.intersects(self.interest() | PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return Report::Nothing;
        }
        match &mut self.kind {
            Kind::Stalls(_) if revents.contains(PollFlags::ERR) => Report::Gone,
            Kind::Stalls(_) => Report::Pressure,
            // A change is reported as an error as well.
            Kind::Events(file, before) => match read_events(file) {
                Err(_) => Report::Gone,
                Ok(now) if now > std::mem::replace(before, now) => Report::Pressure,
                Ok(_) => Report::Nothing,
            },
            Kind::Level(counter) => match rustix::io::read(counter, &mut [0; 8]) {
                Ok(8) => Report::Pressure,
                Err(Errno::AGAIN | Errno::INTR) => Report::Nothing,
                Ok(_) | Err(_) => Report::Gone,
            },
        }
    }
}

#[cfg(test)]
impl Source {
    /// A counter, and the kernel's end of it.
    pub(super) fn counter() -> (Self, OwnedFd) {
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let kernel = counter.try_clone().unwrap();
        (Self { path: PathBuf::new(), kind: Kind::Level(counter) }, kernel)
    }

    /// A source that is gone when the other end is closed.
    pub(super) fn pipe() -> (Self, io::PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        (Self { path: PathBuf::new(), kind: Kind::Level(reader.into()) }, writer)
    }
}

fn stalls(path: &Path) -> io::Result<Kind> {
    let mut outcome = Err(Errno::INVAL.into());
    for trigger in TRIGGERS {
        // Each trigger needs its own descriptor.
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        outcome = file.write_all(format!("{trigger}\0").as_bytes()).map(|()| Kind::Stalls(file));
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn events(path: &Path) -> io::Result<Kind> {
    let file = File::open(path)?;
    let met = read_events(&file)?;
    Ok(Kind::Events(file, met))
}

fn read_events(file: &File) -> io::Result<u64> {
    let mut text = [0; EVENTS_BYTES];
    let len = file.read_at(&mut text, 0)?;
    Ok(limits_met(&String::from_utf8_lossy(&text[..len])))
}

/// How often a limit was met, according to `memory.events`: lines of a name and a count.
fn limits_met(events: &str) -> u64 {
    let count = |line: &str| match line.split_once(' ')? {
        ("high" | "max" | "oom", count) => count.trim().parse::<u64>().ok(),
        _ => None,
    };
    events.lines().filter_map(count).fold(0, u64::saturating_add)
}

fn level(path: &Path) -> io::Result<Kind> {
    let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let file = File::open(path)?;
    // At this level reclaim has to search long for free pages, but nothing has to be killed yet.
    let registration = format!("{} {} medium", counter.as_raw_fd(), file.as_raw_fd());
    fs::write(path.with_file_name("cgroup.event_control"), registration)?;
    Ok(Kind::Level(counter))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Linux 6.18.
    const EVENTS: &str = "low 7\nhigh 1200\nmax 34\noom 1\noom_kill 1\noom_group_kill 0\nsock_throttled 5\n";

    /// A directory that is removed with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("slackwater-pressure-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn limits_are_counted_and_protection_is_not() {
        assert_eq!(limits_met(EVENTS), 1235);
        assert_eq!(limits_met("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"), 0);
        assert_eq!(limits_met("high 18446744073709551615\nmax 1\n"), u64::MAX);
        for nonsense in ["", "high", "high \n", "max -1\n", "highest 3\n", "\0\0"] {
            assert_eq!(limits_met(nonsense), 0, "{nonsense:?}");
        }
    }

    #[test]
    fn a_limit_that_is_met_again_is_pressure_and_another_change_is_not() {
        let scratch = Scratch::new("events");
        let path = scratch.0.join("memory.events");
        fs::write(&path, EVENTS).unwrap();
        let mut source = Source { kind: events(&path).unwrap(), path: path.clone() };
        let changed = PollFlags::PRI | PollFlags::ERR;
        assert_eq!(source.check(changed), Report::Nothing, "as it was when it was opened");
        fs::write(&path, EVENTS.replace("low 7", "low 8")).unwrap();
        assert_eq!(source.check(changed), Report::Nothing);
        fs::write(&path, EVENTS.replace("high 1200", "high 1201")).unwrap();
        assert_eq!(source.check(PollFlags::empty()), Report::Nothing);
        assert_eq!(source.check(changed), Report::Pressure);
        assert_eq!(source.check(changed), Report::Nothing);
    }

    #[test]
    fn one_read_consumes_all_increments_of_a_counter() {
        let (mut source, kernel) = Source::counter();
        rustix::io::write(&kernel, &3_u64.to_ne_bytes()).unwrap();
        assert_eq!([(); 2].map(|()| source.check(PollFlags::IN)), [Report::Pressure, Report::Nothing]);
    }

    #[test]
    fn a_trigger_reports_pressure_until_its_cgroup_is_gone() {
        let mut source = Source { path: PathBuf::new(), kind: Kind::Stalls(File::open("/dev/null").unwrap()) };
        assert_eq!(source.check(PollFlags::PRI), Report::Pressure);
        assert_eq!(source.check(PollFlags::empty()), Report::Nothing);
        assert_eq!(source.check(PollFlags::PRI | PollFlags::ERR), Report::Gone);
    }

    #[test]
    fn the_nearest_cgroup_is_watched_and_missing_files_are_skipped() {
        let scratch = Scratch::new("nearest");
        let (own, above) = (scratch.0.join("above/own"), scratch.0.join("above"));
        fs::create_dir_all(&own).unwrap();
        let levels = [own.clone(), above.clone()];
        let machine = scratch.0.join("pressure");
        let paths = || find_in(&levels, &machine).iter().map(|source| source.path().to_owned()).collect::<Vec<_>>();
        assert!(paths().is_empty(), "neither version, no PSI");
        fs::write(above.join("memory.events"), EVENTS).unwrap();
        assert_eq!(paths(), [above.join("memory.events")]);
        fs::write(own.join("memory.events"), EVENTS).unwrap();
        assert_eq!(paths(), [own.join("memory.events")]);
        // A regular file accepts the trigger like any other data.
        fs::write(own.join("memory.pressure"), "").unwrap();
        fs::write(&machine, "").unwrap();
        assert_eq!(paths(), [own.join("memory.pressure"), machine.clone()]);
        assert_eq!(fs::read(&machine).unwrap(), format!("{}\0", TRIGGERS[0]).as_bytes());
    }

    #[test]
    fn finding_sources_never_fails_on_this_machine() {
        for source in find() {
            assert!(source.path().exists(), "{}", source.path().printable());
        }
    }
}
