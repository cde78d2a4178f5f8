//! The keeper. It has one thread and waits in one place: for a signal, a message of the server, or the server's end.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, kill_process, pidfd_open, setrlimit, setsid};
use slackwater_fuse::Printable as _;

use crate::arguments::MountArguments;
use crate::commands::mount::background::{self, Departure};
use crate::exit::{Failure, Reason};
use crate::keeper::client::monotonic_ns;
use crate::keeper::estate::{Estate, Held, Parts};
use crate::keeper::link::Link;
use crate::keeper::pace::Pace;
use crate::keeper::programs::{Program, Programs};
use crate::keeper::protocol::{PROTOCOL_VERSION, Part, ToKeeper, ToServer};
use crate::keeper::remains;
use crate::os::killed_process::{abort_connections_of, end_connection_at};
use crate::os::mount_table::{is_slackwater, mount_at};
use crate::os::sys::{self, Signal, Signals};
use crate::output::terminal::errln;
use crate::volume::endpoints;

/// Servers that may fail in a row before one completes a takeover.
const FAILURES_MAX: u32 = 10;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(100);
/// A program to which the mount is upgraded has to say hello within this time.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How often the threads of a dead server are looked at.
const LOOK: Duration = Duration::from_millis(1);
/// After this time a message says that they hold a takeover up.
const SAID_AFTER: Duration = Duration::from_secs(2);
/// How long a server that never completed the mount may take to end, before and after its connection is aborted.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// Looks after which a process of harmless threads is not about to end.
const STAYS_AFTER: u32 = 5;
/// The exit status of a program in Rust whose main thread has panicked.
const PANICKED: i32 = 101;
/// The number of SIGKILL.
const KILL: i32 = libc::SIGKILL;
/// Only the death of one thread, which is not the first: the others may wait for the successor, and the end of the first
/// is reported after theirs. Kernel: `PIDFD_THREAD`, from Linux 6.9 on.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());

/// How a server has ended.
enum End {
    /// By itself, with this status.
    Exited(i32),
    /// By a signal or a panic; the text is for people.
    Died(String),
    /// By SIGKILL, which comes from outside.
    Killed(String),
}

/// A running server.
struct Server {
    child: Child,
    /// `None` once it has closed its end.
    link: Option<Link>,
    /// Readable when it is dying.
    end: OwnedFd,
    /// It takes signals.
    is_ready: bool,
    /// When it completed the mount.
    holds_since: Option<Instant>,
}

/// The keeper.
struct Keeper {
    arguments: Vec<OsString>,
    programs: Programs,
    pace: Pace,
    signals: Signals,
    signal_fd: OwnedFd,
    estate: Estate,
    /// Signals for a server that does not take them yet.
    pending: Vec<Signal>,
    /// A signal that ends the mount in any case. A server may die before it has.
    ending: Option<Signal>,
    /// Dead servers that have not quite ended.
    remains: Vec<Child>,
    failures: u32,
    /// The volume was released: there is nothing to take over.
    is_done: bool,
    mountpoint: PathBuf,
    /// The file system of the mount of ours that was at the mount point before.
    device_before: Option<String>,
    /// For a mount in the background.
    nothing: Option<File>,
}

/// Keeps a mount until its end.
///
/// # Errors
/// The server cannot be started, or the mount was given up.
///
/// # Blocking
/// For as long as it is mounted.
pub(crate) fn run(arguments: &MountArguments) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot start the keeper of the mount: {error}"));
    let signals = Signals::block();
    let signal_fd = signals.descriptor().map_err(failed)?;
    let nothing = match arguments.detached {
        true => {
            background::end_with_starter()?;
            // Fails only for the leader of a process group, which another process has detached.
            let _ = setsid();
            Some(File::open("/dev/null").map_err(failed)?)
        }
        false => None,
    };
    sys::keep_descriptors_from_programs();
    raise_limit();
    let mountpoint = endpoints::name_of(&arguments.mountpoint).unwrap_or_else(|_| arguments.mountpoint.clone());
    let device_before = mount_at(&mountpoint).filter(is_slackwater).map(|mount| mount.device);
    let keeper = Keeper {
        arguments: background::command_line(
            arguments,
            match arguments.detached {
                true => &["--kept", "--detached"],
                false => &["--kept"],
            },
        ),
        programs: Programs::of_this_process().map_err(failed)?,
        pace: Pace::default(),
        signals,
        signal_fd,
        estate: Estate::default(),
        pending: Vec::new(),
        ending: None,
        remains: Vec::new(),
        failures: 0,
        is_done: false,
        mountpoint,
        device_before,
        nothing,
    };
    keeper.run()
}

