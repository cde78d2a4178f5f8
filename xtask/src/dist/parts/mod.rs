//! The crates that the binary is made of: their list and their licences.

mod cyclonedx;

use crate::cargo;
use crate::folders::cannot;
use crate::suites::FEATURES;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Release;

const COMMAND: &str = "slackwater-cli";

/// A crate of the binary, or one that its build has run.
struct Part {
    name: String,
    version: String,
    /// An SPDX expression.
    licence: String,
    /// The checksum in Cargo.lock; our own crates have none.
    checksum: Option<String>,
    /// The texts of the crate's licence files.
    texts: Vec<String>,
    /// The keys of the crates that it depends on.
    needs: Vec<String>,
}

impl Part {
    fn is_ours(&self) -> bool {
        self.checksum.is_none()
    }
}

/// All of them, by cargo's package identifier.
pub(super) struct Parts {
    parts: BTreeMap<String, Part>,
}

impl Parts {
    /// The crates of the command.
    pub(super) fn new(release: &Release) -> Result<Parts, String> {
        let features = if release.has_objects { FEATURES } else { "" };
        let metadata = cargo::metadata(&format!("--locked --filter-platform {} {features}", release.target.triple))?;
        let lock = fs::read_to_string("Cargo.lock").map_err(|error| cannot(Path::new("Cargo.lock"), &error))?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let nodes: BTreeMap<String, Vec<String>> =
            list(&metadata["resolve"]["nodes"]).iter().map(|node| (text(node, "id"), needs(node))).collect();
        let packages = list(&metadata["packages"]);
        let command = packages.iter().find(|package| package["name"] == COMMAND).ok_or("no package of the command")?;
        let mut reached = BTreeSet::new();
        let mut waiting = vec![text(command, "id")];
        while let Some(id) = waiting.pop() {
            if reached.insert(id.clone()) {
                waiting.extend(nodes.get(&id).into_iter().flatten().cloned());
            }
        }
        let mut parts = BTreeMap::new();
        for package in packages.iter().filter(|package| reached.contains(&text(package, "id"))) {
            let (name, version) = (text(package, "name"), text(package, "version"));
            let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent();
            let part = Part {
                checksum: checksum(&lock, &name, &version),
                licence: text(package, "license").replace('/', " OR "),
                texts: folder.map(texts).transpose()?.unwrap_or_default(),
                needs: nodes.get(&text(package, "id")).cloned().unwrap_or_default(),
                name,
                version,
            };
            parts.insert(text(package, "id"), part);
        }
        Ok(Parts { parts })
    }

    /// The licences of the crates of others, each text once.
    pub(super) fn notices(&self) -> Result<String, String> {
        let mut by_text = BTreeMap::<&str, Vec<String>>::new();
        let mut notices = String::from("The command slackwater contains these libraries.\n\n");
        for part in self.parts.values().filter(|part| !part.is_ours()) {
            notices += &format!("{} {}: {}\n", part.name, part.version, part.licence);
            for text in &part.texts {
                by_text.entry(text).or_default().push(format!("{} {}", part.name, part.version));
            }
        }
        for (text, names) in by_text {
            notices += &format!("\n{}\n{}:\n\n{}\n", "-".repeat(72), names.join(", "), text.trim_end());
        }
        Ok(notices)
    }
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// The crates that one needs for its product, not for its tests.
fn needs(node: &Value) -> Vec<String> {
    let dependencies = node["deps"].as_array().into_iter().flatten();
    let of_product = dependencies.filter(|dependency| {
        dependency["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"] != "dev"))
    });
    of_product.map(|dependency| text(dependency, "pkg")).collect()
}

/// The checksum of a package in the text of Cargo.lock.
fn checksum(lock: &str, name: &str, version: &str) -> Option<String> {
    let head = format!("name = \"{name}\"\nversion = \"{version}\"\n");
    let package = lock.split("[[package]]\n").find(|package| package.starts_with(&head))?;
    package.lines().find_map(|line| line.strip_prefix("checksum = \"")?.strip_suffix('"')).map(str::to_owned)
}

/// The licence files of a crate, sorted by name.
fn texts(folder: &Path) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| cannot(folder, &error))? {
        let path = entry.map_err(|error| cannot(folder, &error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file()
            && ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"].iter().any(|own| name.starts_with(own))
        {
            paths.push(path);
        }
    }
    paths.sort();
    paths
        .iter()
        .map(|path| fs::read(path).map_err(|error| cannot(path, &error)))
        .map(|bytes| bytes.map(|bytes| String::from_utf8_lossy(&bytes).replace("\r\n", "\n")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_belongs_to_name_and_version() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1\"\nchecksum = \"x\"\n\n[[package]]\nname = \"a\"\n\
                    version = \"2\"\nchecksum = \"y\"\n\n[[package]]\nname = \"b\"\nversion = \"2\"\n";
        assert_eq!(checksum(lock, "a", "2").as_deref(), Some("y"));
        assert_eq!(checksum(lock, "b", "2"), None);
    }

    #[test]
    fn what_only_tests_need_is_no_part() {
        let kinds = |kinds: &[Value]| kinds.iter().map(|kind| serde_json::json!({ "kind": kind })).collect::<Vec<_>>();
        let node = serde_json::json!({ "deps": [
            { "pkg": "used", "dep_kinds": kinds(&[Value::Null, "dev".into()]) },
            { "pkg": "tested", "dep_kinds": kinds(&["dev".into()]) },
            { "pkg": "run", "dep_kinds": kinds(&["build".into()]) },
        ]});
        assert_eq!(needs(&node), ["used", "run"]);
    }
}
