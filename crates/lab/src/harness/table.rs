//! Plain text in columns, and the same as HTML.

use std::fmt::{self, Display};

use super::page::escaped;
use super::quantity::figure;
use super::statistics::Estimate;

/// A title, a line of headings, and rows.
pub(crate) struct Table {
    title: String,
    /// The name of each column, and whether it is aligned to the left.
    columns: Vec<(String, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows. `columns` has their names, separated by `|`. The first column is aligned to the left, as are
    /// those whose name begins with `<`; the others to the right.
    pub(crate) fn new(title: impl Into<String>, columns: impl AsRef<str>) -> Self {
        let column = |(number, name): (usize, &str)| {
            let left = name.trim().strip_prefix('<');
            (left.unwrap_or(name.trim()).to_owned(), number == 0 || left.is_some())
        };
        let columns = columns.as_ref().split('|').enumerate().map(column).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Begins a row; cells that are missing at its end stay empty.
    pub(crate) fn row(&mut self, name: impl Display) -> Row<'_> {
        self.rows.push(vec![name.to_string()]);
        Row(self.rows.last_mut().expect("it was just added"))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as an HTML element.
    pub(crate) fn html(&self) -> String {
        let line = |cells: &[String], tag: &str| {
            let columns = self.columns.iter().enumerate().map(|(column, (_, left))| {
                let class = if *left { "" } else { " class=\"right\"" };
                let cell = escaped(cells.get(column).map_or("", String::as_str));
                format!("<{tag}{class}>{cell}</{tag}>")
            });
            format!("<tr>{}</tr>\n", columns.collect::<String>())
        };
        let head = self.head().map_or_else(String::new, |names| format!("<thead>{}</thead>\n", line(&names, "th")));
        let rows: String = self.rows.iter().map(|row| line(row, "td")).collect();
        let title = escaped(&self.title);
        format!(
            "<div class=\"wide\"><table>\n<caption>{title}</caption>\n{head}<tbody>\n{rows}</tbody></table></div>\n"
        )
    }

    /// The names of the columns, if there are any.
    fn head(&self) -> Option<Vec<String>> {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        names.iter().any(|name| !name.is_empty()).then_some(names)
    }

    fn width(&self, column: usize, name: &str) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
        cells.chain([name]).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

/// The row that is being filled.
pub(crate) struct Row<'t>(&'t mut Vec<String>);

impl Row<'_> {
    pub(crate) fn text(self, cell: impl Display) -> Self {
        self.0.push(cell.to_string());
        self
    }

    /// A figure; none is an empty cell.
    pub(crate) fn figure(self, value: impl Into<Option<f64>>) -> Self {
        self.text(value.into().map_or_else(String::new, figure))
    }

    pub(crate) fn figures(self, values: impl IntoIterator<Item = impl Into<Option<f64>>>) -> Self {
        values.into_iter().fold(self, |row, value| row.figure(value))
    }

    /// A figure with its interval; none is an empty cell.
    pub(crate) fn estimate(self, estimate: impl Into<Option<Estimate>>) -> Self {
        self.text(estimate.into().map_or_else(String::new, |estimate| estimate.text()))
    }

    /// Empty cells.
    pub(crate) fn skip(self, count: usize) -> Self {
        (0..count).fold(self, |row, _| row.text(""))
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns.iter().enumerate();
        let widths: Vec<usize> = columns.map(|(column, (name, _))| self.width(column, name)).collect();
        let line = |cells: &[String]| {
            let columns = self.columns.iter().zip(&widths).enumerate();
            let cells = columns.map(|(column, ((_, left), width))| {
                let cell = cells.get(column).map_or("", String::as_str);
                if *left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        writeln!(f, "{}", self.title)?;
        if let Some(names) = self.head() {
            writeln!(f, "{}", line(&names))?;
            writeln!(f, "{}", widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("  "))?;
        }
        self.rows.iter().try_for_each(|row| writeln!(f, "{}", line(row)))
    }
}

/// `text` in lines of at most `width` letters, broken between words.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let (mut lines, mut length) = (String::new(), 0);
    for word in text.split_whitespace() {
        let letters = word.chars().count();
        if length != 0 {
            let fits = length + 1 + letters <= width;
            lines.push(if fits { ' ' } else { '\n' });
            length = if fits { length + 1 } else { 0 };
        }
        lines.push_str(word);
        length += letters;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new("T", "name | n | <why");
        table.row("a").figure(1.0).text("so");
        table.row("longer").figure(None).estimate(None);
        table.row("b").skip(1).text("x");
        let text = "T\nname       n  why\n------  ----  ---\na       1.00  so\nlonger\nb             x\n";
        assert_eq!(table.to_string(), text);
    }

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrapped("one two  three four", 9), "one two\nthree\nfour");
    }
}
