//! The commands that talk to a mount process: `umount`, `sync`, `status`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use slackwater_size as size;

use crate::arguments::UmountArguments;
use crate::control::client::{ANSWER_WITHIN, Conversation};
use crate::control::protocol::{Phase, Reply, Request, Status};
use crate::detach::detach;
use crate::exit::{Failure, Reason};
use crate::look::Look;
use crate::mount::{Loss, name_of, tenant_lines};
use crate::mountinfo::Mount;
use crate::progress::Meter;
use crate::registry::{Found, Registry};
use crate::shell;
use crate::terminal::{say, tell};

/// Files that are listed on a terminal.
const LINES: usize = 50;

/// A process that works says so several times a second, and looks for names for ten seconds at most.
const SILENCE: Duration = Duration::from_secs(60);

/// A process listens within this time of its beginning.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);

/// Unmounts; returns when everything is in the source, or with the reason why not.
pub(crate) fn umount(arguments: &UmountArguments) -> Result<(), Failure> {
    let found = find(&arguments.mountpoint)?;
    if !found.is_alive {
        return if found.has_ended_in_order() { Ok(()) } else { Err(bury(&found)) };
    }
    if arguments.discard && !may_discard(&found, arguments.yes)? {
        return Err(Failure::failed("nothing was thrown away; still mounted"));
    }
    let deadline_ms = u64::try_from(arguments.deadline.as_millis()).unwrap_or(u64::MAX);
    let request = Request::Umount { deadline_ms, force: arguments.force, discard: arguments.discard };
    converse(&found, &request, "flushing")
}

/// Makes everything durable that was written so far.
pub(crate) fn sync(mountpoint: &Path) -> Result<(), Failure> {
    let found = find(mountpoint)?;
    if !found.is_alive && !found.has_ended_in_order() {
        return Err(died(&found));
    }
    converse(&found, &Request::Sync, "syncing")
}

/// Prints how the mounts are, or the one at `mountpoint`.
pub(crate) fn status(mountpoint: Option<&Path>, json: bool) -> Result<(), Failure> {
    let found = match mountpoint {
        Some(mountpoint) => vec![find(mountpoint)?],
        None => entries()?,
    };
    let look = Look::at(found, ANSWER_WITHIN);
    look.silent.iter().for_each(|entry| say!("pid {} does not answer", entry.pid));
    let (mounts, dead): (Vec<_>, _) = (look.answers.iter().map(|answer| &answer.status).collect(), &look.dead);
    let mut out = String::new();
    if json {
        let dead: Vec<_> = dead
            .iter()
            .map(|entry| serde_json::json!({ "pid": entry.pid, "source": entry.source.path, "mountpoint": entry.mountpoint, "arena": entry.arena }))
            .collect();
        out = format!("{:#}\n", serde_json::json!({ "version": 1, "mounts": mounts, "dead": dead }));
    } else {
        if mounts.is_empty() && dead.is_empty() {
            out += "Nothing is mounted.\n";
        }
        mounts.iter().for_each(|status| out += &describe(status));
        for entry in dead {
            let (source, arena) = (entry.source.path.display(), entry.arena.display());
            out +=
                &format!("{source} was mounted at {} by pid {}, which died.\n", entry.mountpoint.display(), entry.pid);
            out += &format!("  What it had not brought in is in {arena}: mount {source} again.\n");
        }
    }
    // A reader that closes early has what it wanted.
    let _ = io::stdout().write_all(out.as_bytes());
    Ok(())
}

fn describe(status: &Status) -> String {
    let phase = match status.phase {
        Phase::Starting => "starting",
        Phase::Mounted => "mounted",
        Phase::Unmounting => "unmounting",
        Phase::Elsewhere => "unmounted here, in use elsewhere",
        Phase::Flushing => "unmounted, flushing",
    };
    let bytes = size::text;
    let mut text = format!("{} at {}\n", status.source.display(), status.mountpoint.display());
    text +=
        &format!("  {phase}, pid {}, cache {} in {}\n", status.pid, bytes(status.cache_bytes), status.arena.display());
    text += &format!(
        "  not in the source yet: {} (dirty {}, being written {}, not yet durable {})\n",
        bytes(status.bytes_left),
        bytes(status.dirty_bytes),
        bytes(status.writeback_bytes),
        bytes(status.unstable_bytes)
    );
    text += &format!(
        "  written back since the mount: {}; {} open files, {} inodes\n",
        bytes(status.written_bytes),
        status.open_files,
        status.inodes
    );
    let pressure = &status.memory_pressure;
    if pressure.events > 0 {
        text += &format!("  short of memory {} times: {} objects freed\n", pressure.events, pressure.freed_objects);
    }
    if let Some(error) = &status.failing {
        text += &format!("  WRITE-BACK FAILS: {error}; the data is kept and tried again\n");
    }
    tenant_lines(status).iter().for_each(|line| text += &format!("  {line}\n"));
    status.missing_features.iter().for_each(|missing| text += &format!("  missing: {missing}\n"));
    text
}

