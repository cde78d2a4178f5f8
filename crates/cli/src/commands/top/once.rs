//! A table or a JSON document from two samples, for scripts and for output that is not a terminal.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use slackwater_control::client::ANSWER_WITHIN;
use slackwater_control::exit::Failure;

use crate::arguments::DaemonSocket;
use crate::commands::survey::Survey;

use super::columns::Columns;
use super::rates::{Snapshot, Watch};
use super::screen::Screen;

/// Columns if there is no terminal to ask.
const COLUMNS: usize = 160;

/// The output of `--json`; `slackwater top --help` describes it.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    /// Time between the two samples.
    interval_ms: u64,
    #[serde(flatten)]
    snapshot: &'a Snapshot,
}

/// Takes two samples, `interval` apart, and prints the result.
///
/// # Blocking
/// For the interval, and up to ten seconds per sample for processes that do not answer: a script must not mistake a
/// slow process for a stopped one.
pub(super) fn run(at: &DaemonSocket, interval: Duration, json: bool) -> Result<(), Failure> {
    let mut watch = Watch::default();
    let since = Instant::now();
    watch.add(Survey::all(at, ANSWER_WITHIN)?);
    thread::sleep(interval.saturating_sub(since.elapsed()));
    let apart = since.elapsed();
    let snapshot = watch.add(Survey::all(at, ANSWER_WITHIN)?);
    let text = if json { document(&snapshot, apart) } else { table(snapshot, columns()) };
    // A reader that closes early has seen what it wanted.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn document(snapshot: &Snapshot, apart: Duration) -> String {
    let interval_ms = u64::try_from(apart.as_millis()).unwrap_or(u64::MAX);
    format!("{:#}\n", serde_json::json!(Document { version: 1, interval_ms, snapshot }))
}

/// The width of the terminal, if there is one.
fn columns() -> usize {
    let size = io::stdout().is_terminal().then(|| ratatui::crossterm::terminal::size().ok()).flatten();
    size.map_or(COLUMNS, |(columns, _)| usize::from(columns))
}

fn table(snapshot: Snapshot, columns: usize) -> String {
    let mut screen = Screen::default();
    screen.set_height(usize::MAX);
    screen.show(snapshot);
    let table = Columns::for_width(columns);
    let mut text = String::new();
    let mut add = |line: &str| text += &format!("{}\n", line.trim_end());
    let mut rows = screen.visible().peekable();
    if rows.peek().is_none() {
        return "Nothing is mounted.\n".to_owned();
    }
    add(&table.titles(screen.order()));
    for (content, _) in rows {
        add(&String::from_iter(table.row(content, false).into_iter().map(|(_, text)| text)));
    }
    text
}