/// The keeper has a descriptor for each file that was removed while it was open.
fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.or(limit.current);
    // If the limit stays low, the server learns that a file was not kept.
    let _ = setrlimit(Resource::Nofile, limit);
}

impl Keeper {
    fn run(mut self) -> Result<ExitCode, Failure> {
        loop {
            let mut life = None;
            let end = match self.start() {
                Ok(mut server) => {
                    self.attend(&mut server);
                    life = server.holds_since.map(|since| since.elapsed());
                    let end = self.end_of(&mut server);
                    if let (End::Died(_) | End::Killed(_), None) = (&end, &self.estate.held) {
                        self.clear_away(server.child.id());
                    }
                    self.remains.push(server.child);
                    end
                }
                Err(error) if self.estate.held.is_none() => {
                    return Err(Failure::failed(format!("cannot start the mount process: {error}")));
                }
                Err(error) => End::Died(format!("cannot be started: {error}")),
            };
            let has_completed = life.is_some();
            let is_killed = matches!(end, End::Killed(_));
            let why = match end {
                End::Exited(status) if self.is_done || self.estate.held.is_none() => return Ok(exit_code(status)),
                End::Exited(_) if has_completed && self.estate.has_handed_over => {
                    self.pace.reset();
                    continue;
                }
                End::Exited(status) if has_completed => return Ok(exit_code(status)),
                End::Exited(status) => format!("has failed with status {status}"),
                End::Died(why) | End::Killed(why) if self.is_done || self.estate.held.is_none() => {
                    return Err(Failure::failed(format!("the mount process {why}")));
                }
                End::Died(why) | End::Killed(why) => why,
            };
            if !self.estate.is_connected() {
                return Err(self.give_up(&format!("the mount process {why} after the unmount")));
            }
            if let Some(life) = life {
                errln!("The mount process {why}: another one takes over.");
                match is_killed {
                    true => self.pace.reset(),
                    false => {
                        let delay = self.pace.delay_after(life);
                        self.pause(delay);
                    }
                }
            } else if let Some(message) = self.programs.note_failure(&why) {
                errln!("{message}");
            } else {
                self.failures += 1;
                if self.failures >= FAILURES_MAX {
                    let text = format!("{FAILURES_MAX} mount processes in a row failed; the last one {why}");
                    return Err(self.give_up(&text));
                }
                errln!("The mount process {why}: another one takes over.");
                self.pause(PAUSE);
            }
        }
    }

    /// Waits before the next server starts; a signal for it ends the wait.
    fn pause(&self, delay: Duration) {
        if delay > Duration::ZERO {
            // After an error the next server starts early.
            let _ = poll(&mut [PollFd::new(&self.signal_fd, PollFlags::IN)], Some(&timespec(delay)));
        }
    }

    /// Starts a server.
    fn start(&mut self) -> io::Result<Server> {
        let (link, other) = Link::pair()?;
        let mut command = self.programs.command();
        // Ctrl-C reaches the keeper alone, which passes it on.
        command.args(&self.arguments).stdin(Stdio::from(other)).process_group(0);
        let mut child = command.spawn()?;
        let watch = || pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        match watch() {
            Ok(end) => Ok(Server { child, link: Some(link), end, is_ready: false, holds_since: None }),
            Err(errno) => {
                let _ = child.kill();
                self.remains.push(child);
                Err(errno.into())
            }
        }
    }

