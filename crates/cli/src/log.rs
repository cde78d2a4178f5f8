//! What the engine tells of itself, on standard error: as lines for people or, with `SLACKWATER_LOG_FORMAT=json`, each as an
//! object for programs. What the command says to whoever runs it stays as it is.

use std::env;
use std::io::{self, Write};
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::terminal::say;

/// How a line is written.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Format {
    Text,
    Json,
}

/// Prints warnings and errors from now on; `SLACKWATER_LOG` says from which level on.
pub(crate) fn start() {
    let level = env::var("SLACKWATER_LOG").ok().and_then(|level| level.parse().ok());
    let format = env::var("SLACKWATER_LOG_FORMAT").unwrap_or_default();
    let format = match format.as_str() {
        "" | "text" => Format::Text,
        "json" => Format::Json,
        other => {
            say!("slackwater: SLACKWATER_LOG_FORMAT={other:?} is unknown: text is written; json is the other form");
            Format::Text
        }
    };
    print(level.unwrap_or(LevelFilter::WARN), format, StandardError).init();
}

type Told = Box<dyn Fn(&str) + Send + Sync>;

/// Who else hears of warnings and errors.
static TOLD: OnceLock<Told> = OnceLock::new();

/// Tells `told` each line of a warning or an error from now on, as it is written. The first who asks for it is told.
pub(crate) fn also_tell(told: impl Fn(&str) + Send + Sync + 'static) {
    // A process has one such.
    let _ = TOLD.set(Box::new(told));
}

/// Where events are printed.
struct StandardError;

/// One event.
struct Line {
    is_warning: bool,
}

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { is_warning: false }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Line {
        Line { is_warning: *event.level() <= Level::WARN }
    }
}

impl Write for Line {
    /// Gets the whole line at once.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(told) = TOLD.get().filter(|_| self.is_warning) {
            told(String::from_utf8_lossy(bytes).trim_end());
        }
        io::stderr().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
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

    /// Keeps what is written.
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
    fn who_wants_to_know_is_told_of_warnings_alone() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = Arc::clone(&heard);
        also_tell(move |line| hearing.lock().unwrap().push(line.to_owned()));
        tracing::subscriber::with_default(print(LevelFilter::INFO, Format::Text, StandardError), || {
            tracing::info!("all is well");
            tracing::warn!(target: "slackwater::writeback", volume = "web", "it fails");
        });
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert!(heard[0].contains("slackwater::writeback: it fails volume=\"web\"") && !heard[0].ends_with('\n'));
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
            tracing::trace!("too little to be told");
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
