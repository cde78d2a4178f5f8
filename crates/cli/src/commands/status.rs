//! `slackwater status`.

use std::io::{self, Write};
use std::path::Path;

use slackwater_control::client::ANSWER_WITHIN;
use slackwater_control::errln;
use slackwater_control::exit::Failure;
use slackwater_control::output::shell;
use slackwater_control::protocol::{FailedUpgrade, KeptStatus, ObjectRole, ObjectStatus, Phase, Status};
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::arguments::StatusArguments;
use crate::commands::survey::Survey;
use crate::commands::target::Target;
use crate::volume::rescued::Removed;
use crate::volume::tenants;

/// Prints the status of one or all mounts.
pub(crate) fn run(arguments: &StatusArguments) -> Result<(), Failure> {
    let (at, json) = (&arguments.at, arguments.json);
    let survey = match &arguments.volume {
        None => Survey::all(at, ANSWER_WITHIN)?,
        Some(word) => Target::find(word, at)?.attempt(|target| Survey::of_target(target, ANSWER_WITHIN))?,
    };
    survey.silent.iter().for_each(|entry| errln!("pid {} does not answer", entry.pid));
    let (mounts, dead): (Vec<_>, _) = (survey.answers.iter().map(|answer| &answer.status).collect(), &survey.dead);
    let mut out = String::new();
    if json {
        let dead: Vec<_> = dead
            .iter()
            .map(|entry| serde_json::json!({ "pid": entry.pid, "source": entry.source.name(), "mountpoint": entry.mountpoint, "arena": entry.arena }))
            .collect();
        out = format!("{:#}\n", serde_json::json!({ "version": 1, "mounts": mounts, "dead": dead }));
    } else {
        if mounts.is_empty() && dead.is_empty() {
            out += "Nothing is mounted.\n";
        }
        mounts.iter().for_each(|status| out += &describe(status));
        for entry in dead {
            let (source, arena) = (entry.source.name().printable(), entry.arena.printable());
            out += &format!(
                "{source} was mounted at {} by pid {}, which died.\n",
                entry.mountpoint.printable(),
                entry.pid
            );
            out += &format!("  Its unwritten data is in {arena}: mount {source} again to write it back.\n");
        }
    }
    // A reader that closes early has seen what it wanted.
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
    let mut text = format!("{} at {}", status.source.printable(), status.mountpoint.printable());
    status.more_mountpoints.iter().for_each(|more| text += &format!(", {}", more.printable()));
    text += "\n";
    text += &format!(
        "  {phase}, pid {}, cache {} in {}\n",
        status.pid,
        bytes(status.cache_bytes),
        status.arena.printable()
    );
    let oldest = status.oldest_ms.map(|ms| format!(", oldest {}", tenants::time(ms))).unwrap_or_default();
    text += &format!(
        "  unwritten: {} (dirty {}, being written {}, not yet durable {}){oldest}\n",
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
            "  read: {} pages, {percent} % found in the cache; {} read from the source\n",
            reads.hits + reads.misses,
            bytes(reads.filled_bytes)
        );
    }
    let writers = &status.writers;
    let waiting = writers.paused + writers.parked;
    if waiting > 0 || writers.paused_ms > 0 {
        text +=
            &format!("  writers: paused {} since the mount, {waiting} waiting now\n", tenants::time(writers.paused_ms));
    }
    if writers.refused_mapped_bytes > 0 {
        text +=
            &format!("  STORES LOST: {} stored to mapped files were refused\n", bytes(writers.refused_mapped_bytes));
    }
    let pressure = &status.memory_pressure;
    if pressure.events > 0 {
        text += &format!("  memory was short {} times: {} objects freed\n", pressure.events, pressure.freed_objects);
    }
    let is_fenced = status.object.as_ref().is_some_and(|object| object.role == ObjectRole::Fenced);
    if let Some(error) = status.failing.as_ref().filter(|_| !is_fenced) {
        // Mount processes of earlier versions do not count failures.
        let times = Some(status.failures).filter(|failures| *failures > 0);
        let times = times.map(|failures| format!(", {failures} times so far")).unwrap_or_default();
        text += &format!("  WRITE-BACK FAILS: {error}{times}; the data is kept and retried\n");
    } else if status.failures > 0 && !is_fenced {
        text += &format!("  write-back failed {} times and has succeeded since\n", status.failures);
    }
    if let Some(removed) = Removed::of(status) {
        removed.advice().iter().for_each(|line| text += &format!("  {line}\n"));
    }
    if let Some(object) = &status.object {
        text += &describe_object(object, &status.mountpoint);
    }
    text += &status.kept.as_ref().map(describe_kept).unwrap_or_default();
    tenants::lines(status).iter().for_each(|line| text += &format!("  {line}\n"));
    match (status.transport.as_str(), &status.no_uring) {
        ("uring", _) => text += "  requests come over io_uring\n",
        (_, Some(why)) => text += &format!("  requests come over /dev/fuse; io_uring: {why}\n"),
        _ => {}
    }
    status.missing_features.iter().for_each(|missing| text += &format!("  missing: {missing}\n"));
    text
}

