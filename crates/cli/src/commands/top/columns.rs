//! The columns that fit, and the text of a row in them.
//!
//! Widths depend on the terminal and never on the figures, so columns stay in place from sample to sample.

use super::cells::{bar, bytes, left, percent, right, shortened, time};
use super::groups::{Line, Order, SortBy};
use super::rates::Figures;
use super::screen::{Content, Fold};

/// The mark of the selected row, `!`, the fold mark, and a blank.
const PREFIX: usize = 4;
/// Indentation of the members of a group.
const INDENT: usize = 2;
/// A column is left out if the name would get less than this.
const NAME_MIN: usize = 17;
/// The width of a terminal from which on a bar is twice as long.
const WIDE: usize = 120;

/// The role of a piece of text, which determines its colour.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Tone {
    Plain,
    Title,
    Head,
    Note,
    Wrong,
    Bar,
}

/// A row in pieces.
pub(super) type Pieces = Vec<(Tone, String)>;

/// The content of a column.
enum Cell {
    State,
    Bar,
    /// A text made of the figures; `None` if the figure is not known.
    Figure(fn(&Figures) -> Option<String>),
    OpenFiles,
}

struct Column {
    title: &'static str,
    width: usize,
    /// Columns with the lowest rank are left out last.
    rank: u32,
    sort: Option<SortBy>,
    cell: Cell,
}

/// The columns, from left to right.
const COLUMNS: [Column; 11] = [
    Column::new("STATE", 10, 0, None, Cell::State),
    Column::new("OF LIMIT", 12, 1, None, Cell::Bar),
    Column::new("DIRTY", 6, 2, Some(SortBy::Dirty), Cell::Figure(|of| Some(bytes(of.dirty_bytes)))),
    Column::new("LIMIT", 6, 7, None, Cell::Figure(|of| of.limit_bytes.map(bytes))),
    Column::new("WRITING", 7, 8, None, Cell::Figure(|of| Some(bytes(of.writeback_bytes)))),
    Column::new("UNSTABLE", 8, 9, None, Cell::Figure(|of| Some(bytes(of.unstable_bytes)))),
    Column::new("RATE/s", 7, 3, Some(SortBy::Rate), Cell::Figure(|of| of.written_bytes_per_s.map(bytes))),
    Column::new("PAUSED", 7, 4, Some(SortBy::Paused), Cell::Figure(|of| of.paused_ms_per_s.map(time))),
    Column::new("HITS", 5, 6, None, Cell::Figure(|of| of.found?.percent().map(percent))),
    Column::new("AGE", 5, 5, Some(SortBy::Age), Cell::Figure(|of| of.oldest_ms.map(time))),
    Column::new("OPEN", 5, 10, None, Cell::OpenFiles),
];

impl Column {
    const fn new(title: &'static str, width: usize, rank: u32, sort: Option<SortBy>, cell: Cell) -> Self {
        Self { title, width, rank, sort, cell }
    }

    fn width_in(&self, terminal: usize) -> usize {
        match self.cell {
            Cell::Bar if terminal >= WIDE => 2 * self.width - 2,
            Cell::State | Cell::Bar | Cell::Figure(_) | Cell::OpenFiles => self.width,
        }
    }

    /// The text of a cell: blank if the process cannot be asked, `-` if the figure is not known yet.
    fn text(&self, line: &Line, width: usize) -> String {
        let Some(figures) = &line.figures else {
            return left(if matches!(self.cell, Cell::State) { line.state } else { "" }, width);
        };
        match self.cell {
            Cell::State => left(line.state, width),
            Cell::Bar => bar(figures, width),
            Cell::Figure(of) => right(&of(figures).unwrap_or_else(|| "-".to_owned()), width),
            Cell::OpenFiles => right(&line.open_files.map(|count| count.to_string()).unwrap_or_default(), width),
        }
    }
}

/// The columns that fit.
pub(super) struct Columns {
    name: usize,
    /// The columns that are shown, with their widths.
    chosen: Vec<(&'static Column, usize)>,
    width: usize,
}

impl Columns {
    /// The columns for a terminal of this width.
    pub(super) fn for_width(width: usize) -> Self {
        let mut left = width.saturating_sub(PREFIX);
        let mut by_rank: Vec<_> = COLUMNS.iter().collect();
        by_rank.sort_by_key(|column| column.rank);
        let mut chosen: Vec<_> = Vec::new();
        for column in by_rank {
            if let Some(rest) = left.checked_sub(1 + column.width_in(width)).filter(|rest| *rest >= NAME_MIN) {
                left = rest;
                chosen.push(column.rank);
            }
        }
        let chosen = COLUMNS.iter().filter(|column| chosen.contains(&column.rank));
        Self { name: left, chosen: chosen.map(|column| (column, column.width_in(width))).collect(), width }
    }

