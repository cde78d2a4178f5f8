//! The picture of `slackwater top` in the documents, drawn from the screen.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};
use slackwater_control::protocol::{Phase, Status};
use slackwater_host::Printable as _;

use super::draw::{Palette, draw};
use super::rates::Watch;
use super::screen::Screen;
use super::tests::{look, status, tenant};

const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/top.svg");
const MIB: u64 = 1 << 20;
const COLUMNS: u16 = 120;
const ROWS: u16 = 14;
/// Size of a cell, and of the margin, in pixels.
const CELL: (f64, f64) = (8.4, 19.0);
const MARGIN: f64 = 16.0;

/// A daemon with a busy volume, one that is unmounted, and a tenant at its limit.
fn statuses(seconds: u64) -> Vec<Status> {
    let mut backup = tenant(3, "/app/backup", 58, Some(64));
    (backup.dirty_bytes, backup.writeback_bytes, backup.unstable_bytes) = (41 * MIB, 17 * MIB, 6 * MIB);
    (backup.charged_bytes, backup.written_bytes) = (64 * MIB, seconds * 118 * MIB);
    (backup.wants_room, backup.oldest_ms, backup.paused_ms) = (true, Some(12_400), seconds * 870);
    let mut web = tenant(2, "/app/nginx", 9, Some(256));
    (web.written_bytes, web.oldest_ms, web.hits, web.misses) =
        (seconds * 3 * MIB, Some(4_100), seconds * 9_000, seconds * 70);
    let mut data = status(4711, "/mnt/web", vec![backup, web]);
    (data.name, data.open_files, data.share_bytes) = (Some("web".to_owned()), 184, Some(205 * MIB));
    (data.reads.hits, data.reads.misses) = (seconds * 12_000, seconds * 240);

    let mut database = tenant(4, "/app/postgres", 31, None);
    (database.written_bytes, database.oldest_ms) = (seconds * 22 * MIB, Some(2_300));
    let mut db = status(4711, "/mnt/db", vec![database]);
    (db.name, db.open_files, db.share_bytes) = (Some("db".to_owned()), 57, Some(205 * MIB));
    (db.reads.hits, db.reads.misses) = (seconds * 4_000, seconds * 11);

    let mut archive = status(4711, "/mnt/archive", vec![tenant(0, "root", 120, None)]);
    (archive.name, archive.phase, archive.share_bytes) =
        (Some("archive".to_owned()), Phase::Unmounting, Some(205 * MIB));
    archive.written_bytes = seconds * 48 * MIB;
    let mut all = vec![data, db, archive];
    all.iter_mut().for_each(|status| status.cache_bytes = 1 << 30);
    all
}

fn colour(colour: Color, is_bold: bool) -> &'static str {
    let known = [(Color::Red, "#ff8f8f"), (Color::Yellow, "#f3b95a"), (Color::Cyan, "#4fd1e0")];
    let plain = if is_bold { "#ffffff" } else { "#cdd8e1" };
    known.into_iter().find(|(name, _)| *name == colour).map_or(plain, |(_, value)| value)
}

/// The cells of a screen, each run of the same style as one text.
fn svg(backend: &TestBackend) -> String {
    let buffer = backend.buffer();
    let (width, height) = (f64::from(COLUMNS) * CELL.0 + 2.0 * MARGIN, f64::from(ROWS) * CELL.1 + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"ui-monospace, \
         'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\">\n<title>slackwater top</title>\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" rx=\"10\" fill=\"#111a22\"/>\n"
    );
    for (row, cells) in (0_u16..).zip(buffer.content().chunks(usize::from(COLUMNS))) {
        let top = MARGIN + f64::from(row) * CELL.1;
        let runs = cells.chunk_by(|a, b| (a.fg, a.modifier) == (b.fg, b.modifier));
        let mut column = 0.0;
        for run in runs {
            let (left, wide) = (MARGIN + column * CELL.0, run.len() as f64 * CELL.0);
            column += run.len() as f64;
            let text: String = run.iter().map(|cell| cell.symbol()).collect();
            let (is_bold, is_reversed) =
                (run[0].modifier.contains(Modifier::BOLD), run[0].modifier.contains(Modifier::REVERSED));
            if is_reversed {
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{:.1}\" fill=\"#2b3b49\"/>",
                    CELL.1
                );
            }
            // Spaces at both ends are left out, and the rest is as wide as its cells in any font.
            let inner = text.trim();
            if inner.is_empty() {
                continue;
            }
            let before = text.chars().take_while(|letter| *letter == ' ').count() as f64;
            let escaped = inner.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" textLength=\"{:.1}\" fill=\"{}\"{} xml:space=\"preserve\">{escaped}</text>",
                left + before * CELL.0,
                top + 14.0,
                inner.chars().count() as f64 * CELL.0,
                colour(run[0].fg, is_bold),
                if is_bold { " font-weight=\"bold\"" } else { "" },
            );
        }
    }
    svg + "</svg>\n"
}

#[test]
fn the_picture_in_the_documents_is_that_of_the_screen() {
    let (mut watch, start) = (Watch::default(), Instant::now());
    watch.add(look(start, statuses(10)));
    let mut screen = Screen::default();
    screen.show(watch.add(look(start + Duration::from_secs(1), statuses(11))));
    let mut terminal = Terminal::new(TestBackend::new(COLUMNS, ROWS)).unwrap();
    terminal.draw(|frame| draw(frame, &mut screen, Palette::Colours)).unwrap();
    let drawn = svg(terminal.backend());
    if std::fs::read_to_string(PICTURE).ok().as_ref() != Some(&drawn) {
        let new = std::env::temp_dir().join("slackwater-top.svg");
        std::fs::write(&new, drawn).unwrap();
        panic!("the screen has changed: look at the new picture and move it to docs/top.svg ({})", new.printable());
    }
}