    /// Serves the server until its end.
    fn attend(&mut self, server: &mut Server) {
        let mut hello_by = self.programs.is_upgrading().then(|| Instant::now() + HELLO_WITHIN);
        loop {
            hello_by = hello_by.filter(|_| !server.is_ready);
            if hello_by.take_if(|by| *by <= Instant::now()).is_some() {
                let (pid, within) = (server.child.id(), HELLO_WITHIN.as_secs());
                errln!("The mount process (pid {pid}) has said nothing to its keeper for {within} s: it is killed.");
                // It fails only when the server has ended.
                let _ = server.child.kill();
            }
            let left = hello_by.map(|by| timespec(by.saturating_duration_since(Instant::now())));
            let (signal, message, end) = {
                let nothing = &self.signal_fd;
                let link = server.link.as_ref().map_or(nothing.as_fd(), AsFd::as_fd);
                let mut events = [
                    PollFd::new(&self.signal_fd, PollFlags::IN),
                    PollFd::from_borrowed_fd(link, PollFlags::IN),
                    PollFd::new(&server.end, PollFlags::IN),
                ];
                match poll(&mut events, left.as_ref()) {
                    Ok(_) | Err(Errno::INTR) => {}
                    // Only a lack of memory.
                    Err(_) => thread::sleep(PAUSE),
                }
                let [signal, message, end] = events.map(|event| !event.revents().is_empty());
                (signal, message && server.link.is_some(), end)
            };
            self.remains.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
            if end {
                return; // a signal waits for the next one
            }
            if signal && let Some(signal) = self.signals.next_of(&self.signal_fd) {
                self.pass_on(server, signal);
            }
            if message {
                self.receive(server);
            }
        }
    }

    fn pass_on(&mut self, server: &Server, signal: Signal) {
        if !server.is_ready {
            self.pending.push(signal);
            return;
        }
        if signal != Signal::Interrupt {
            self.ending = Some(signal);
        }
        // It fails only when the server has ended.
        let _ = kill_process(Pid::from_child(&server.child), signal.into());
    }

    /// Takes one message. A server that sends nonsense, or does not read, is ended.
    fn receive(&mut self, server: &mut Server) {
        let Some(link) = server.link.take() else { return };
        let outcome = match link.receive() {
            Ok(None) => return,
            Ok(Some((message, descriptors))) => self.obey(server, &link, message, descriptors),
            // The server has to know that a file was not kept.
            Err(error) => link.send(&ToServer::Kept { error: Some(error.to_string()) }, &[]),
        };
        if outcome.is_err() {
            // It fails only when the server has ended.
            let _ = server.child.kill();
        }
        server.link = Some(link);
    }

    fn obey(
        &mut self,
        server: &mut Server,
        link: &Link,
        message: ToKeeper,
        mut descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let kept = ToServer::Kept { error: None };
        match message {
            ToKeeper::Hello { version: PROTOCOL_VERSION, thread } => {
                let thread = i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
                server.end = pidfd_open(thread, PIDFD_THREAD)?;
                self.estate.send(link, self.programs.failed())?;
                server.is_ready = true;
                let pending = std::mem::take(&mut self.pending);
                for signal in self.ending.into_iter().chain(pending) {
                    self.pass_on(server, signal);
                }
                Ok(())
            }
            ToKeeper::Hello { .. } => Err(io::ErrorKind::Unsupported.into()),
            ToKeeper::Hold { entry, parts } => {
                self.estate.hold(Held { entry: *entry, parts: Parts::of(&parts, descriptors)? });
                (server.holds_since, self.failures) = (Some(Instant::now()), 0);
                self.programs.note_success();
                self.depart();
                link.send(&kept, &[])
            }
            ToKeeper::KeepFile { number } => {
                let file = descriptors.pop().ok_or(io::ErrorKind::InvalidData)?;
                self.estate.files.insert(number, file);
                link.send(&kept, &[])
            }
            ToKeeper::ReleaseFile { number } => {
                self.estate.files.remove(&number);
                Ok(())
            }
            ToKeeper::Set { key, value } => {
                self.estate.settings.insert(key, value);
                Ok(())
            }
            ToKeeper::Places { places } => {
                self.estate.places = places;
                Ok(())
            }
            ToKeeper::HandOver { stopped_ns, program } => {
                (self.estate.has_handed_over, self.estate.stopped_ns) = (true, Some(stopped_ns));
                if let Some((path, file)) = program.zip(descriptors.pop()) {
                    self.programs.begin_upgrade(Program::of(path, file));
                }
                Ok(())
            }
            ToKeeper::Done => {
                (self.estate, self.is_done) = (Estate::default(), true);
                link.send(&kept, &[])
            }
        }
    }