fn entries() -> Result<Vec<Found>, Failure> {
    Registry::open()?.entries()
}

/// The mount process of `mountpoint`; a living one rather than one that died there before.
fn find(mountpoint: &Path) -> Result<Found, Failure> {
    let not_mounted = |what: String| Failure::new(Reason::NotMounted, what);
    let name = name_of(mountpoint)
        .map_err(|error| not_mounted(format!("{} is not mounted: {error}", mountpoint.display())))?;
    let mut here: Vec<_> = entries()?.into_iter().filter(|found| found.entry.mountpoint == name).collect();
    here.sort_by_key(|found| !found.is_alive);
    if let Some(found) = here.into_iter().next() {
        return Ok(found);
    }
    Err(match Mount::at(&name) {
        Some(mount) if mount.is_slackwater() => {
            not_mounted(format!("{} is a slackwater mount of another user or of a process that died", name.display()))
                .advise("run the command as that user, with the same SLACKWATER_RUNTIME_DIR")
                .advise(format!(
                    "or detach it: umount -l {} (nothing is lost: the process flushes)",
                    shell::word(&name)
                ))
        }
        Some(mount) => not_mounted(format!("{} is not a slackwater mount ({})", name.display(), mount.kind))
            .advise(format!("use umount {}", shell::word(&name))),
        None => not_mounted(format!("{} is not mounted", name.display())).advise("slackwater status lists what is"),
    })
}

/// Sends a request whose answer takes its time, and shows how it goes. A process that ends in order instead of answering
/// has done what was asked for: everything is in the source, and it is unmounted.
fn converse(found: &Found, request: &Request, action: &str) -> Result<(), Failure> {
    let answered = hear(found, request, action);
    answered.unwrap_or_else(|error| match found.is_still_alive() {
        true if error.kind() == io::ErrorKind::TimedOut => {
            Err(Failure::failed(format!("pid {} does not answer", found.entry.pid))
                .advise("is it stopped? kill -CONT lets it go on"))
        }
        true => Err(Failure::failed(format!("pid {} does not answer as it should: {error}", found.entry.pid))),
        false if found.has_ended_in_order() => Ok(()),
        false => Err(died(found)),
    })
}

/// What the process answers in the end; the outer error is that it does not.
fn hear(found: &Found, request: &Request, action: &str) -> io::Result<Result<(), Failure>> {
    let mut conversation = open(found, request)?;
    let mut meter = Meter::new(action);
    loop {
        match conversation.next(Some(SILENCE))? {
            Reply::Progress { bytes_left, written_bytes } => meter.update(bytes_left, written_bytes),
            Reply::Done => return Ok(Ok(())),
            Reply::Failed(failure) => return Ok(Err(failure)),
            Reply::Status(_) | Reply::WouldLose { .. } => {
                return Ok(Err(Failure::failed("the mount process answers something else than it was asked")));
            }
        }
    }
}

