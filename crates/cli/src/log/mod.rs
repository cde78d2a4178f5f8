//! Events of the engine on standard error: as text for people or, with `SLACKWATER_LOG_FORMAT=json`, as one JSON object
//! per line. Messages of the command itself are not affected.
//!
//! Similar warnings and errors are limited in number ([`limit`]); lower levels that `SLACKWATER_LOG` enables are not.
//! The log of a mount in the background is bounded in size ([`file`]).

pub(crate) mod file;
mod limit;

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use slackwater_control::errln;
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::log::limit::{LeftOut, Limiter};

/// The format of a line.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Format {
    Text,
    Json,
}

/// Logs warnings and errors from now on; `SLACKWATER_LOG` changes the level.
pub(crate) fn start() {
    let level = match env::var("SLACKWATER_LOG").unwrap_or_default().as_str() {
        "" => LevelFilter::WARN,
        level => level.parse().unwrap_or_else(|_| {
            const LEVELS: &str = "off, error, warn, info, debug and trace";
            errln!("slackwater: SLACKWATER_LOG={level:?} is unknown; using warn (the levels are {LEVELS})");
            LevelFilter::WARN
        }),
    };
    let format = env::var("SLACKWATER_LOG_FORMAT").unwrap_or_default();
    let format = match format.as_str() {
        "" | "text" => Format::Text,
        "json" => Format::Json,
        other => {
            errln!("slackwater: SLACKWATER_LOG_FORMAT={other:?} is unknown; using text (the other format is json)");
            Format::Text
        }
    };
    print(level, format, StandardError::new(format)).init();
}

type Forward = Box<dyn Fn(&str) + Send + Sync>;

/// A second receiver of warnings and errors.
static FORWARD: OnceLock<Forward> = OnceLock::new();

/// Passes each line of a warning or an error to `sink` from now on. Only the first call has an effect.
pub(crate) fn forward_to(sink: impl Fn(&str) + Send + Sync + 'static) {
    // A process calls this once.
    let _ = FORWARD.set(Box::new(sink));
}

/// The log file behind standard error, if there is one.
static LOG: OnceLock<File> = OnceLock::new();

/// Bounds the size of `log`, to which standard error goes from now on.
pub(crate) fn bound(log: File) {
    // A process detaches from its terminal once.
    let _ = LOG.set(log);
}

/// The writer for events.
struct StandardError {
    format: Format,
    limiter: Mutex<Limiter<Identifier>>,
}

impl StandardError {
    fn new(format: Format) -> Self {
        Self { format, limiter: Mutex::new(Limiter::new()) }
    }

    fn print(&self, line: &str, is_warning: bool) -> io::Result<()> {
        if let Some(sink) = FORWARD.get().filter(|_| is_warning) {
            sink(line.trim_end());
        }
        io::stderr().write_all(line.as_bytes())
    }
}

/// The writer of one event.
struct Line<'a> {
    to: &'a StandardError,
    /// Where the event comes from, if it is a warning.
    warning_of: Option<Identifier>,
}

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { to: self, warning_of: None }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Line<'a> {
        Line { to: self, warning_of: (*event.level() <= Level::WARN).then(|| event.callsite()) }
    }
}

impl Write for Line<'_> {
    /// Receives the whole line in one call.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (line, now) = (String::from_utf8_lossy(bytes), Instant::now());
        let mut limiter = self.to.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        for left_out in limiter.over(now) {
            self.to.print(&with_count(left_out, self.to.format), true)?;
        }
        if self.warning_of.clone().is_none_or(|kind| limiter.passes(kind, &line, now)) {
            self.to.print(&line, self.warning_of.is_some())?;
        }
        if let Some(log) = LOG.get() {
            file::keep_below(log, file::MOST_BYTES)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The line that stands for all lines of a kind that were left out.
fn with_count(LeftOut { line, lines }: LeftOut, format: Format) -> String {
    match (format, serde_json::from_str::<serde_json::Value>(&line)) {
        (Format::Json, Ok(mut line)) => {
            line["left_out"] = lines.into();
            format!("{line}\n")
        }
        _ => format!("{} ({lines} lines like this, in {} s)\n", line.trim_end(), limit::WINDOW.as_secs()),
    }
}

fn print<W>(level: LevelFilter, format: Format, to: W) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines =
        tracing_subscriber::fmt().with_max_level(level).with_writer(to).with_ansi(false).log_internal_errors(false);
    match format {
        Format::Text => Box::new(lines.finish()),
        Format::Json => Box::new(lines.json().finish()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Collects what is written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_second_receiver_gets_only_warnings() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = Arc::clone(&heard);
        forward_to(move |line| hearing.lock().unwrap().push(line.to_owned()));
        tracing::subscriber::with_default(
            print(LevelFilter::INFO, Format::Text, StandardError::new(Format::Text)),
            || {
                tracing::info!("all is well");
                tracing::warn!(target: "slackwater::writeback", volume = "web", "it fails");
            },
        );
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert!(heard[0].contains("slackwater::writeback: it fails volume=\"web\"") && !heard[0].ends_with('\n'));
    }

    #[test]
    fn a_count_keeps_the_format_of_the_line() {
        let text = LeftOut { line: "then  WARN it fails\n".into(), lines: 990 };
        assert_eq!(with_count(text, Format::Text), "then  WARN it fails (990 lines like this, in 30 s)\n");
        let json = LeftOut { line: "{\"level\":\"WARN\"}\n".into(), lines: 990 };
        let line = with_count(json, Format::Json);
        let line: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert!(line["left_out"] == 990 && line["level"] == "WARN", "{line}");
    }

    #[test]
    fn each_line_is_one_event_and_an_object_whatever_is_in_it() {
        let names = ["/mnt", "a\nb", "\"}", "\u{1b}[2J", "\u{0}\u{202e}\\"];
        let kept = Kept::default();
        let to = kept.clone();
        tracing::subscriber::with_default(print(LevelFilter::DEBUG, Format::Json, move || to.clone()), || {
            for (ino, volume) in (0_u64..).zip(names) {
                tracing::warn!(target: "slackwater::writeback", volume, ino, "something");
            }
            tracing::trace!("below the level");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), names.len(), "{text}");
        for ((ino, volume), line) in (0_u64..).zip(names).zip(lines) {
            assert_eq!((&line["level"], &line["target"]), (&"WARN".into(), &"slackwater::writeback".into()));
            let fields = &line["fields"];
            assert_eq!((&fields["message"], &fields["volume"]), (&"something".into(), &volume.into()), "{line}");
            assert!(fields["ino"] == ino && line["timestamp"].is_string(), "{line}");
        }
    }
}
