//! The commands that talk to a mount process: `umount`, `sync`, `status`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use crate::arguments::UmountArguments;
use crate::control::client::{Conversation, ask};
use crate::control::protocol::{Phase, Reply, Request, Status};
use crate::detach::detach;
use crate::exit::{Failure, Reason};
use crate::mount::{Loss, name_of};
use crate::mountinfo::Mount;
use crate::progress::Meter;
use crate::quantity;
use crate::registry::{Found, Registry};

/// Files that are listed on a terminal.
const LINES: usize = 50;

/// A process that works says so several times a second, and looks for names for ten seconds at most.
const SILENCE: Duration = Duration::from_secs(60);

/// Unmounts; returns when everything is in the source, or with the reason why not.
pub(crate) fn umount(arguments: &UmountArguments) -> Result<(), Failure> {
    let found = find(&arguments.mountpoint)?;
    if !found.is_alive {
        return Err(bury(&found));
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
    if !found.is_alive {
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
    let (mut mounts, mut dead) = (Vec::new(), Vec::new());
    for found in &found {
        match ask(&found.socket(), &Request::Status) {
            Ok(Reply::Status(status)) => mounts.push(*status),
            // Who ends between two looks is gone, not dead.
            _ if found.is_still_alive() => eprintln!("pid {} does not answer", found.entry.pid),
            _ if found.entry.arena.exists() => dead.push(&found.entry),
            _ => {}
        }
    }
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
        Phase::Flushing => "unmounted, flushing",
    };
    let bytes = quantity::bytes;
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
    if let Some(error) = &status.failing {
        text += &format!("  WRITE-BACK FAILS: {error}; the data is kept and tried again\n");
    }
    status.missing_features.iter().for_each(|missing| text += &format!("  missing: {missing}\n"));
    text
}

fn entries() -> Result<Vec<Found>, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot read the list of mounts: {error}"));
    Registry::open()?.entries().map_err(failed)
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
                .advise(format!("or detach it: umount -l {0} (nothing is lost: the process flushes)", name.display()))
        }
        Some(mount) => not_mounted(format!("{} is not a slackwater mount ({})", name.display(), mount.kind))
            .advise(format!("use umount {}", name.display())),
        None => not_mounted(format!("{} is not mounted", name.display())).advise("slackwater status lists what is"),
    })
}

/// Sends a request whose answer takes its time, and shows how it goes.
fn converse(found: &Found, request: &Request, action: &str) -> Result<(), Failure> {
    let lost = |error: &io::Error| match found.is_still_alive() {
        true if error.kind() == io::ErrorKind::TimedOut => {
            Failure::failed(format!("pid {} does not answer", found.entry.pid))
                .advise("is it stopped? kill -CONT lets it go on")
        }
        true => Failure::failed(format!("pid {} does not answer as it should: {error}", found.entry.pid)),
        false => died(found),
    };
    let mut conversation = Conversation::open(&found.socket(), request).map_err(|error| lost(&error))?;
    let mut meter = Meter::new(action);
    loop {
        match conversation.next(Some(SILENCE)).map_err(|error| lost(&error))? {
            Reply::Progress { bytes_left, written_bytes } => meter.update(bytes_left, written_bytes),
            Reply::Done => return Ok(()),
            Reply::Failed(failure) => return Err(failure),
            Reply::Status(_) | Reply::WouldLose { .. } => {
                return Err(Failure::failed("the mount process answers something else than it was asked"));
            }
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
    let mut conversation = Conversation::open(&found.socket(), &Request::WouldLose).map_err(|_| unclear())?;
    let loss = match conversation.next(Some(SILENCE)).map_err(|_| unclear())? {
        Reply::Failed(failure) => return Err(failure),
        Reply::WouldLose { files, more_files, more_bytes } => Loss { files, more_files, more_bytes },
        Reply::Status(_) | Reply::Progress { .. } | Reply::Done => return Err(unclear()),
    };
    if loss.is_empty() {
        println!("Everything is in {}: nothing would be lost.", found.entry.source.path.display());
        return Ok(true);
    }
    println!("These bytes are not in {} and would be LOST:", found.entry.source.path.display());
    loss.lines(if io::stdout().is_terminal() { LINES } else { usize::MAX }).iter().for_each(|line| println!("{line}"));
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("nobody is here to ask").advise("say --yes to throw this away"));
    }
    print!("Throw away {}? Type yes: ", quantity::bytes(loss.bytes()));
    let mut answer = String::new();
    let asked = io::stdout().flush().and_then(|()| io::stdin().lock().read_line(&mut answer));
    Ok(asked.is_ok() && answer.trim() == "yes")
}
