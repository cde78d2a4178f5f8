//! Allowed dependencies, between our crates and between the modules of the engine.

use super::Finding;
use super::scan::named;
use super::tree::{File, Tree};

/// Folder of a crate, and the crates of ours that it may use.
const CRATES: [(&str, &[&str]); 12] = [
    ("crates/sync", &[]),
    ("crates/arena", &["slackwater-sync"]),
    ("crates/engine", &["slackwater-sync", "slackwater-arena"]),
    ("crates/backends", &["slackwater", "slackwater-sync", "slackwater-arena"]),
    ("crates/object", &["slackwater", "slackwater-sync"]),
    ("crates/fuse", &["slackwater", "slackwater-sync", "slackwater-arena"]),
    ("crates/capi", &["slackwater", "slackwater-arena", "slackwater-backends"]),
    ("crates/csi-proto", &[]),
    (
        "crates/cli",
        &[
            "slackwater",
            "slackwater-arena",
            "slackwater-backends",
            "slackwater-csi-proto",
            "slackwater-fuse",
            "slackwater-object",
        ],
    ),
    (
        "crates/lab",
        &[
            "slackwater",
            "slackwater-sync",
            "slackwater-arena",
            "slackwater-backends",
            "slackwater-fuse",
            "slackwater-object",
            "slackwater-s3-server",
        ],
    ),
    ("crates/s3-server", &[]),
    ("xtask", &[]),
];

/// The crates that tests may use beyond [`CRATES`].
const CRATES_IN_TESTS: [(&str, &str); 5] = [
    ("crates/backends", "slackwater-backends"),
    ("crates/fuse", "slackwater-backends"),
    ("crates/object", "slackwater-arena"),
    ("crates/object", "slackwater-backends"),
    ("crates/object", "slackwater-s3-server"),
];

/// Modules of the engine, top to bottom: a module may use those above its group, and those of its own group.
/// The one group of several is the knot of mutual references; a new member needs an ADR.
const ENGINE: [&[&str]; 16] = [
    &["units"],
    &["error"],
    &["errseq"],
    &["clock"],
    &["tunables"],
    &["lock_order"],
    &["wait"],
    &["backend"],
    &["throttle"],
    &["shrink"],
    &["page_cache", "inode", "super_block", "writeback", "cgroup", "reclaim", "engine"],
    &["file", "filemap"],
    &["names"],
    &["recovery"],
    &["umount"],
    &["namespace"],
];

/// The manifests follow [`CRATES`].
pub(super) fn crates(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let Some(folder) = file.path.strip_suffix("/Cargo.toml") else { continue };
        let Some((_, allowed)) = CRATES.iter().find(|(name, _)| *name == folder) else {
            findings.push(Finding::new(
                &file.path,
                1,
                "new crate: give it a line in CRATES of xtask/src/tidy/arrows.rs",
            ));
            continue;
        };
        for (line, is_dev, name) in our_dependencies(file) {
            let is_allowed = allowed.contains(&name) || (is_dev && CRATES_IN_TESTS.contains(&(folder, name)));
            if !is_allowed {
                findings.push(Finding::new(&file.path, line, format!("{folder} may not use {name}")));
            }
        }
    }
    findings
}

/// Line, whether for tests only, and name of each dependency on a crate of ours.
fn our_dependencies(manifest: &File) -> Vec<(usize, bool, &str)> {
    let mut found = Vec::new();
    let mut section = "";
    for (number, line) in manifest.numbered() {
        let line = line.trim();
        let mut name = line.split(['.', '=', ' ']).next().unwrap_or(line).trim_matches('"');
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            // `[dependencies.name]` is a dependency in a section of its own.
            name = section.rsplit_once("dependencies.").map_or("", |(_, name)| name);
        }
        if section.contains("dependencies") && (name == "slackwater" || name.starts_with("slackwater-")) {
            found.push((number, section.contains("dev-dependencies"), name));
        }
    }
    found
}

