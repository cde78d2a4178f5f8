//! The programs that the suites run: found in the system, or built by cargo into the target directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::cargo::Cargo;

/// A published tool, in the version whose output and options the suite knows.
pub(super) struct CargoTool {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
}

impl CargoTool {
    /// The program, built if this version is not there yet.
    pub(super) fn program(&self) -> Result<PathBuf, String> {
        let target = target_directory()?;
        let root = target.join("tools").join(format!("{}-{}", self.name, self.version));
        let program = root.join("bin").join(self.name);
        if !program.is_file() {
            let line = format!("install --quiet --locked --debug --version {} {}", self.version, self.name);
            // The build stays in the target directory, and the tools share their common dependencies.
            let build = target.join("tools").join("build");
            Cargo::new(&line).args("--root").arg(&root).args("--target-dir").arg(&build).run()?;
        }
        Ok(program)
    }
}

/// The command `slackwater`, built from this checkout.
pub(super) fn slackwater() -> Result<PathBuf, String> {
    build(Cargo::new("build --release --package slackwater-cli"), "slackwater")
}

/// All features of the command.
pub(crate) const FEATURES: &str = "--features slackwater-cli/object,slackwater-cli/containers";

/// Builds all targets of all packages, as `cargo xtask test` runs them: with the features and dependencies of all of them
/// together, so that nothing is compiled twice.
pub(crate) fn build_all() -> Cargo {
    Cargo::new("build --workspace --all-targets").args(FEATURES).linted()
}

/// The command `slackwater` with object volumes.
pub(super) fn slackwater_with_objects(is_long: bool) -> Result<PathBuf, String> {
    build_for_stores(is_long, "slackwater")
}

/// The local S3 server.
pub(super) fn s3_server(is_long: bool) -> Result<PathBuf, String> {
    build_for_stores(is_long, "slackwater-s3-server")
}

fn build_for_stores(is_long: bool, program: &str) -> Result<PathBuf, String> {
    let all = if is_long {
        // So many operations that a release build pays.
        Cargo::new("build --release --package slackwater-cli --package slackwater-s3-server").args(FEATURES)
    } else {
        build_all()
    };
    build(all, program)
}

fn build(build: Cargo, program: &str) -> Result<PathBuf, String> {
    let build = build.args("--message-format json-render-diagnostics");
    println!("$ {build}");
    let messages = String::from_utf8(build.output()?).map_err(|error| format!("{build}: {error}"))?;
    executable(&messages, program).ok_or_else(|| format!("{build}: builds no program {program}"))
}

/// The path of a program, from cargo's messages.
fn executable(messages: &str, program: &str) -> Option<PathBuf> {
    let mut paths = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == program && message["profile"]["test"] == false;
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    paths.next_back()
}

/// Where cargo builds this checkout.
pub(crate) fn target_directory() -> Result<PathBuf, String> {
    let text = Cargo::new("metadata --format-version 1 --no-deps").output()?;
    let metadata: Value = serde_json::from_slice(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    metadata["target_directory"].as_str().map(PathBuf::from).ok_or_else(|| "cargo names no target directory".into())
}

/// Whether this process is root's.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Whether a program is on the path, or where only root looks.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| fs::metadata(folder.join(program)).is_ok_and(|file| file.is_file()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_program_is_found_in_the_messages_of_cargo() {
        let message = |name, test, executable| serde_json::json!({ "target": { "name": name }, "profile": { "test": test }, "executable": executable });
        let messages = [
            message("slackwater", false, Value::Null),
            message("slackwater", false, "/x/slackwater".into()),
            message("slackwater", true, "/x/deps/slackwater-1".into()),
            message("other", false, "/x/other".into()),
        ];
        let messages = messages.map(|message| message.to_string()).join("\n") + "\nnoise\n";
        assert_eq!(executable(&messages, "slackwater").as_deref(), Some(Path::new("/x/slackwater")));
        assert_eq!(executable(&messages, "xtask"), None);
    }

    #[test]
    fn programs_are_looked_for_on_the_path() {
        assert!(is_installed("sh") && !is_installed("no-such-program"));
    }
}
