//! `slackwater events`.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;
use slackwater_control::client::{ANSWER_WITHIN, Conversation};
use slackwater_control::daemon::{SILENCE, no_daemon, successor};
use slackwater_control::exit::Failure;
use slackwater_control::protocol::{Event, EventKind, KeptStatus, List, Reply, Request, VolumeRef};

use crate::arguments::QueryArguments;
use crate::volume::tenants::time;

/// Prints events until it is interrupted or the daemon ends.
pub(crate) fn run(arguments: &QueryArguments) -> Result<(), Failure> {
    let socket = arguments.at.path()?;
    let failed = |error: io::Error| no_daemon(&socket, &error);
    let open = || Conversation::open(&socket, &VolumeRef::default(), &Request::Events, ANSWER_WITHIN).map_err(failed);
    let mut daemon = open()?;
    loop {
        let event = match daemon.next(Some(SILENCE)) {
            Ok(Reply::Event(event)) => event,
            Ok(reply) => return reply.done(),
            Err(error) => {
                let (list, kept) = successor(&socket, &error).ok_or_else(|| failed(error))?;
                daemon = open()?;
                taken_over(&list, &kept)
            }
        };
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

/// The process that sends events has changed.
fn taken_over(list: &List, kept: &KeptStatus) -> Event {
    let pause = kept.last_pause_ms.map(|ms| format!(", after a pause of {}", time(ms))).unwrap_or_default();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    Event { time_ms, what: EventKind::TakenOver, name: None, text: format!("by pid {}{pause}", list.pid) }
}

fn line(event: &Event) -> String {
    let time = format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_millis(event.time_ms));
    let what = match event.what {
        EventKind::Mounted => "mounted",
        EventKind::Unmounting => "unmounting",
        EventKind::StillMounted => "still mounted",
        EventKind::Unmounted => "unmounted",
        EventKind::Warning => "warning",
        EventKind::TakenOver => "taken over",
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
