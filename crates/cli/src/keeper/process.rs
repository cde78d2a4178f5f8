//! The keeper. It has one thread and waits in one place: for a signal, a message of the server, or the server's end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open, setsid};
use slackwater_control::errln;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::detach::detach;
use slackwater_control::os::mount_table::{is_slackwater, mount_at};
use slackwater_control::os::sys::{Signal, Signals};
use slackwater_host::Printable as _;

use crate::commands::mount::background::{self, Departure};
use crate::keeper::client::monotonic_ns;
use crate::keeper::end::End;
use crate::keeper::estate::{self, Estate};
use crate::keeper::link::{Link, timespec};
use crate::keeper::pace::Pace;
use crate::keeper::patience::Patience;
use crate::keeper::programs::{Program, Programs};
use crate::keeper::protocol::{PROTOCOL_VERSION, Part, ToKeeper, ToServer};
use crate::keeper::remains::{self, LOOK, SAID_AFTER};
use crate::os::killed_process::{abort_connections_of, end_connection_at};
use crate::os::sys;
use crate::server::start::{Inheritable, Start};

/// Servers that may fail in a row before one completes a takeover.
const FAILURES_MAX: u32 = 10;
/// Servers killed before they complete a takeover say nothing about the next one, unless that goes on for longer than
/// this: then the kernel kills each, for want of memory.
const KILLS_ARE_CHANCE_FOR: Duration = Duration::from_secs(60);
/// The pause between two such servers.
const PAUSE: Duration = Duration::from_millis(100);
/// The program of an upgrade has to say hello within this time.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Messages about nodes need no answer, so they are read together: after this time, at most so many at once.
const REST: Duration = Duration::from_millis(2);
const MESSAGES_AT_ONCE: usize = 256;
/// How long a server that never completed its start may take to end, before and after its connection is aborted.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// Looks after which a process of harmless threads is not about to end.
const STAYS_AFTER: u32 = 5;
/// The flag of a pidfd that reports only the death of one thread, which is not the first: the others may wait for the
/// successor, and the end of the first is reported after theirs. Kernel: `PIDFD_THREAD`, from Linux 6.9 on.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());

/// Variables of a service manager that are meant for its child, the keeper. Without the last one, the server answers the
/// watchdog.
const OF_KEEPER: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// A running server.
struct Server {
    child: Child,
    /// The link; `None` once the server has closed its end.
    link: Option<Link>,
    /// A descriptor that is readable when the server is dying.
    end: OwnedFd,
    /// Whether the server takes signals.
    is_ready: bool,
    /// When the server completed its start.
    serves_since: Option<Instant>,
    /// Whether the keeper has killed the server, because it sent nonsense or did not read.
    is_refused: bool,
}

/// The process to keep.
pub(crate) struct Kept {
    /// The specification of the server.
    pub(crate) server: Start,
    /// The mount point of a mount process; a daemon is kept without volumes too.
    pub(crate) mountpoint: Option<PathBuf>,
    /// Whether the process leaves the terminal once it serves.
    pub(crate) is_detached: bool,
}

/// The keeper.
struct Keeper {
    specification: Inheritable,
    programs: Programs,
    pace: Pace,
    signals: Signals,
    signal_fd: OwnedFd,
    estate: Estate,
    /// Signals for a server that does not take them yet.
    pending: Vec<Signal>,
    /// A signal that ends the server in any case. A server may die before it has.
    ending: Option<Signal>,
    /// Dead servers that have not quite ended.
    remains: Vec<Child>,
    failures: u32,
    /// The time since which no server has completed its start or takeover.
    fails_since: Option<Instant>,
    /// Whether the volume was released: there is nothing to take over.
    is_done: bool,
    /// The mount point of a mount process.
    mountpoint: Option<PathBuf>,
    /// The file system of the mount of ours that was at the mount point before.
    device_before: Option<String>,
    /// `/dev/null`, for a process in the background.
    nothing: Option<File>,
}

