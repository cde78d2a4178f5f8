//! The pages of the documentation site: all are listed, and what they quote exists.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::Tree;
use crate::markdown;

const SUMMARY: &str = "docs/SUMMARY.md";
const MESSAGES: &str = "docs/TROUBLESHOOTING.md";
const COMPARISON: &str = "docs/COMPARE.md";

/// A string with fewer spaces is no message that a page quotes.
const SPACES_MIN: usize = 2;

/// Every page in docs is in the summary, from which the site is made.
pub(super) fn summary(tree: &Tree) -> Vec<Finding> {
    let Some(summary) = tree.file(SUMMARY) else { return Vec::new() };
    let links = markdown::links(&summary.text);
    let listed: BTreeSet<_> = links.iter().filter_map(|link| markdown::resolve(SUMMARY, link.local()?.0)).collect();
    let pages = tree.files.iter().map(|file| &*file.path).filter(|path| is_page(path));
    let missing = pages.filter(|path| !listed.contains(*path));
    missing.map(|path| Finding::new(SUMMARY, 1, format!("add {path}"))).collect()
}

fn is_page(path: &str) -> bool {
    path.starts_with("docs/") && path.ends_with(".md") && path != SUMMARY
}

/// Each message in a heading is one that the program prints.
pub(super) fn messages(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.file(MESSAGES) else { return Vec::new() };
    let product = tree.rust().filter(|file| file.is_in(&["crates/"])).flat_map(|file| file.product_lines());
    let strings =
        product.flat_map(|(_, line)| &line.strings).filter(|string| string.matches(' ').count() >= SPACES_MIN);
    let strings: Vec<_> = strings.map(|string| normalised(string)).collect();
    let quoted = markdown::headings(&page.text).filter_map(|(line, title)| Some((line, title.strip_prefix('`')?)));
    let quoted = quoted.map(|(line, title)| (line, title.trim_end_matches('`')));
    let unknown = quoted.filter(|(_, title)| !strings.iter().any(|string| string.contains(&*normalised(title))));
    unknown.map(|(line, title)| Finding::new(MESSAGES, line, format!("no message has `{title}`"))).collect()
}

/// `text` with a `*` for each value, which is in braces in the program and in capitals on the page.
fn normalised(text: &str) -> String {
    let mut whole = String::new();
    let mut parts = text.split('{');
    whole.push_str(parts.next().unwrap_or_default());
    for part in parts {
        whole.push('*');
        whole.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    let is_value = |word: &str| {
        word.chars().any(|letter| letter.is_ascii_uppercase())
            && word.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
    };
    let is_edge = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    whole
        .split_inclusive(is_edge)
        .map(|word| {
            let inner = word.trim_end_matches(is_edge);
            if is_value(inner) { word.replacen(inner, "*", 1) } else { word.to_owned() }
        })
        .collect()
}

/// Each verdict of the comparison has a source, or is `unknown`.
pub(super) fn comparison(tree: &Tree) -> Vec<Finding> {
    let rows = tree.file(COMPARISON).into_iter().flat_map(|file| file.numbered());
    let rows = rows.filter(|(_, line)| line.starts_with("| ") && !line.starts_with("| Feature"));
    let cells = rows.flat_map(|(number, line)| {
        let cells = line.trim_matches('|').split(" | ").skip(1);
        cells.map(move |cell| (number, cell.trim()))
    });
    let is_verdict = |cell: &str| {
        let verdict = ["[yes]", "[partly]", "[no]"].iter().find_map(|verdict| cell.strip_prefix(verdict));
        cell == "unknown" || verdict.is_some_and(|source| source.starts_with(['[', '(']))
    };
    let bare = cells.filter(|(_, cell)| !is_verdict(cell));
    bare.map(|(number, cell)| {
        let message = format!("`{cell}`: write [yes], [partly] or [no] with a source, or unknown");
        Finding::new(COMPARISON, number, message)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn every_page_is_in_the_summary() {
        let files = [(SUMMARY, "- [A](A.md)\n- [R](../README.md)\n"), ("docs/A.md", ""), ("docs/adr/1.md", "")];
        assert_eq!(places(summary, &files), ["docs/SUMMARY.md:1"]);
    }

    #[test]
    fn quoted_messages_are_of_the_program() {
        let code =
            "fn f() { say(\"{a} is mounted at {b:?} (pid {})\"); }\n#[cfg(test)]\nfn t() { say(\"only here\"); }\n";
        let page =
            "# T\n## `SOURCE is mounted at MOUNTPOINT (pid PID)`\n## `it is mounted`\n## `only here`\n## Plain\n";
        let files = [("crates/cli/src/a.rs", code), (MESSAGES, page)];
        assert_eq!(places(messages, &files), ["docs/TROUBLESHOOTING.md:3", "docs/TROUBLESHOOTING.md:4"]);
    }

    #[test]
    fn every_verdict_has_a_source() {
        let page =
            "| Feature | A |\n|---|---|\n| f | [yes](x) | unknown |\n| g | yes | [no][b] |\n| h | [maybe][b] |\n";
        assert_eq!(places(comparison, &[(COMPARISON, page)]), ["docs/COMPARE.md:4", "docs/COMPARE.md:5"]);
    }
}
