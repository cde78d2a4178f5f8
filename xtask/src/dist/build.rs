//! The static binary of the command, with object volumes.
//!
//! Rust has the C library and the start-up files of its musl targets; aws-lc, the cryptography of object volumes, needs a C
//! compiler for them. Paths of this machine are replaced in the binary, in Rust and in C code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::output;
use super::target::Target;
use crate::cargo::{Cargo, target_directory};
use crate::folders::cannot;
use crate::suites::{FEATURES, is_installed};

/// Builds the command. Its symbols are still in it.
pub(super) fn binary(target: &Target, has_objects: bool) -> Result<PathBuf, String> {
    if has_objects && !is_installed(target.compiler) {
        let Target { compiler, compiler_package, triple, .. } = target;
        return Err(format!("{triple} needs {compiler}: apt-get install {compiler_package}"));
    }
    if !sysroot()?.join("lib/rustlib").join(target.triple).is_dir() {
        output(Command::new("rustup").args(["target", "add", target.triple]))?;
    }
    let name = target.triple.replace('-', "_");
    let build = Cargo::new("build --locked --release --package slackwater-cli --bin slackwater --target")
        .args(target.triple)
        .args(if has_objects { FEATURES } else { "" })
        .env("RUSTFLAGS", &rust_flags()?)
        .env(&format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), target.linker)
        .env(&format!("CC_{name}"), target.compiler)
        .env(&format!("CFLAGS_{name}"), &c_flags()?);
    build.run()?;
    Ok(target_directory()?.join(target.triple).join("release/slackwater"))
}

/// Copies a binary without symbols. Panics still name their lines, which are data.
pub(super) fn strip(target: &Target, from: &Path, to: &Path) -> Result<(), String> {
    output(Command::new(target.strip).arg("--strip-all").arg("-o").arg(to).arg(from)).map(drop)
}

/// The directories of this machine that a build knows, the inner ones first.
pub(super) fn folders() -> Result<[PathBuf; 3], String> {
    let here = std::env::current_dir().map_err(|error| cannot(Path::new("."), &error))?;
    Ok([target_directory()?, here, cargo_home()?])
}

/// The last flag that matches a path counts, so the inner directories come last.
fn rust_flags() -> Result<String, String> {
    let flags = renamed()?.into_iter().rev().map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    Ok(flags.collect::<Vec<_>>().join(" "))
}

/// The flags for C code, whose assertions contain paths. A compiler for glibc must leave out checks that only glibc
/// has.
fn c_flags() -> Result<String, String> {
    let flags = renamed()?.into_iter().rev().map(|(from, to)| format!("-ffile-prefix-map={from}={to}"));
    Ok(flags.chain(["-U_FORTIFY_SOURCE".to_owned()]).collect::<Vec<_>>().join(" "))
}

fn renamed() -> Result<[(String, &'static str); 3], String> {
    let [target, here, cargo] = folders()?.map(|path| path.display().to_string());
    Ok([(target, "/target"), (here, "/slackwater"), (cargo, "/cargo")])
}

fn cargo_home() -> Result<PathBuf, String> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::home_dir().ok_or("no home directory")?.join(".cargo");
    fs::canonicalize(&home).map_err(|error| cannot(&home, &error))
}

fn sysroot() -> Result<PathBuf, String> {
    output(Command::new("rustc").args(["--print", "sysroot"])).map(|path| path.trim().into())
}