/// How a mount or a daemon is kept, in lines.
pub(super) fn describe_kept(kept: &KeptStatus) -> String {
    let KeptStatus { keeper, is_kept, is_silent, takeovers, .. } = kept;
    let KeptStatus { last_pause_ms, longest_pause_ms, serving_ms, failed_upgrade, .. } = kept;
    let longest = longest_pause_ms.filter(|longest| Some(*longest) > *last_pause_ms);
    let longest = longest.map(|ms| format!("; the longest was {}", tenants::time(ms))).unwrap_or_default();
    let past = match last_pause_ms {
        None => "this is its first process".to_owned(),
        Some(ms) => format!(
            "taken over {takeovers} times, the last time {} ago with a pause of {}{longest}",
            tenants::time(*serving_ms),
            tenants::time(*ms)
        ),
    };
    let mut text = match is_kept {
        true if *is_silent => format!(
            "  kept by pid {keeper}, which DOES NOT ANSWER: no process takes over before it does; \
             kill -CONT {keeper} continues it if it is stopped\n  {past}\n"
        ),
        true => format!("  kept by pid {keeper}: {past}\n"),
        false => format!(
            "  NOT KEPT ANY MORE: a crash of this process would end the mount (pid {keeper}, which kept it, is gone); \
             {past}\n"
        ),
    };
    if let Some(FailedUpgrade { program, error }) = failed_upgrade {
        text += &format!("  the last upgrade to {} failed: {}\n", program.printable(), error.printable());
    }
    text
}

