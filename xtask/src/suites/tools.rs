//! The programs that the suites run: found in the system, or built by cargo into the target directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::cargo::{Cargo, target_directory};

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

/// All features of the command.
pub(crate) const FEATURES: &str = "--features slackwater-cli/object,slackwater-cli/containers";

/// Builds all targets of all packages, as `cargo xtask test` runs them: with the features and dependencies of all of them
/// together, so that nothing is compiled twice.
pub(crate) fn build_all() -> Cargo {
    Cargo::new("build --workspace --all-targets").args(FEATURES).linted()
}

/// Builds the command `slackwater`, and with `for_stores` object volumes in it and the local S3 server. Returns their folder.
pub(super) fn programs(for_stores: bool, is_long: bool) -> Result<PathBuf, String> {
    let (build, profile) = match (for_stores, is_long) {
        (false, _) => (Cargo::new("build --release --package slackwater-cli"), "release"),
        (true, false) => (build_all(), "debug"),
        // So many operations that a release build pays.
        (true, true) => {
            let both = "build --release --package slackwater-cli --package slackwater-s3-server";
            (Cargo::new(both).args(FEATURES), "release")
        }
    };
    build.run()?;
    Ok(target_directory()?.join(profile))
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
    use super::*;

    #[test]
    fn programs_are_looked_for_on_the_path() {
        assert!(is_installed("sh") && !is_installed("no-such-program"));
    }
}