    /// The header line. The sorted column is marked `v` for descending and `^` for ascending.
    pub(super) fn titles(&self, order: Order) -> String {
        let is_upward = order.is_reversed != (order.by == SortBy::Name);
        let mark = if is_upward { "^" } else { "v" };
        let marked =
            |title: &str, sort| if sort == Some(order.by) { format!("{mark}{title}") } else { title.to_owned() };
        let mut text = left("", PREFIX) + &left(&marked("NAME", Some(SortBy::Name)), self.name);
        for (column, width) in &self.chosen {
            let title = marked(column.title, column.sort);
            let align = if matches!(column.cell, Cell::State | Cell::Bar) { left } else { right };
            text = text + " " + &align(&title, *width);
        }
        left(&text, self.width)
    }

    /// The text of a row; `is_at` if it is selected.
    pub(super) fn row(&self, content: Content<'_>, is_at: bool) -> Pieces {
        let cursor = if is_at { '>' } else { ' ' };
        let (line, fold, indent, tone) = match content {
            Content::Note(text) => {
                let text = shortened(text, self.width.saturating_sub(PREFIX + INDENT));
                let text = format!("{cursor}{}{text}", " ".repeat(PREFIX + INDENT - 1));
                let tone = if text.trim_start().starts_with('!') { Tone::Wrong } else { Tone::Note };
                return vec![(tone, left(&text, self.width))];
            }
            Content::Head { line, fold } => (line, fold, 0, Tone::Head),
            Content::Member(line) => (line, Fold::Nothing, INDENT, Tone::Plain),
        };
        let fold = match fold {
            Fold::Nothing => ' ',
            Fold::Open => '-',
            Fold::Closed => '+',
        };
        let tone = if line.is_wrong { Tone::Wrong } else { tone };
        let mark = if line.is_wrong { '!' } else { ' ' };
        let name = " ".repeat(indent) + &shortened(&line.name, self.name.saturating_sub(indent));
        let prefix = left(&format!("{cursor}{mark}{fold} "), PREFIX.min(self.width));
        let mut pieces = vec![(tone, prefix + &left(&name, self.name))];
        for (column, width) in &self.chosen {
            let tone = if matches!(column.cell, Cell::Bar) { Tone::Bar } else { tone };
            pieces.push((tone, format!(" {}", column.text(line, *width))));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::cells::width;

    fn titles(width: usize) -> String {
        Columns::for_width(width).titles(Order::default())
    }

    #[test]
    fn columns_are_left_out_by_rank() {
        let words = |width| titles(width).split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(words(160), "NAME STATE OF LIMIT vDIRTY LIMIT WRITING UNSTABLE RATE/s PAUSED HITS AGE OPEN");
        assert_eq!(words(80), "NAME STATE OF LIMIT vDIRTY RATE/s PAUSED HITS AGE");
        assert_eq!(words(60), "NAME STATE OF LIMIT vDIRTY RATE/s");
        assert_eq!(words(40), "NAME STATE vDIRTY");
        assert_eq!(words(30), "NAME vDIRTY");
        assert_eq!(words(26), "NAME");
    }

    #[test]
    fn rows_and_titles_have_the_width_of_the_terminal_whatever_it_is() {
        let figures =
            Figures { limit_bytes: Some(5), held_bytes: u64::MAX, dirty_bytes: u64::MAX, ..Figures::default() };
        let name = "/\u{6f6e}/kubepods.slice/\u{6d41}".repeat(3);
        let line = Line { name, is_wrong: true, figures: Some(figures), ..Line::default() };
        for columns in (0..200).chain([1000]) {
            let table = Columns::for_width(columns);
            assert_eq!(titles(columns).len(), columns);
            for content in [
                Content::Head { line: &line, fold: Fold::Open },
                Content::Member(&line),
                Content::Note("unmount: 5 MiB left, 50.0 MB/s, about 4s"),
            ] {
                let text: String = table.row(content, true).into_iter().map(|(_, text)| text).collect();
                assert_eq!(width(&text), columns, "{text:?}");
            }
        }
    }

    #[test]
    fn the_sorted_column_is_marked_with_its_direction() {
        let titles = |by, is_reversed| Columns::for_width(80).titles(Order { by, is_reversed });
        assert!(titles(SortBy::Rate, false).contains("vRATE/s"));
        assert!(titles(SortBy::Rate, true).contains("^RATE/s"));
        assert!(titles(SortBy::Name, false).contains("^NAME"));
        assert!(titles(SortBy::Name, true).contains("vNAME"));
    }

    #[test]
    fn unknown_figures_are_not_shown_as_zero() {
        let rate = &COLUMNS[6];
        let text = |figures| rate.text(&Line { figures, ..Line::default() }, 7);
        let known = Figures { written_bytes_per_s: Some(0), ..Figures::default() };
        assert_eq!([Some(known), Some(Figures::default()), None].map(text), ["      0", "      -", "       "]);
    }
}
