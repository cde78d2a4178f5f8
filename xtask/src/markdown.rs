//! Links and headings of Markdown, as far as the documents of this project use it.
//!
//! A link is `[text](target)`, `![text](target)`, or a definition `[name]: target` at the start of a line. Fenced code
//! and code spans hold none. A heading has the anchor that both mdBook and hosting sites give it.

use std::collections::BTreeMap;

/// The target of a link, and its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link<'t> {
    pub(crate) line: usize,
    pub(crate) target: &'t str,
}

impl<'t> Link<'t> {
    /// The path and the anchor of a link to a file of the checkout. `None` if it leads elsewhere.
    pub(crate) fn local(&self) -> Option<(&'t str, &'t str)> {
        let is_elsewhere = self.target.contains("://") || self.target.starts_with("mailto:");
        (!is_elsewhere).then(|| self.target.split_once('#').unwrap_or((self.target, "")))
    }
}

/// A name in a link `[text][name]` or in a definition `[name]: target`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Name<'t> {
    pub(crate) line: usize,
    pub(crate) name: &'t str,
    pub(crate) is_definition: bool,
}

/// All links of a document, in order.
pub(crate) fn links(text: &str) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    for (line, content) in prose(text) {
        if let Some((_, target)) = definition(content) {
            links.push(Link { line, target });
            continue;
        }
        let targets = outside_code(content, "](").filter_map(|at| Some(content[at + 2..].split_once(')')?.0));
        links.extend(targets.map(|target| Link { line, target }));
    }
    links
}

/// All names of links and definitions.
pub(crate) fn names(text: &str) -> Vec<Name<'_>> {
    let mut names = Vec::new();
    for (line, content) in prose(text) {
        if let Some((name, _)) = definition(content) {
            names.push(Name { line, name, is_definition: true });
            continue;
        }
        for at in outside_code(content, "][") {
            if let Some((name, _)) = content[at + 2..].split_once(']') {
                names.push(Name { line, name, is_definition: false });
            }
        }
    }
    names
}

/// A line that defines the target of a name.
pub(crate) fn definition(line: &str) -> Option<(&str, &str)> {
    let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
    (!name.contains(']')).then_some((name, target))
}

/// The headings, each with the number of its line.
pub(crate) fn headings(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).filter_map(|(line, content)| {
        let title = content.trim_start_matches('#');
        (title.len() < content.len() && title.starts_with(' ')).then(|| (line, title.trim()))
    })
}

/// The anchors of all headings.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut seen = BTreeMap::new();
    let anchor = |title: &str| {
        let base = slug(title);
        let count = seen.entry(base.clone()).and_modify(|count| *count += 1).or_insert(0);
        if *count == 0 { base } else { format!("{base}-{count}") }
    };
    headings(text).map(|(_, title)| title).map(anchor).collect()
}

fn slug(title: &str) -> String {
    let kept = title.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
}

/// `target`, which stands in the file `from`, as a path from the root. `None` if it leads out of the checkout.
pub(crate) fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The lines outside fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Where `sign` stands in `line`, code spans left out.
fn outside_code<'l>(line: &'l str, sign: &'l str) -> impl Iterator<Item = usize> {
    line.match_indices(sign).map(|(at, _)| at).filter(|at| line[..*at].matches('`').count().is_multiple_of(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A `b`, c\n[x](a.md#b) and ![y](c.svg)\n```sh\n[no](no)\n```\n`[no](no)` [z][name]\n\n## A b c\n\
                        [name]: https://x.y/z\n";

    #[test]
    fn links_are_found_outside_code() {
        let targets: Vec<_> = links(PAGE).iter().map(|link| (link.line, link.target)).collect();
        assert_eq!(targets, [(2, "a.md#b"), (2, "c.svg"), (9, "https://x.y/z")]);
        assert_eq!(links(PAGE)[0].local(), Some(("a.md", "b")));
        assert_eq!(links(PAGE)[2].local(), None);
    }

    #[test]
    fn names_are_uses_or_definitions() {
        let found: Vec<_> = names(PAGE).iter().map(|name| (name.line, name.name, name.is_definition)).collect();
        assert_eq!(found, [(6, "name", false), (9, "name", true)]);
    }

    #[test]
    fn headings_have_the_anchors_of_hosting_sites() {
        assert_eq!(anchors(PAGE), ["a-b-c", "a-b-c-1"]);
        assert_eq!(
            anchors("## P5. Dirty data has an age limit\n### `umount` & more\n"),
            ["p5-dirty-data-has-an-age-limit", "umount--more"]
        );
    }

    #[test]
    fn paths_are_resolved_within_the_checkout() {
        assert_eq!(resolve("docs/adr/a.md", "../X.md").as_deref(), Some("docs/X.md"));
        assert_eq!(resolve("README.md", "docs/").as_deref(), Some("docs"));
        assert_eq!(resolve("README.md", "").as_deref(), Some("README.md"));
        assert_eq!(resolve("README.md", "../x"), None);
    }
}
