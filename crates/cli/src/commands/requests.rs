//! The commands that talk to a mount process, or to a daemon about its volumes: `umount`, `sync`, `status`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use slackwater_fuse::Printable as _;
use slackwater_size as size;

use crate::arguments::{DaemonSocket, StatusArguments, SyncArguments, UmountArguments};
use crate::commands::survey::Survey;
use crate::commands::target::{SILENCE, Target, no_daemon};
use crate::control::client::ANSWER_WITHIN;
use crate::control::protocol::{Phase, Reply, Request, Status};
use crate::exit::{Failure, Reason};
use crate::os::detach::detach;
use crate::os::mount_table;
use crate::output::progress::Meter;
use crate::output::terminal::{errln, outln};
use crate::parallel::for_each_parallel;
use crate::registry::Found;
use crate::volume::UnwrittenFiles;
use crate::volume::tenants;

/// Files that are listed on a terminal.
const LINES: usize = 50;

/// Most mounts that are waited for at the same time.
const MOST: usize = 16;

/// Unmounts; returns when everything is in the sources, or with the reason why not.
pub(crate) fn umount(arguments: &UmountArguments) -> Result<(), Failure> {
    let targets = targets(&arguments.volumes, arguments.all, &arguments.at)?;
    each(&targets, |target, is_only| umount_one(target, arguments, is_only))
}

fn umount_one(target: &Target, arguments: &UmountArguments, is_only: bool) -> Result<(), Failure> {
    if let Some(found) = target.found.as_ref().filter(|found| !found.is_alive) {
        return if found.has_ended_in_order() { Ok(()) } else { Err(bury(found)) };
    }
    if arguments.lazy {
        return converse(target, &Request::Detach, "detaching", is_only);
    }
    if arguments.discard && !may_discard(target, arguments.yes)? {
        return Err(Failure::failed("nothing was thrown away; still mounted"));
    }
    let deadline_ms = u64::try_from(arguments.deadline.as_millis()).unwrap_or(u64::MAX);
    let request = Request::Umount { deadline_ms, force: arguments.force, discard: arguments.discard };
    converse(target, &request, "flushing", is_only)
}

/// Makes everything durable that was written so far.
pub(crate) fn sync(arguments: &SyncArguments) -> Result<(), Failure> {
    let targets = targets(&arguments.volumes, arguments.all, &arguments.at)?;
    each(&targets, |target, is_only| {
        if !target.is_alive() && !target.has_ended_in_order() {
            return Err(died(target));
        }
        converse(target, &Request::Sync, "syncing", is_only)
    })
}

fn targets(words: &[PathBuf], all: bool, at: &DaemonSocket) -> Result<Vec<Target>, Failure> {
    if all { Target::all(at) } else { words.iter().map(|word| Target::find(word, at)).collect() }
}

/// Does `work` for each, some at the same time, so that one that hangs delays few; it hears whether it is the only one. Of
/// several failures the last one is the result, and the others are said.
fn each(targets: &[Target], work: impl Fn(&Target, bool) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    if let [target] = targets {
        return work(target, true);
    }
    let failures = Mutex::new(Vec::new());
    for_each_parallel(MOST, targets.iter(), |target| {
        if let Err(failure) = work(target, false) {
            let failure = Failure { what: format!("{}: {}", target.name().printable(), failure.what), ..failure };
            // A thread that panicked here has said so.
            failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
        }
    });
    let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    let last = failures.pop();
    failures.iter().for_each(|failure| errln!("slackwater: {failure}"));
    last.map_or(Ok(()), Err)
}