/// Keeps a mount or a daemon until its end.
///
/// # Errors
/// The server cannot be started, or was given up.
///
/// # Blocking
/// For as long as the process is kept.
pub(crate) fn run(kept: Kept) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot start the keeper: {error}"));
    let Kept { server, mountpoint, is_detached } = kept;
    let signals = Signals::block();
    let signal_fd = signals.descriptor().map_err(failed)?;
    let nothing = match is_detached {
        true => {
            background::end_with_starter()?;
            // Fails only for the leader of a process group, which another process has detached.
            let _ = setsid();
            Some(File::open("/dev/null").map_err(failed)?)
        }
        false => None,
    };
    let estate = Estate::begin();
    sys::keep_descriptors_from_programs();
    let specification = server.inheritable().map_err(failed)?;
    estate::raise_limit();
    let mount_before = mountpoint.as_deref().and_then(mount_at).filter(is_slackwater);
    let device_before = mount_before.map(|mount| mount.device);
    let keeper = Keeper {
        specification,
        programs: Programs::of_this_process().map_err(failed)?,
        pace: Pace::default(),
        signals,
        signal_fd,
        estate,
        pending: Vec::new(),
        ending: None,
        remains: Vec::new(),
        failures: 0,
        fails_since: None,
        is_done: false,
        mountpoint,
        device_before,
        nothing,
    };
    keeper.run()
}

impl Keeper {
    fn run(mut self) -> Result<ExitCode, Failure> {
        if let Some(stray) = self.estate.stray.take() {
            remains::end(&stray, self.estate.are_sources_on_disks());
        }
        loop {
            let mut life = None;
            let end = match self.start() {
                Ok(mut server) => {
                    self.attend(&mut server);
                    life = server.serves_since.map(|since| since.elapsed());
                    let end = match self.end_of(&mut server) {
                        End::Killed(why) if server.is_refused => End::Died(why),
                        end @ (End::Exited(_) | End::Died(_) | End::Killed(_) | End::Held) => end,
                    };
                    if let (End::Died(_) | End::Killed(_), None) = (&end, self.estate.server) {
                        self.clear_away(server.child.id());
                    }
                    self.remains.push(server.child);
                    end
                }
                Err(error) if self.estate.server.is_none() => {
                    return Err(Failure::failed(format!("cannot start the process that serves: {error}")));
                }
                Err(error) => End::Died(format!("cannot be started: {error}")),
            };
            let has_completed = life.is_some();
            let is_killed = matches!(end, End::Killed(_));
            let why = match end {
                End::Exited(status) if self.is_done || self.estate.server.is_none() => return Ok(exit_code(status)),
                End::Exited(_) if has_completed && self.estate.has_handed_over => {
                    self.pace.reset();
                    continue;
                }
                End::Exited(status) if has_completed => return Ok(exit_code(status)),
                End::Exited(status) => format!("has failed with status {status}"),
                End::Died(why) | End::Killed(why) if self.is_done || self.estate.server.is_none() => {
                    return Err(Failure::failed(format!("the {} {why}", self.kind())));
                }
                End::Died(why) | End::Killed(why) => why,
                End::Held => return Err(self.end_by_force()),
            };
            if self.mountpoint.is_some() && !self.estate.is_connected() {
                return Err(self.give_up(&format!("the mount process {why} after the unmount")));
            }
            if let Some(life) = life {
                errln!("The {} {why}: another one takes over.", self.kind());
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
                let since = self.fails_since.get_or_insert_with(Instant::now);
                self.failures += u32::from(!is_killed || since.elapsed() > KILLS_ARE_CHANCE_FOR);
                if self.failures >= FAILURES_MAX {
                    let text = format!("the {} failed {FAILURES_MAX} times in a row; the last one {why}", self.kind());
                    return Err(self.give_up(&text));
                }
                errln!("The {} {why}: another one takes over.", self.kind());
                self.pause(PAUSE);
            }
        }
    }

