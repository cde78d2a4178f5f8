//! The public API of the libraries as text, one file per crate below `docs/api`, so that a review shows every change.
//!
//! `cargo xtask api` rewrites the files. The tidy rule `api` fails while one of them is stale.
//!
//! # Why the sources are parsed
//! `cargo public-api` reads the JSON of rustdoc, which only nightly compilers write and whose format changes every few
//! releases. This project builds on whatever stable toolchain the machine has, so the listing would break, or change its
//! text, with an update of the toolchain. `syn` parses the same sources to the same text everywhere, needs no build,
//! and takes less than a second for all crates.
//!
//! The price is that the listing shows types as the source spells them. A public signature that names a type alias does
//! not change when the alias does; the alias has its own line. Auto traits (`Send`, `Sync`) and the implementations behind
//! a `derive` are not spelled out. Apart from these, the listing was compared with rustdoc's JSON of all crates, and
//! nothing was missing.
//!
//! # How it works
//! * [`crate_map`]: reads the modules of a crate, drops what `cfg` and `doc(hidden)` hide, and resolves paths.
//! * [`macros`]: expands the `macro_rules!` of the crate, since they define public items too.
//! * [`mod@listing`]: walks what `lib.rs` makes public, and prints each item under its shortest path.
//! * [`render`]: tokens as `rustfmt` would space them.

#![allow(clippy::wildcard_enum_match_arm, reason = "the syntax tree has more kinds of nodes than a listing shows")]

mod crate_map;
mod listing;
mod macros;
mod render;

/// Folder and name of each crate whose public API is listed.
pub(crate) const CRATES: [(&str, &str); 5] = [
    ("crates/sync", "slackwater-sync"),
    ("crates/arena", "slackwater-arena"),
    ("crates/engine", "slackwater"),
    ("crates/backends", "slackwater-backends"),
    ("crates/fuse", "slackwater-fuse"),
];

/// Where the listing of `package` lies.
pub(crate) fn path(package: &str) -> String {
    format!("docs/api/{package}.txt")
}

/// The public API of the crate in `folder`. `read` returns the text of a file of the checkout.
pub(crate) fn listing<'a>(
    folder: &str,
    package: &str,
    read: &dyn Fn(&str) -> Option<&'a str>,
) -> Result<String, String> {
    let krate = crate_map::Crate::read(&format!("{folder}/src"), &package.replace('-', "_"), read)?;
    Ok(listing::text(&krate))
}
