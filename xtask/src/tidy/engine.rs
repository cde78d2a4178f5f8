//! Allowed dependencies between the modules of the engine.

use super::Finding;
use super::scan::named;
use super::tree::Tree;

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

/// A `crate::` path in the engine points only upward in [`ENGINE`]; tests and `lib.rs` are free.
pub(super) fn order(tree: &Tree) -> Vec<Finding> {
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
                format!("`{module}` is not in ENGINE of xtask/src/tidy/engine.rs"),
            ));
            continue;
        };
        let depth = path.trim_end_matches("/mod.rs").split('/').count();
        for named in named(&file.lines).iter().filter(|named| !named.is_test) {
            let Some(target) = top_module(&named.path, depth) else { continue };
            let message = match level(target) {
                Some(level) if level <= own => continue,
                Some(_) => format!("`{module}` may not use `{target}`, which stands below it in the engine"),
                None => format!("`{target}` is not in ENGINE of xtask/src/tidy/engine.rs; name a module, no re-export"),
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
        assert_eq!(places(order, &files), expected);
    }
}