/// A `crate::` path in the engine points only upward in [`ENGINE`]; tests and `lib.rs` are free.
pub(super) fn engine(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let Some(path) = file.path.strip_prefix("crates/engine/src/") else { continue };
        let module = path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
        if module == "lib" || file.is_test() {
            continue;
        }
        let Some(own) = level(module) else {
            findings.push(Finding::new(
                &file.path,
                1,
                format!("`{module}` is not in ENGINE of xtask/src/tidy/arrows.rs"),
            ));
            continue;
        };
        let depth = path.trim_end_matches("/mod.rs").split('/').count();
        for named in named(&file.lines).iter().filter(|named| !named.is_test) {
            let Some(target) = top_module(&named.path, depth) else { continue };
            let message = match level(target) {
                Some(level) if level <= own => continue,
                Some(_) => format!("`{module}` may not use `{target}`, which stands below it in the engine"),
                None => format!("`{target}` is not in ENGINE of xtask/src/tidy/arrows.rs; name a module, no re-export"),
            };
            findings.push(Finding::new(&file.path, named.line, message));
        }
    }
    findings
}

fn level(module: &str) -> Option<usize> {
    ENGINE.iter().position(|group| group.contains(&module))
}

/// The top module that a path names from a file `depth` modules below the root; none if it stays inside its own.
fn top_module(path: &str, depth: usize) -> Option<&str> {
    if let Some(rest) = path.strip_prefix("crate::") {
        return rest.split("::").next();
    }
    let mut segments = path.split("::").skip_while(|segment| *segment == "super");
    let climbed = path.split("::").take_while(|segment| *segment == "super").count();
    if climbed == depth { segments.next() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn manifests_follow_the_arrows() {
        let files = [
            ("Cargo.toml", "[workspace.dependencies]\nslackwater = { path = \"crates/engine\" }\n"),
            (
                "crates/sync/Cargo.toml",
                "[package]\nname = \"slackwater-sync\"\n[dependencies]\nslackwater.workspace = true\n",
            ),
            ("crates/arena/Cargo.toml", "[dependencies]\nslackwater-sync.workspace = true\n"),
            (
                "crates/fuse/Cargo.toml",
                "[dev-dependencies]\nslackwater-backends = \"1\"\n[dependencies]\nslackwater-backends = \"1\"\n",
            ),
            ("xtask/Cargo.toml", "[dependencies.slackwater]\npath = \"x\"\n"),
            ("crates/novel/Cargo.toml", "[dependencies]\n"),
        ];
        let expected =
            ["crates/sync/Cargo.toml:4", "crates/fuse/Cargo.toml:4", "xtask/Cargo.toml:1", "crates/novel/Cargo.toml:1"];
        assert_eq!(places(crates, &files), expected);
    }

    #[test]
    fn engine_modules_look_upward_or_across_the_knot() {
        let files = [
            ("crates/engine/src/lib.rs", "mod units;\npub use crate::umount::Umount;\n"),
            ("crates/engine/src/error.rs", "use crate::units::Tick;\nuse crate::{units::A, inode::Inode};\n"),
            (
                "crates/engine/src/writeback/wb.rs",
                "use crate::inode::Inode;\nuse super::super::filemap;\nuse super::work;\n",
            ),
            ("crates/engine/src/inode.rs", "crate::writeback::kick();\nsuper::umount::x();\nuse crate::Inode;\n"),
            ("crates/engine/src/units.rs", "#[cfg(test)]\nmod tests {\n    use crate::umount::x;\n}\n"),
            ("crates/engine/src/novel/mod.rs", "//! X.\n"),
        ];
        let expected = [
            "crates/engine/src/error.rs:2",
            "crates/engine/src/writeback/wb.rs:2",
            "crates/engine/src/inode.rs:2",
            "crates/engine/src/inode.rs:3",
            "crates/engine/src/novel/mod.rs:1",
        ];
        assert_eq!(places(engine, &files), expected);
    }
}