/// Sends a request. A process that has just begun is on the list a moment before it listens.
fn open(found: &Found, request: &Request) -> io::Result<Conversation> {
    let since = Instant::now();
    loop {
        match Conversation::open(&found.socket(), request, SILENCE) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                    && since.elapsed() < LISTENS_WITHIN
                    && found.is_still_alive() =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

fn died(found: &Found) -> Failure {
    let (source, arena) = (found.entry.source.path.display(), found.entry.arena.display());
    let failure = Failure::failed(format!("the process of this mount (pid {}) died", found.entry.pid));
    match found.entry.arena.exists() {
        true => failure.advise(format!("what it had not brought in is in {arena}: mount {source} again")),
        false => failure,
    }
}

/// Frees the mount point of a process that died. That is no unmount that could say "everything is in the source".
fn bury(found: &Found) -> Failure {
    let mountpoint = &found.entry.mountpoint;
    match Mount::at(mountpoint) {
        Some(mount) if mount.is_slackwater() => match detach(mountpoint) {
            Ok(()) => died(found).advise(format!("{} is free again", mountpoint.display())),
            Err(error) => died(found).advise(format!("{} could not be freed: {error}", mountpoint.display())),
        },
        _ => Failure { reason: Reason::NotMounted, ..died(found) },
    }
}

/// Names what would be lost, and asks.
fn may_discard(found: &Found, yes: bool) -> Result<bool, Failure> {
    let unclear = || Failure::failed("cannot tell what would be lost; nothing was thrown away");
    // Names are searched for: that takes longer than a plain question.
    let mut conversation = Conversation::open(&found.socket(), &Request::WouldLose, SILENCE).map_err(|_| unclear())?;
    let loss = match conversation.next(Some(SILENCE)).map_err(|_| unclear())? {
        Reply::Failed(failure) => return Err(failure),
        Reply::WouldLose { files, more_files, more_bytes } => Loss { files, more_files, more_bytes },
        Reply::Status(_) | Reply::Progress { .. } | Reply::Done => return Err(unclear()),
    };
    if loss.is_empty() {
        tell!("Everything is in {}: nothing would be lost.", found.entry.source.path.display());
        return Ok(true);
    }
    tell!("These bytes are not in {} and would be LOST:", found.entry.source.path.display());
    loss.lines(if io::stdout().is_terminal() { LINES } else { usize::MAX }).iter().for_each(|line| tell!("{line}"));
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("nobody is here to ask").advise("say --yes to throw this away"));
    }
    let mut answer = String::new();
    let question = format!("Throw away {}? [y/N] ", size::text(loss.bytes()));
    let asked = io::stdout()
        .write_all(question.as_bytes())
        .and_then(|()| io::stdout().flush())
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    Ok(asked.is_ok() && is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use rustix::fs::OFlags;

    use super::*;
    use crate::mount::place::Place;
    use crate::registry::Entry;

    /// What `umount` says to a mount that takes its request, does `last`, and closes without an answer.
    fn unanswered(name: &str, last: impl FnOnce(crate::registry::Registered, &Path) + Send) -> Result<(), Failure> {
        let dir = std::env::temp_dir().join(format!("slackwater-client-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let registry = Registry::in_dir(&dir);
        let source = Place::open(&dir, OFlags::PATH).unwrap().0;
        let entry = Entry::of_this_process(source, "1-2-3".into(), "/mnt".into(), dir.join("arena"), 1 << 20);
        let registered = registry.register(&registry.lock().unwrap(), &entry).unwrap();
        let found = registry.entries().unwrap().remove(0);
        let listener = UnixListener::bind(found.socket()).unwrap();
        let request = Request::Umount { deadline_ms: 60_000, force: false, discard: false };
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                let (mut peer, _) = listener.accept().unwrap();
                peer.read_exact(&mut [0; 10]).unwrap();
                last(registered, &dir);
            });
            converse(&found, &request, "flushing")
        });
        std::fs::remove_dir_all(&dir).unwrap();
        outcome
    }

    #[test]
    fn a_mount_that_ends_in_order_without_an_answer_is_unmounted() {
        // The next mount of the source may have its arena there already.
        let outcome = unanswered("order", |registered, dir| {
            drop(registered);
            std::fs::write(dir.join("arena"), "").unwrap();
        });
        assert_eq!(outcome, Ok(()));
    }

    #[test]
    fn a_mount_that_dies_without_an_answer_has_died() {
        let outcome = unanswered("death", |registered, dir| {
            std::fs::write(dir.join("arena"), "").unwrap();
            registered.die();
        });
        let failure = outcome.unwrap_err();
        assert!(failure.what.contains("died") && failure.advice[0].contains("not brought in"), "{failure}");
    }

    #[test]
    fn yes_may_be_short_and_everything_else_is_no() {
        assert!(["y", "yes\n", "Y\n", " Yes "].iter().all(|answer| is_yes(answer)));
        assert!(!["", "\n", "n", "no", "yess", "ye", "y y"].iter().any(|answer| is_yes(answer)));
    }
}
