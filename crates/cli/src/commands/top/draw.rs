//! The screen as text with tones, for a terminal of any size.
//!
//! No information depends on colour alone: `!` marks problems, `>` the selected row, and letters form the bars.

use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::cells::{bytes, left, shortened, time, width};
use super::columns::{Columns, Pieces, Tone};
use super::groups::counted;
use super::rates::{Figures, Snapshot, sum, total};
use super::screen::Screen;

const HELP: &str = "\
d w p a n   sort by dirty, rate, paused, age, name
r           reverse the order
v Tab       volumes and tenants, volumes only, tenants only
f Enter     fold or unfold a group, as Space does; F all
j k arrows PageUp PageDown g G Home End   move
q Ctrl-C    quit

OF LIMIT    unwritten data as a part of the limit:
            # dirty, = being written, - not yet durable,
            + dirtied in others' files; full: writers block
DIRTY       written by programs, write-back not yet started
RATE/s      written back per second
PAUSED      time per second that writers were slowed down,
            summed over all volumes of the process
HITS        percentage of read pages found in the cache,
            without reads that the kernel answers itself
AGE         age of the oldest file waiting for write-back
!           needs attention: fenced, failing, at limit, no answer, died
K M G T     powers of 1024";

const KEYS: &str = "[d]irty [w]rate [p]aused [a]ge [n]ame [r]everse [v]iew [f]old [?]help [q]uit";

/// Whether colours are allowed.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Palette {
    Colours,
    Plain,
}

impl Palette {
    fn style(self, tone: Tone) -> Style {
        let (colour, modifier) = match tone {
            Tone::Plain => (None, Modifier::empty()),
            Tone::Title => (None, Modifier::REVERSED),
            Tone::Head => (None, Modifier::BOLD),
            Tone::Note => (Some(Color::Yellow), Modifier::empty()),
            Tone::Wrong => (Some(Color::Red), Modifier::BOLD),
            Tone::Bar => (Some(Color::Cyan), Modifier::empty()),
        };
        let style = Style::new().add_modifier(modifier);
        colour.filter(|_| self == Self::Colours).map_or(style, |colour| style.fg(colour))
    }
}

/// How many lines each part of the screen gets.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
struct Layout {
    summary: usize,
    titles: usize,
    table: usize,
    detail: usize,
    keys: usize,
}

impl Layout {
    /// The table gets the rest. On a low screen the keys are left out first, then the others.
    fn for_height(height: usize) -> Self {
        let [summary, titles, detail, keys] = match height {
            10.. => [2, 1, 1, 1],
            6..10 => [1, 1, 1, 0],
            3..6 => [1, 1, 0, 0],
            0..3 => [0, 0, 0, 0],
        };
        Self { summary, titles, table: height - summary - titles - detail - keys, detail, keys }
    }
}

/// The lines of the screen. Sets the number of rows that `screen` has for the table.
fn lines(screen: &mut Screen, columns: usize, rows: usize) -> Vec<Pieces> {
    let layout = Layout::for_height(rows);
    screen.set_height(layout.table);
    let table = Columns::for_width(columns);
    let plain = |text: &str| vec![(Tone::Plain, left(text, columns))];
    let mut lines: Vec<_> = summary(screen, columns).into_iter().take(layout.summary).collect();
    if layout.titles > 0 {
        lines.push(vec![(Tone::Title, table.titles(screen.order()))]);
    }
    let above = lines.len();
    if screen.shows_help() {
        lines.extend(HELP.lines().map(plain));
    } else {
        lines.extend(screen.visible().map(|(content, is_at)| table.row(content, is_at)));
        if lines.len() == above {
            lines.push(plain(if screen.has_sample() {
                "Nothing is mounted."
            } else {
                "Waiting for the mounts to answer."
            }));
        }
    }
    lines.resize(above + layout.table, plain(""));
    if layout.detail > 0 {
        lines.push(plain(&shortened(screen.detail(), columns)));
    }
    if layout.keys > 0 {
        lines.push(vec![(Tone::Title, left(KEYS, columns))]);
    }
    lines
}

/// A count of everything and of all problems, and the figures of all volumes.
fn summary(screen: &Screen, columns: usize) -> [Pieces; 2] {
    let snapshot = screen.snapshot();
    let Snapshot { volumes, silent, dead } = snapshot;
    let tenants = snapshot.tenants().count() as u64 + total(volumes.iter().map(|volume| volume.more_tenants));
    let what = format!("{}, {}", counted(volumes.len() as u64, "volume"), counted(tenants, "tenant"));
    let fenced = volumes.iter().filter(|volume| volume.is_fenced()).count();
    let failing = volumes.iter().filter(|volume| !volume.is_fenced() && volume.failing.is_some()).count();
    let at_limit = snapshot.tenants().filter(|tenant| tenant.wants_room).count();
    let wrong = [
        (fenced, "fenced"),
        (failing, "failing"),
        (dead.len(), "died"),
        (silent.len(), "silent"),
        (at_limit, "at limit"),
    ];
    let wrong: String =
        wrong.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("  ! {count} {what}")).collect();
    let hidden = match screen.hidden() {
        (0, 0) => String::new(),
        (above, below) => format!("{above} rows above, {below} below"),
    };
    let space = columns.saturating_sub(width(&what) + width(&wrong));
    let hidden = if width(&hidden) < space { format!("{hidden:>space$}") } else { " ".repeat(space) };
    let first = vec![(Tone::Head, what), (Tone::Wrong, wrong), (Tone::Plain, hidden)];

    let figure = |of: fn(&Figures) -> u64| bytes(total(volumes.iter().map(|volume| of(&volume.figures))));
    let rate = sum(volumes.iter().map(|volume| volume.figures.written_bytes_per_s));
    let paused = sum(snapshot.tenants().map(|tenant| tenant.figures.paused_ms_per_s));
    let second = format!(
        "dirty {}, writing {}, unstable {}; written {}/s, paused {}/s",
        figure(|figures| figures.dirty_bytes),
        figure(|figures| figures.writeback_bytes),
        figure(|figures| figures.unstable_bytes),
        rate.map_or_else(|| "-".to_owned(), bytes),
        paused.map_or_else(|| "-".to_owned(), time),
    );
    [first, vec![(Tone::Plain, left(&second, columns))]]
}

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen, palette: Palette) {
    let area = frame.area();
    let lines = lines(screen, usize::from(area.width), usize::from(area.height));
    for (y, pieces) in (area.top()..area.bottom()).zip(lines) {
        let spans = pieces.into_iter().map(|(tone, text)| Span::styled(text, palette.style(tone)));
        frame.buffer_mut().set_line(area.left(), y, &Line::from_iter(spans), area.width);
    }
}