    /// The word for the server, for people.
    fn kind(&self) -> &'static str {
        if self.mountpoint.is_some() { "mount process" } else { "daemon" }
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
        command.args(self.specification.words()).stdin(Stdio::from(other)).process_group(0);
        for variable in OF_KEEPER {
            command.env_remove(variable);
        }
        let mut child = command.spawn()?;
        let watch = || pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        match watch() {
            Ok(end) => {
                Ok(Server { child, link: Some(link), end, is_ready: false, serves_since: None, is_refused: false })
            }
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
        let mut rests_until: Option<Instant> = None;
        loop {
            hello_by = hello_by.filter(|_| !server.is_ready);
            if hello_by.take_if(|by| *by <= Instant::now()).is_some() {
                let (pid, within) = (server.child.id(), HELLO_WITHIN.as_secs());
                errln!("The {} (pid {pid}) has said nothing to its keeper for {within} s: it is killed.", self.kind());
                // It fails only when the server has ended.
                let _ = server.child.kill();
            }
            rests_until = rests_until.filter(|until| *until > Instant::now());
            let next = hello_by.into_iter().chain(rests_until).min();
            let left = next.map(|by| timespec(by.saturating_duration_since(Instant::now())));
            let (signal, message, end) = {
                let nothing = &self.signal_fd;
                let link = server.link.as_ref().filter(|_| rests_until.is_none());
                let link = link.map_or(nothing.as_fd(), AsFd::as_fd);
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
                (signal, message && rests_until.is_none() && server.link.is_some(), end)
            };
            self.remains.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
            if end {
                return; // a signal waits for the next one
            }
            if signal && let Some(signal) = self.signals.next_of(&self.signal_fd) {
                self.pass_on(server, signal);
            }
            if message {
                let mut may_rest = self.receive(server);
                for _ in 1..MESSAGES_AT_ONCE {
                    if !may_rest || !server.link.as_ref().is_some_and(remains::is_readable) {
                        break;
                    }
                    may_rest = self.receive(server);
                }
                rests_until = may_rest.then(|| Instant::now() + REST);
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

    /// Takes one message. A server that sends nonsense, or does not read, is ended. Returns whether the next message can
    /// wait a moment.
    fn receive(&mut self, server: &mut Server) -> bool {
        let Some(link) = server.link.take() else { return false };
        let mut may_rest = false;
        let outcome = match link.receive() {
            Ok(None) => return false,
            Ok(Some((message, descriptors))) => {
                may_rest = matches!(message, ToKeeper::KeepNode { .. } | ToKeeper::ReleaseNodes { .. });
                self.obey(server, &link, message, descriptors)
            }
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            server.is_refused = true;
            // It fails only when the server has ended.
            let _ = server.child.kill();
        }
        server.link = Some(link);
        may_rest
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
                self.estate.joined(&pidfd_open(Pid::from_child(&server.child), PidfdFlags::empty())?);
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
            ToKeeper::Serves => {
                self.estate.serves(server.child.id());
                (server.serves_since, self.failures, self.fails_since) = (Some(Instant::now()), 0, None);
                self.programs.note_success();
                self.depart();
                link.send(&kept, &[])
            }
            ToKeeper::HandOver { stopped_ns, program } => {
                (self.estate.has_handed_over, self.estate.stopped_ns) = (true, Some(stopped_ns));
                if let Some((path, file)) = program.zip(descriptors.pop()) {
                    self.programs.begin_upgrade(Program::of(path, file));
                }
                Ok(())
            }
            ToKeeper::Done => {
                self.estate.end();
                self.is_done = true;
                link.send(&kept, &[])
            }
            message @ (ToKeeper::Hold { .. }
            | ToKeeper::HoldVolume { .. }
            | ToKeeper::KeepFile { .. }
            | ToKeeper::DropVolume { .. }) => {
                let error = self.estate.take(message, descriptors).err().map(|error| error.to_string());
                link.send(&ToServer::Kept { error }, &[])
            }
            message @ (ToKeeper::ReleaseFile { .. }
            | ToKeeper::KeepNode { .. }
            | ToKeeper::ReleaseNodes { .. }
            | ToKeeper::Set { .. }
            | ToKeeper::Places { .. }) => {
                // It fails for a volume that has just ended.
                let _ = self.estate.take(message, descriptors);
                Ok(())
            }
        }
    }

    /// Detaches from the terminal once everything is mounted. The announcement ends when the server has detached too.
    fn depart(&mut self) {
        let log = self.estate.parts.duplicate(Part::Log).ok();
        if let Some((nothing, log)) = self.nothing.take().zip(log) {
            let _ = std::env::set_current_dir("/");
            Departure::with(nothing, log.into()).leave();
        }
    }

    /// Waits until the end of a server whose first thread has ended, as far as a successor or the caller has to (K1).
    fn end_of(&mut self, server: &mut Server) -> End {
        let (since, pid) = (Instant::now(), server.child.id());
        let (mut looks, mut is_said, mut is_aborted) = (0, false, false);
        let (mut patience, are_on_disks) = (Patience::new(self.ending), self.estate.are_sources_on_disks());
        while server.link.as_ref().is_some_and(remains::is_readable) {
            self.receive(server);
        }
        self.estate.stopped_ns.get_or_insert_with(monotonic_ns);
        loop {
            if let Ok(Some(status)) = server.child.try_wait() {
                return End::of(status, pid);
            }
            let elapsed = since.elapsed();
            if self.estate.server.is_none() && !self.is_done {
                // It may wait in the kernel for its own mount.
                if elapsed > ENDS_WITHIN && !std::mem::replace(&mut is_aborted, true) {
                    abort_connections_of(pid);
                }
                if elapsed > 2 * ENDS_WITHIN {
                    return End::of_unfinished(pid);
                }
            } else if !self.is_done && remains::are_harmless(pid, are_on_disks) {
                looks += 1;
                if looks > STAYS_AFTER {
                    return End::of_unfinished(pid);
                }
            } else if !self.is_done && self.is_over(elapsed, &mut patience) {
                return End::Held;
            } else if elapsed > SAID_AFTER && !std::mem::replace(&mut is_said, true) {
                errln!(
                    "The {} (pid {pid}) has died, and its source does not let it go: waiting for the source.",
                    self.kind()
                );
            }
            thread::sleep(LOOK);
        }
    }

    /// Whether a mount whose server is dead, and held up by its source, is over or has to end nevertheless.
    fn is_over(&mut self, elapsed: Duration, patience: &mut Patience) -> bool {
        if elapsed > SAID_AFTER && self.mountpoint.is_some() && !self.estate.is_connected() {
            return true; // by force
        }
        let signal = self.signals.next_of(&self.signal_fd);
        self.pending.extend(signal); // for a successor, if there is one after all
        patience.ends(signal)
    }

    /// Ends all mounts, whose data stays in the cache (P3 of SEMANTICS.md). The dead server ends when its source answers.
    fn end_by_force(mut self) -> Failure {
        if let Some(pid) = self.estate.server {
            abort_connections_of(pid);
        }
        self.estate.end_mounts();
        let failure = self.give_up("its process has died, and its source does not answer");
        self.estate.end();
        Failure { reason: Reason::Left, ..failure }
    }

    /// Removes the mount of a server that died before it was complete.
    fn clear_away(&self, pid: u32) {
        abort_connections_of(pid);
        let Some(mountpoint) = &self.mountpoint else { return };
        let mount = mount_at(mountpoint).filter(is_slackwater);
        if let Some(mount) = mount.filter(|mount| self.device_before.as_ref() != Some(&mount.device)) {
            end_connection_at(&mount);
            if unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH) == Err(Errno::PERM) {
                // Of another user than root. It fails if the mount ended with the server.
                let _ = detach(mountpoint);
            }
        }
    }

    /// Leaves everything as a mount process without a keeper does that was killed.
    fn give_up(&self, why: &str) -> Failure {
        // A thread that waits for an answer keeps its connection open.
        for child in &self.remains {
            abort_connections_of(child.id());
        }
        let failure = Failure::failed(match &self.mountpoint {
            Some(mountpoint) => format!("the mount at {} is given up: {why}", mountpoint.printable()),
            None => format!("the daemon is given up: {why}"),
        });
        self.estate.locate_data(failure)
    }
}

fn exit_code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(Reason::Failed.status()))
}
