//! The documentation site: the pages that `docs/SUMMARY.md` lists, made into HTML by mdBook, and the rustdoc of the
//! libraries.
//!
//! mdBook takes pages from one folder only. So the pages, and every file to which they link, are copied there under the paths
//! that they have in the checkout. A folder to which a page links gets a list of its files. mdBook is a program of its own, which
//! the first run builds. Its warnings are errors, and all links between the HTML pages are followed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cargo::{Cargo, target_directory};
use crate::folders::{self, cannot, copy_file};
use crate::markdown;

const MDBOOK: &str = "mdbook --version 0.5.2 --locked --no-default-features";
/// The libraries of which the site has the reference.
const LIBRARIES: [&str; 6] = [
    "slackwater",
    "slackwater-arena",
    "slackwater-backends",
    "slackwater-fuse",
    "slackwater-mount",
    "slackwater-testkit",
];
/// The folder of the reference, and the name of the page that links to it.
const REFERENCE: &str = "reference";

/// Makes the site in `target/site/html`.
///
/// # Errors
/// mdBook cannot be built, warns or fails; or a link is broken.
pub(crate) fn make() -> Result<(), String> {
    let target = target_directory()?;
    let site = target.join("site");
    folders::remove(&site)?;
    stage(&site)?;
    run_mdbook(&target, &site)?;
    let html = site.join("html");
    reference(&target, &html)?;
    let count = check_links(&html)?;
    println!("{count} links found, in {}", html.display());
    Ok(())
}

/// Copies what the site needs from the checkout to `site`, the input of mdBook.
fn stage(site: &Path) -> Result<(), String> {
    let pages = site.join("src");
    for name in ["book.toml", "site.css"] {
        copy_file(&Path::new("docs").join(name), &site.join(name))?;
    }
    // The summary is in docs, and its copy above it.
    let summary = read(Path::new("docs/SUMMARY.md"))?.replace("](", "](docs/").replace("](docs/../", "](");
    write(&pages.join("SUMMARY.md"), &format!("{summary}- [Library reference]({REFERENCE}.md)\n"))?;
    let list = LIBRARIES.map(|name| format!("- [`{name}`]({REFERENCE}/{}/index.html)\n", name.replace('-', "_")));
    let text = "# Library reference\n\nThe documentation of the libraries, made by rustdoc:\n\n";
    write(
        &pages.join(REFERENCE).with_extension("md"),
        &format!("{text}{}\n[Embedding](docs/EMBED.md) is the guide.\n", list.concat()),
    )?;
    for page in markdown::links(&summary).iter().filter_map(markdown::Link::local).map(|(path, _)| path) {
        copy_file(Path::new(page), &pages.join(page))?;
        let text = read(Path::new(page))?;
        for (path, _) in markdown::links(&text).iter().filter_map(markdown::Link::local) {
            let other = markdown::resolve(page, path).ok_or_else(|| format!("{page}: {path} is outside"))?;
            copy(Path::new(&other), &pages)?;
        }
    }
    Ok(())
}

/// Copies a file, or the files of a folder with a list of them as its index.
fn copy(path: &Path, pages: &Path) -> Result<(), String> {
    if !path.is_dir() {
        return copy_file(path, &pages.join(path));
    }
    let mut items = String::new();
    for file in folders::children(path)?.iter().filter(|path| path.is_file()) {
        copy_file(file, &pages.join(file))?;
        let name = file.file_name().unwrap_or_default().display().to_string();
        items += &format!("<li><a href=\"{name}\">{name}</a></li>\n");
    }
    let name = path.display();
    let page = format!("<!DOCTYPE html>\n<title>{name}</title>\n<h1>{name}</h1>\n<ul>\n{items}</ul>\n");
    write(&pages.join(path).join("index.html"), &page)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| cannot(path, &error))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let above = path.parent().map_or(Ok(()), fs::create_dir_all);
    above.and_then(|()| fs::write(path, text)).map_err(|error| cannot(path, &error))
}