fn describe_object(object: &ObjectStatus, mountpoint: &Path) -> String {
    let (bytes, mountpoint) = (size::text, shell::word(mountpoint));
    let age = |ms: Option<u64>| ms.map_or_else(|| "none yet".to_owned(), |ms| format!("{} ago", tenants::time(ms)));
    let last = age(object.last_commit_ms);
    let mut text = match object.role {
        ObjectRole::Writer => {
            let oldest = object.uncommitted_ms.map(|ms| format!(", oldest {}", tenants::time(ms))).unwrap_or_default();
            let pending = match object.uncommitted_changes {
                0 => String::new(),
                changes => format!(", {changes} changes only in the local log{oldest}"),
            };
            format!("  object store: last commit {last}, {} since the mount{pending}\n", object.commits)
        }
        ObjectRole::Reader => format!("  object store: reading, the writer's state of {last}\n"),
        ObjectRole::Fenced => {
            let by = object.fenced_by.as_deref().unwrap_or("another process");
            format!(
                "  FENCED: {} took this volume over. Programs get ESTALE, and nothing more can be written.\n  \
                 To see what is lost, and to end this mount: slackwater umount --discard {mountpoint}\n",
                by.printable()
            )
        }
    };
    let failed = match object.failed_requests {
        0 => String::new(),
        failed => format!(", {failed} of them failed"),
    };
    text += &format!(
        "  requests: {}{failed}; {} uploads in flight, sent {}, received {}\n",
        object.requests(),
        object.uploads_in_flight,
        bytes(object.sent_bytes),
        bytes(object.received_bytes)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_control::protocol::{Reads, Writers};

    #[test]
    fn status_text_mentions_only_what_is_notable() {
        let quiet = describe(&Status::sample());
        assert_eq!(quiet.lines().count(), 4, "{quiet}");
        let status = Status {
            oldest_ms: Some(12_345),
            failures: 3,
            reads: Reads { hits: 198, misses: 2, filled_bytes: 1 << 20 },
            writers: Writers { paused_ms: 1500, paused: 4, parked: 3, parked_bytes: 0, refused_mapped_bytes: 5 << 20 },
            ..Status::sample()
        };
        let text = describe(&status);
        for line in [
            "not yet durable 0 B), oldest 12s\n",
            "  read: 200 pages, 99 % found in the cache; 1.0 MiB read from the source\n",
            "  writers: paused 1s 500ms since the mount, 7 waiting now\n",
            "  STORES LOST: 5.0 MiB stored to mapped files were refused\n",
            "  write-back failed 3 times and has succeeded since\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let kept = KeptStatus { keeper: 7, is_kept: true, ..KeptStatus::default() };
        let of = |kept: &KeptStatus| describe(&Status { kept: Some(kept.clone()), ..Status::sample() });
        assert!(of(&kept).contains("  kept by pid 7: this is its first process\n"), "{}", of(&kept));
        let pause_ms = Some(17);
        let (last_pause_ms, longest_pause_ms) = (pause_ms, pause_ms);
        let kept = KeptStatus { takeovers: 2, last_pause_ms, longest_pause_ms, serving_ms: 3000, ..kept };
        let lines = "  kept by pid 7: taken over 2 times, the last time 3s ago with a pause of 17ms\n";
        assert!(of(&kept).contains(lines), "{}", of(&kept));
        let longer = of(&KeptStatus { longest_pause_ms: Some(40), ..kept.clone() });
        assert!(longer.contains("with a pause of 17ms; the longest was 40ms\n"), "{longer}");
        let failed_upgrade = Some(FailedUpgrade { program: "/next".into(), error: "it died".into() });
        let failed = of(&KeptStatus { failed_upgrade, ..kept.clone() });
        assert!(failed.contains("  the last upgrade to /next failed: it died\n"), "{failed}");
        let silent = of(&KeptStatus { is_silent: true, ..kept.clone() });
        assert!(silent.contains("pid 7, which DOES NOT ANSWER"), "{silent}");
        let lost = of(&KeptStatus { is_kept: false, ..kept });
        assert!(lost.contains("NOT KEPT ANY MORE"), "{lost}");
        let object = |object| describe(&Status { object: Some(object), ..Status::sample() });
        let writer = object(ObjectStatus {
            uncommitted_changes: 7,
            uncommitted_ms: Some(3000),
            gets: 5,
            failed_requests: 2,
            ..ObjectStatus::sample()
        });
        for line in [
            "last commit 0s ago, 0 since the mount, 7 changes only in the local log, oldest 3s",
            "requests: 5, 2 of them",
        ] {
            assert!(writer.contains(line), "{line}: {writer}");
        }
        let fenced_by = Some("pid 7 on b".to_owned());
        let fenced = Some(ObjectStatus { role: ObjectRole::Fenced, fenced_by, ..ObjectStatus::sample() });
        let fenced = describe(&Status { object: fenced, failing: Some("stale".to_owned()), ..Status::sample() });
        assert!(fenced.contains("FENCED: pid 7 on b took this volume over"), "{fenced}");
        assert!(!fenced.contains("retried"), "{fenced}");
        let failing = describe(&Status { failing: Some("no space".to_owned()), ..status });
        assert!(failing.contains("WRITE-BACK FAILS: no space, 3 times so far;"), "{failing}");
    }
}
