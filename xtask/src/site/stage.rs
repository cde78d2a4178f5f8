//! The input of mdBook: the pages, and every file to which they link, at their paths in the checkout.
//!
//! mdBook takes pages from one folder only, and knows no links to folders. So the pages are copied, the paths of the
//! summary are made relative to the root, and a link to a folder leads to its README or to a list of its files. A
//! README is the index of its folder.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::folders::copy_file;
use crate::markdown;

const SUMMARY: &str = "docs/SUMMARY.md";
/// The configuration of mdBook, and what it names.
const CONFIGURATION: [&str; 2] = ["book.toml", "site.css"];
/// The folder with the rustdoc of the libraries, and the name of the page that links to it.
pub(super) const REFERENCE: &str = "reference";

/// Copies what the site needs from the checkout at `root` to `site`.
///
/// # Errors
/// A file is missing.
pub(super) fn stage(root: &Path, site: &Path, libraries: &[&str]) -> Result<(), String> {
    let pages = site.join("src");
    let summary = read(root, SUMMARY)?;
    let mut listed = Vec::new();
    let mut whole = rewritten(&summary, |path, anchor| {
        let page = markdown::resolve(SUMMARY, path)?;
        listed.push(page.clone());
        Some(staged(&page) + anchor)
    });
    whole += &format!("- [Library reference]({REFERENCE}.md)\n");
    write(&pages, "SUMMARY.md", &whole)?;
    write(&pages, &format!("{REFERENCE}.md"), &reference(libraries))?;
    for name in CONFIGURATION {
        write(site, name, &read(root, &format!("docs/{name}"))?)?;
    }
    let mut others = BTreeSet::new();
    for page in &listed {
        write(&pages, &staged(page), &page_of_site(root, page, &read(root, page)?, &mut others))?;
    }
    for other in others.iter().filter(|other| !listed.contains(other)) {
        let from = root.join(other);
        if from.is_dir() {
            copy_folder(root, other, &pages)?;
        } else {
            copy_file(&from, &pages.join(other))?;
        }
    }
    Ok(())
}

/// The name of a page in the site.
fn staged(page: &str) -> String {
    page.strip_suffix("README.md").map_or_else(|| page.to_owned(), |folder| format!("{folder}index.md"))
}

/// The text of a page with links that mdBook understands. Adds what it links to.
fn page_of_site(root: &Path, page: &str, text: &str, others: &mut BTreeSet<String>) -> String {
    rewritten(text, |path, anchor| {
        let target = markdown::resolve(page, path)?;
        let folder = root.join(&target);
        if folder.join("README.md").is_file() {
            return Some(format!("{}/index.md{anchor}", path.trim_end_matches('/')));
        }
        others.insert(target);
        let path = if folder.is_dir() { format!("{}/index.html", path.trim_end_matches('/')) } else { staged(path) };
        Some(path + anchor)
    })
}

/// `text` with other targets of its links to files: `change` gets the path and the anchor with its `#`.
fn rewritten(text: &str, mut change: impl FnMut(&str, &str) -> Option<String>) -> String {
    let (mut whole, mut end) = (String::new(), 0);
    for link in markdown::links(text) {
        let Some((path, _)) = link.local().filter(|(path, _)| !path.is_empty()) else { continue };
        if let Some(target) = change(path, &link.target[path.len()..]) {
            whole += &text[end..link.range.start];
            whole += &target;
            end = link.range.end;
        }
    }
    whole + &text[end..]
}

fn reference(libraries: &[&str]) -> String {
    let mut page = String::from("# Library reference\n\nThe documentation of the libraries, made by rustdoc:\n\n");
    for name in libraries {
        page += &format!("- [`{name}`]({REFERENCE}/{}/index.html)\n", name.replace('-', "_"));
    }
    page + "\n[Embedding](docs/EMBED.md) is the guide.\n"
}

/// Copies the files of a folder, with a list of them as its index.
fn copy_folder(root: &Path, folder: &str, pages: &Path) -> Result<(), String> {
    let cannot = |error| format!("{folder}: {error}");
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(folder)).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_file() {
            copy_file(&entry.path(), &pages.join(folder).join(&name))?;
            names.push(name);
        }
    }
    names.sort();
    let items: String = names.iter().map(|name| format!("<li><a href=\"{name}\">{name}</a></li>\n")).collect();
    let page = format!("<!DOCTYPE html>\n<title>{folder}</title>\n<h1>{folder}</h1>\n<ul>\n{items}</ul>\n");
    write(pages, &format!("{folder}/index.html"), &page)
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))
}

fn write(folder: &Path, path: &str, text: &str) -> Result<(), String> {
    let cannot = |error| format!("{path}: {error}");
    let to = folder.join(path);
    fs::create_dir_all(to.parent().expect("below the site")).map_err(cannot)?;
    fs::write(to, text).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_files_change() {
        let text = "[a](x.md#b) `[no](x.md)` [c](#d) [e](https://f) [g](y.md)\n";
        let changed = rewritten(text, |path, anchor| (path != "y.md").then(|| format!("z/{path}{anchor}")));
        assert_eq!(changed, "[a](z/x.md#b) `[no](x.md)` [c](#d) [e](https://f) [g](y.md)\n");
    }

    #[test]
    fn a_link_to_a_folder_leads_to_its_readme_or_its_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("below the root");
        let mut others = BTreeSet::new();
        let text = "[a](adr/) [b](../dist) [c](../dist/slackwater.toml) [d](../README.md#x)";
        let page = page_of_site(root, "docs/X.md", text, &mut others);
        let expected = "[a](adr/index.md) [b](../dist/index.html) [c](../dist/slackwater.toml) [d](../index.md#x)";
        assert_eq!(page, expected);
        assert_eq!(others.into_iter().collect::<Vec<_>>(), ["README.md", "dist", "dist/slackwater.toml"]);
    }
}
