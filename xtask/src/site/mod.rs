//! The documentation site: the pages that `docs/SUMMARY.md` lists, made into HTML by mdBook, and the rustdoc of the
//! libraries.
//!
//! The pages are the files of the checkout; [`stage`] copies them and changes only links. mdBook is a program of its
//! own, which the first run builds. Its warnings are errors, and [`links`] follows every link of the result.

mod links;
mod stage;

use std::path::Path;
use std::process::Command;

use crate::cargo::{Cargo, target_directory};
use crate::folders;

const MDBOOK: &str = "mdbook --version 0.5.2 --locked --no-default-features";
/// The libraries of which the site has the reference.
const LIBRARIES: [&str; 4] = ["slackwater", "slackwater-arena", "slackwater-backends", "slackwater-fuse"];

/// Makes the site in `target/site/html`.
///
/// # Errors
/// mdBook cannot be built, warns or fails; or a link is broken.
pub(crate) fn make() -> Result<(), String> {
    let target = target_directory()?;
    let site = target.join("site");
    folders::remove(&site)?;
    stage::stage(Path::new("."), &site, &LIBRARIES)?;
    run_mdbook(&target, &site)?;
    let html = site.join("html");
    reference(&target, &html)?;
    let count = links::check(&html)?;
    println!("{count} links found, in {}", html.display());
    Ok(())
}

fn run_mdbook(target: &Path, site: &Path) -> Result<(), String> {
    let tools = target.join("tools");
    let mdbook = tools.join("bin/mdbook");
    if !mdbook.is_file() {
        Cargo::new("install --root").arg(&tools).args(MDBOOK).run()?;
    }
    let output = Command::new(&mdbook).arg("build").arg(site).output();
    let output = output.map_err(|error| format!("{}: {error}", mdbook.display()))?;
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
        folders::copy_file(&path, &html.join(stage::REFERENCE).join(name))?;
    }
    Ok(())
}
