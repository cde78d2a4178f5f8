//! Plain text in columns.

use std::fmt;

use crate::page::escaped;

/// On which side of its column a cell stands.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A title, a line of headings, and rows.
pub(crate) struct Table {
    title: String,
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row; cells that are missing stay empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as an HTML element.
    pub(crate) fn html(&self) -> String {
        let line = |cells: &[String], tag: &str| {
            let columns = self.columns.iter().enumerate().map(|(column, (_, align))| {
                let class = if *align == Align::Right { " class=\"right\"" } else { "" };
                let cell = escaped(cells.get(column).map_or("", String::as_str));
                format!("<{tag}{class}>{cell}</{tag}>")
            });
            format!("<tr>{}</tr>\n", columns.collect::<String>())
        };
        let mut html = format!("<div class=\"wide\"><table>\n<caption>{}</caption>\n", escaped(&self.title));
        let names = self.names();
        if names.iter().any(|name| !name.is_empty()) {
            html.push_str(&line(&names, "th"));
        }
        self.rows.iter().for_each(|row| html.push_str(&line(row, "td")));
        html.push_str("</table></div>\n");
        html
    }

    fn names(&self) -> Vec<String> {
        self.columns.iter().map(|(name, _)| name.clone()).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let width = |text: &String| text.chars().count();
        let cell_width = |column| self.rows.iter().filter_map(move |row| row.get(column)).map(width).max();
        let widths = self.columns.iter().enumerate();
        widths.map(|(column, (name, _))| width(name).max(cell_width(column).unwrap_or(0))).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let line = |cells: &[String]| {
            let columns = self.columns.iter().zip(&widths).enumerate();
            let cells = columns.map(|(column, ((_, align), width))| {
                let cell = cells.get(column).map_or("", String::as_str);
                match align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        writeln!(f, "{}", self.title)?;
        let names = self.names();
        if names.iter().any(|name| !name.is_empty()) {
            writeln!(f, "{}", line(&names))?;
            writeln!(f, "{}", widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("  "))?;
        }
        self.rows.iter().try_for_each(|row| writeln!(f, "{}", line(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new("T", &[("name", Align::Left), ("n", Align::Right)]);
        table.row(["a".to_owned(), "1".to_owned()]);
        table.row(["longer".to_owned(), "20".to_owned()]);
        assert_eq!(table.to_string(), "T\nname     n\n------  --\na        1\nlonger  20\n");
    }
}