fn run_mdbook(target: &Path, site: &Path) -> Result<(), String> {
    let tools = target.join("tools");
    let mdbook = tools.join("bin/mdbook");
    if !mdbook.is_file() {
        Cargo::new("install --root").arg(&tools).args(MDBOOK).run()?;
    }
    let output = Command::new(&mdbook).arg("build").arg(site).output();
    let output = output.map_err(|error| cannot(&mdbook, &error))?;
    let said = String::from_utf8_lossy(&output.stderr);
    print!("{said}");
    let has_warned = said.lines().any(|line| line.contains("WARN") || line.contains("ERROR"));
    if output.status.success() && !has_warned { Ok(()) } else { Err("mdBook warns or fails".into()) }
}

/// Adds the rustdoc of the libraries.
fn reference(target: &Path, html: &Path) -> Result<(), String> {
    let doc = target.join("doc");
    folders::remove(&doc)?; // may have private items, or other crates
    let packages: String = LIBRARIES.iter().map(|name| format!(" --package {name}")).collect();
    Cargo::new("doc --no-deps").args(&packages).env("RUSTDOCFLAGS", "-D warnings").run()?;
    for path in folders::files(&doc)? {
        let name = path.strip_prefix(&doc).expect("found below it");
        copy_file(&path, &html.join(REFERENCE).join(name))?;
    }
    Ok(())
}

/// Follows every link between the pages in `html`, with its anchor. rustdoc has checked its own. Returns how many there
/// are.
///
/// # Errors
/// A link is broken; all such links are printed.
fn check_links(html: &Path) -> Result<usize, String> {
    let mut pages = BTreeMap::new();
    for path in folders::files(html)? {
        let name = path.strip_prefix(html).expect("found below it");
        if path.extension().is_some_and(|end| end == "html") && !name.starts_with(REFERENCE) {
            pages.insert(name.display().to_string(), read(&path)?);
        }
    }
    let is_found = |page: &str, target: &str| {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let Some(file) = markdown::resolve(page, path) else { return false };
        let exists = html.join(&file).is_file() || html.join(&file).join("index.html").is_file();
        let has_anchor = || pages.get(&file).is_none_or(|text| values(text, " id=\"").any(|id| id == anchor));
        exists && (anchor.is_empty() || has_anchor())
    };
    let (mut count, mut broken) = (0, 0);
    for (page, text) in &pages {
        for target in values(text, " href=\"").chain(values(text, " src=\"")) {
            count += 1;
            let leads_elsewhere = ["http://", "https://", "mailto:", "data:", "javascript:"];
            if !leads_elsewhere.iter().any(|scheme| target.starts_with(scheme)) && !is_found(page, target) {
                println!("{page}: {target} leads nowhere");
                broken += 1;
            }
        }
    }
    if broken == 0 { Ok(count) } else { Err(format!("{broken} broken links")) }
}

/// The values of an attribute, given with what stands before them.
fn values<'t>(text: &'t str, attribute: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(attribute).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_need_a_file_and_an_anchor() {
        let html = std::env::temp_dir().join(format!("slackwater-site-{}", std::process::id()));
        let page = |name: &str, text: &str| write(&html.join(name), text).unwrap();
        page(
            "index.html",
            "<h1 id=\"top\"><a href=\"a/b.html#c\"><a href=\"#top\"><a href=\"https://x\"><a href=\"d\">",
        );
        page("d/index.html", "");
        page("a/b.html", "<p id=\"c\"><img src=\"../index.html\">");
        assert_eq!(check_links(&html), Ok(5));
        page("a/b.html", "<p id=\"d\"><img src=\"../none.svg\"><a href=\"#e\">");
        assert_eq!(check_links(&html), Err("3 broken links".into()));
        fs::remove_dir_all(&html).expect("ours");
    }
}
