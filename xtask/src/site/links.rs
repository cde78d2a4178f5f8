//! Follows the links of a folder of HTML pages, without a network.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::stage::REFERENCE;
use crate::folders::files;
use crate::markdown;

/// Follows every link between the pages in `html`, with its anchor. rustdoc has checked its own. Returns how many there
/// are.
///
/// # Errors
/// A link is broken; all such links are printed.
pub(super) fn check(html: &Path) -> Result<usize, String> {
    let mut pages = BTreeMap::new();
    for path in files(html)? {
        let name = path.strip_prefix(html).expect("found below it").to_string_lossy().into_owned();
        if name.ends_with(".html") && !name.starts_with(&format!("{REFERENCE}/")) {
            let text = fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
            pages.insert(name, text);
        }
    }
    let anchors: BTreeMap<&str, BTreeSet<&str>> =
        pages.iter().map(|(name, text)| (&**name, values(text, " id=\"").collect())).collect();
    let (mut count, mut broken) = (0, 0);
    for (name, text) in &pages {
        for target in values(text, " href=\"").chain(values(text, " src=\"")) {
            count += 1;
            if !leads_somewhere(html, name, target, &anchors) {
                println!("{name}: {target} leads nowhere");
                broken += 1;
            }
        }
    }
    if broken == 0 { Ok(count) } else { Err(format!("{broken} broken links")) }
}

fn leads_somewhere(html: &Path, page: &str, target: &str, anchors: &BTreeMap<&str, BTreeSet<&str>>) -> bool {
    if ["http://", "https://", "mailto:", "data:", "javascript:"].iter().any(|scheme| target.starts_with(scheme)) {
        return true;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let Some(file) = markdown::resolve(page, path) else { return false };
    let has_anchor = || anchors.get(&*file).is_none_or(|all| all.contains(anchor));
    html.join(&file).is_file() && (anchor.is_empty() || has_anchor())
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
        fs::create_dir_all(html.join("a")).expect("a folder");
        let write = |name: &str, text: &str| fs::write(html.join(name), text).expect("a page");
        write("index.html", "<h1 id=\"top\"><a href=\"a/b.html#c\"><a href=\"#top\"><a href=\"https://x\">");
        write("a/b.html", "<p id=\"c\"><img src=\"../index.html\">");
        assert_eq!(check(&html), Ok(4));
        write("a/b.html", "<p id=\"d\"><img src=\"../none.svg\"><a href=\"#e\">");
        assert_eq!(check(&html), Err("3 broken links".into()));
        fs::remove_dir_all(&html).expect("ours");
    }
}
