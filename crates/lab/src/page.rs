//! A report as one HTML file that needs no other.

use std::fmt::Write;

use crate::table::Table;

const STYLE: &str = "\
body { font: 14px/1.4 sans-serif; margin: 2em; max-width: 100em; color: #222; }
table { border-collapse: collapse; margin: 0.5em 0 2em; }
caption { text-align: left; font-weight: bold; padding: 0.4em 0; }
th, td { padding: 0.15em 0.7em; text-align: left; white-space: nowrap; }
th { border-bottom: 1px solid #888; }
.right { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; margin: 0 1em 1em 0; }";

/// The page: plots after the tables, notes below.
pub(crate) fn html(title: &str, tables: &[&Table], plots: &[String], notes: &[String]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <style>\n{STYLE}\n</style>\n</head>\n<body>\n<h1>{}</h1>\n",
        escaped(title),
        escaped(title)
    );
    tables.iter().for_each(|table| page.push_str(&table.html()));
    for note in notes {
        // Writing to a string does not fail.
        let _ = writeln!(page, "<p>{}</p>", escaped(note));
    }
    plots.iter().for_each(|svg| page.push_str(svg));
    page.push_str("\n</body>\n</html>\n");
    page
}

/// Text that means itself in HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Align;

    #[test]
    fn a_page_has_everything_and_refers_to_nothing() {
        let mut table = Table::new("T < U", &[("a", Align::Left), ("b", Align::Right)]);
        table.row(["1 & 2".to_owned(), "3".to_owned()]);
        let page = html("lab", &[&table], &["<svg></svg>".to_owned()], &["a note".to_owned()]);
        for part in ["T &lt; U", "1 &amp; 2", "<td class=\"right\">3</td>", "<svg></svg>", "<p>a note</p>"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("http") && !page.contains("src="), "{page}");
    }
}
