//! `slackwater events`.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;

use crate::arguments::QueryArguments;
use crate::commands::target::{SILENCE, no_daemon};
use crate::control::client::{ANSWER_WITHIN, Conversation};
use crate::control::protocol::{Event, EventKind, Reply, Request, VolumeRef};
use crate::exit::Failure;

/// Prints events until it is interrupted or the daemon ends.
pub(crate) fn run(arguments: &QueryArguments) -> Result<(), Failure> {
    let socket = arguments.at.path()?;
    let failed = |error: io::Error| no_daemon(&socket, &error);
    let mut daemon =
        Conversation::open(&socket, &VolumeRef::default(), &Request::Events, ANSWER_WITHIN).map_err(failed)?;
    loop {
        let reply = daemon.next(Some(SILENCE)).map_err(failed)?;
        let Reply::Event(event) = reply else { return reply.done() };
        if event.what == EventKind::Idle {
            continue;
        }
        let line = if arguments.json { serde_json::to_string(&event).unwrap_or_default() } else { line(&event) };
        if writeln!(io::stdout(), "{line}").is_err() {
            // The reader of the output is gone.
            return Ok(());
        }
    }
}

fn line(event: &Event) -> String {
    let time = format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_millis(event.time_ms));
    let what = match event.what {
        EventKind::Mounted => "mounted",
        EventKind::Unmounting => "unmounting",
        EventKind::StillMounted => "still mounted",
        EventKind::Unmounted => "unmounted",
        EventKind::Warning => "warning",
        EventKind::Missed => "missed",
        EventKind::Idle => "idle",
    };
    let mut line = format!("{time} {what}");
    if let Some(name) = &event.name {
        line += &format!(" {name}");
    }
    if !event.text.is_empty() {
        line += &format!(": {}", event.text.replace('\n', " "));
    }
    line
}