    /// Detaches from the terminal once the mount is complete. The announcement ends when the server has detached too.
    fn depart(&mut self) {
        let log = self.estate.held.as_ref().and_then(|held| held.parts.duplicate(Part::Log).ok());
        if let Some((nothing, log)) = self.nothing.take().zip(log) {
            let _ = std::env::set_current_dir("/");
            Departure::with(nothing, log.into()).leave();
        }
    }

    /// Waits until the end of a server whose first thread has ended, as far as a successor or the caller has to (K1).
    fn end_of(&mut self, server: &mut Server) -> End {
        let (since, pid) = (Instant::now(), server.child.id());
        let (mut looks, mut is_said, mut is_aborted) = (0, false, false);
        while server.link.as_ref().is_some_and(has_message) {
            self.receive(server);
        }
        self.estate.stopped_ns.get_or_insert_with(monotonic_ns);
        loop {
            if let Ok(Some(status)) = server.child.try_wait() {
                return End::of(status, pid);
            }
            let unknown = || End::Died(format!("(pid {pid}) died"));
            let elapsed = since.elapsed();
            if self.estate.held.is_none() && !self.is_done {
                // It may wait in the kernel for its own mount.
                if elapsed > ENDS_WITHIN && !std::mem::replace(&mut is_aborted, true) {
                    abort_connections_of(pid);
                }
                if elapsed > 2 * ENDS_WITHIN {
                    return unknown();
                }
            } else if !self.is_done && remains::are_harmless(pid) {
                looks += 1;
                if looks > STAYS_AFTER {
                    return unknown();
                }
            } else if elapsed > SAID_AFTER && !std::mem::replace(&mut is_said, true) {
                errln!(
                    "The mount process (pid {pid}) has died, and its source does not let it go: waiting for the source."
                );
            }
            thread::sleep(LOOK);
        }
    }

    /// Removes the mount of a server that died before it was complete.
    fn clear_away(&self, pid: u32) {
        abort_connections_of(pid);
        let mount = mount_at(&self.mountpoint).filter(is_slackwater);
        if let Some(mount) = mount.filter(|mount| self.device_before.as_ref() != Some(&mount.device)) {
            end_connection_at(&mount);
            let _ = unmount(&self.mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }

    /// Leaves everything as a mount process without a keeper does that was killed.
    fn give_up(self, why: &str) -> Failure {
        let Some(Held { entry, .. }) = self.estate.held else { return Failure::failed(why) };
        // A thread that waits for an answer keeps the connection open.
        for child in &self.remains {
            abort_connections_of(child.id());
        }
        let (source, arena) = (entry.source.name().printable(), entry.arena.printable());
        Failure::failed(format!("the mount at {} is given up: {why}", entry.mountpoint.printable()))
            .advise(format!("its unwritten data is in {arena}: mount {source} again to write it back"))
    }
}

impl End {
    fn of(status: ExitStatus, pid: u32) -> Self {
        match (status.code(), status.signal()) {
            (Some(PANICKED), _) => Self::Died(format!("(pid {pid}) panicked")),
            (Some(code), _) => Self::Exited(code),
            (None, Some(KILL)) => Self::Killed(format!("(pid {pid}) was killed by signal {KILL}")),
            (None, signal) => Self::Died(format!("(pid {pid}) was killed by signal {}", signal.unwrap_or_default())),
        }
    }
}

fn has_message(link: &Link) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut link = [PollFd::new(link, PollFlags::IN)];
    poll(&mut link, Some(&now)).is_ok() && link[0].revents().contains(PollFlags::IN)
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

fn exit_code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(Reason::Failed.status()))
}