/// Prints how the mounts are, or one of them.
pub(crate) fn status(arguments: &StatusArguments) -> Result<(), Failure> {
    let (at, json) = (&arguments.at, arguments.json);
    let survey = match arguments.volume.as_deref().map(|word| Target::find(word, at)).transpose()? {
        None => Survey::all(at, ANSWER_WITHIN)?,
        Some(Target { found: Some(found), .. }) => Survey::of_processes(vec![found], ANSWER_WITHIN),
        Some(target) => Survey::of_daemon(&target.socket, Vec::from_iter(target.volume), ANSWER_WITHIN),
    };
    survey.silent.iter().for_each(|entry| errln!("pid {} does not answer", entry.pid));
    let (mounts, dead): (Vec<_>, _) = (survey.answers.iter().map(|answer| &answer.status).collect(), &survey.dead);
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
            let (source, arena) = (entry.source.path.printable(), entry.arena.printable());
            out += &format!(
                "{source} was mounted at {} by pid {}, which died.\n",
                entry.mountpoint.printable(),
                entry.pid
            );
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
    let mut text = format!("{} at {}\n", status.source.printable(), status.mountpoint.printable());
    text += &format!(
        "  {phase}, pid {}, cache {} in {}\n",
        status.pid,
        bytes(status.cache_bytes),
        status.arena.printable()
    );
    let oldest = status.oldest_ms.map(|ms| format!(", for {}", tenants::time(ms))).unwrap_or_default();
    text += &format!(
        "  not in the source yet: {} (dirty {}, being written {}, not yet durable {}){oldest}\n",
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
    let reads = &status.reads;
    if let Some(percent) = (100 * reads.hits).checked_div(reads.hits + reads.misses) {
        text += &format!(
            "  read: {} pages, {percent} % of them found in the cache; {} brought from the source\n",
            reads.hits + reads.misses,
            bytes(reads.filled_bytes)
        );
    }
    let writers = &status.writers;
    let waiting = writers.paused + writers.parked;
    if waiting > 0 || writers.paused_ms > 0 {
        text +=
            &format!("  writers: paused {} since the mount, {waiting} wait now\n", tenants::time(writers.paused_ms));
    }
    let pressure = &status.memory_pressure;
    if pressure.events > 0 {
        text += &format!("  short of memory {} times: {} objects freed\n", pressure.events, pressure.freed_objects);
    }
    if let Some(error) = &status.failing {
        // An older mount process does not count.
        let times = Some(status.failures).filter(|failures| *failures > 0);
        let times = times.map(|failures| format!(", {failures} times so far")).unwrap_or_default();
        text += &format!("  WRITE-BACK FAILS: {error}{times}; the data is kept and tried again\n");
    } else if status.failures > 0 {
        text += &format!("  write-back failed {} times, and succeeded then\n", status.failures);
    }
    tenants::lines(status).iter().for_each(|line| text += &format!("  {line}\n"));
    status.missing_features.iter().for_each(|missing| text += &format!("  missing: {missing}\n"));
    text
}

/// Sends a request whose answer takes its time, and shows how it goes if it is the only one. A process that ends in order
/// instead of answering has done what was asked for: everything is in the source, and it is unmounted.
fn converse(target: &Target, request: &Request, action: &str, is_only: bool) -> Result<(), Failure> {
    let answered = hear(target, request, is_only.then_some(action));
    answered.unwrap_or_else(|error| match &target.found {
        None => Err(no_daemon(&target.socket, &error)),
        Some(found) if found.is_still_alive() && error.kind() == io::ErrorKind::TimedOut => {
            Err(Failure::failed(format!("pid {} does not answer", found.entry.pid))
                .advise("is it stopped? kill -CONT lets it go on"))
        }
        Some(found) if found.is_still_alive() => {
            Err(Failure::failed(format!("pid {} does not answer as it should: {error}", found.entry.pid)))
        }
        Some(found) if found.has_ended_in_order() => Ok(()),
        Some(_) => Err(died(target)),
    })
}

/// What the process answers in the end; the outer error is that it does not.
fn hear(target: &Target, request: &Request, action: Option<&str>) -> io::Result<Result<(), Failure>> {
    let mut conversation = target.open(request)?;
    let mut meter = action.map(Meter::new);
    loop {
        let reply = conversation.next(Some(SILENCE))?;
        let Reply::Progress { bytes_left, written_bytes } = reply else { return Ok(reply.done()) };
        if let Some(meter) = &mut meter {
            meter.update(bytes_left, written_bytes);
        }
    }
}

fn died(target: &Target) -> Failure {
    match &target.found {
        Some(found) => process_died(found),
        None => Failure::failed(format!("the daemon of {} has ended", target.name().printable())),
    }
}

fn process_died(found: &Found) -> Failure {
    let (source, arena) = (found.entry.source.path.printable(), found.entry.arena.printable());
    let failure = Failure::failed(format!("the process of this mount (pid {}) died", found.entry.pid));
    match found.entry.arena.exists() {
        true => failure.advise(format!("what it had not brought in is in {arena}: mount {source} again")),
        false => failure,
    }
}

/// Frees the mount point of a process that died. That is no unmount that could say "everything is in the source".
fn bury(found: &Found) -> Failure {
    let mountpoint = &found.entry.mountpoint;
    match mount_table::mount_at(mountpoint) {
        Some(mount) if mount_table::is_slackwater(&mount) => match detach(mountpoint) {
            Ok(()) => process_died(found).advise(format!("{} is free again", mountpoint.printable())),
            Err(error) => process_died(found).advise(format!("{} could not be freed: {error}", mountpoint.printable())),
        },
        _ => Failure { reason: Reason::NotMounted, ..process_died(found) },
    }
}

/// Names what would be lost, and asks.
fn may_discard(target: &Target, yes: bool) -> Result<bool, Failure> {
    let unclear = || Failure::failed("cannot tell what would be lost; nothing was thrown away");
    // Names are searched for: that takes longer than a plain question.
    let mut conversation = target.open(&Request::WouldLose).map_err(|_| unclear())?;
    let reply = conversation.next(Some(SILENCE)).map_err(|_| unclear())?;
    let Reply::WouldLose { files, more_files, more_bytes } = reply else { return Err(reply.refusal()) };
    let loss = UnwrittenFiles { files, more_files, more_bytes };
    if loss.is_empty() {
        outln!("Everything is in {}: nothing would be lost.", target.source.printable());
        return Ok(true);
    }
    outln!("These bytes are not in {} and would be LOST:", target.source.printable());
    loss.lines(if io::stdout().is_terminal() { LINES } else { usize::MAX }).iter().for_each(|line| outln!("{line}"));
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
    use std::thread;

    use rustix::fs::OFlags;

    use std::path::Path;

    use super::*;
    use crate::control::protocol::{Reads, Writers};
    use crate::registry::{Entry, Registered, Registry};
    use crate::source::location::Location;

    /// What `umount` says to a mount that takes its request, does `last`, and closes without an answer.
    fn unanswered(name: &str, last: impl FnOnce(Registered, &Path) + Send) -> Result<(), Failure> {
        let dir = std::env::temp_dir().join(format!("slackwater-client-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let registry = Registry::in_dir(&dir);
        let source = Location::open(&dir, OFlags::PATH).unwrap().0;
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
            converse(&Target::from(found), &request, "flushing", true)
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
    fn a_status_tells_in_words_what_is_worth_a_look_and_nothing_else() {
        let quiet = describe(&Status::sample());
        assert_eq!(quiet.lines().count(), 4, "{quiet}");
        let told = Status {
            oldest_ms: Some(12_345),
            failures: 3,
            reads: Reads { hits: 198, misses: 2, filled_bytes: 1 << 20 },
            writers: Writers { paused_ms: 1500, paused: 4, parked: 3, parked_bytes: 0 },
            ..Status::sample()
        };
        let text = describe(&told);
        for line in [
            "not yet durable 0 B), for 12s\n",
            "  read: 200 pages, 99 % of them found in the cache; 1.0 MiB brought from the source\n",
            "  writers: paused 1s 500ms since the mount, 7 wait now\n",
            "  write-back failed 3 times, and succeeded then\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let failing = describe(&Status { failing: Some("no space".to_owned()), ..told });
        assert!(failing.contains("WRITE-BACK FAILS: no space, 3 times so far;"), "{failing}");
    }

    #[test]
    fn yes_may_be_short_and_everything_else_is_no() {
        assert!(["y", "yes\n", "Y\n", " Yes "].iter().all(|answer| is_yes(answer)));
        assert!(!["", "\n", "n", "no", "yess", "ye", "y y"].iter().any(|answer| is_yes(answer)));
    }
}
