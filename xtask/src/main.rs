//! All checks of the project in one command: `cargo xtask ci`, the same on a laptop and in CI.
//!
//! [`steps`] lists the checks and runs them; [`cargo`] starts cargo, and [`test_programs`] runs its test programs;
//! [`packages`] installs the programs that tests run; [`folders`] reads and copies files. [`licences`] and [`tidy`] are the
//! checks that no standard tool makes, and [`suites`] runs real programs on a mounted directory. [`dist`] makes what people install. [`site`] makes the documentation site, with [`markdown`]. [`api`] lists the
//! public API of the libraries. Warnings are errors here and nowhere else.

mod api;
mod cargo;
mod dist;
mod folders;
mod licences;
mod markdown;
mod packages;
mod site;
mod steps;
mod suites;
mod test_programs;
mod tidy;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use steps::Extent;
use test_programs::private_mounts;

/// The variable of a run that has a mount namespace of its own.
const IS_PRIVATE: &str = "SLACKWATER_XTASK_IS_PRIVATE";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies below the workspace root");
    if let Err(error) = std::env::set_current_dir(root) {
        eprintln!("xtask: cannot enter {}: {error}", root.display());
        return ExitCode::FAILURE;
    }
    if let ([first, words @ ..], None) = (private_mounts(), std::env::var_os(IS_PRIVATE)) {
        let own = std::env::current_exe().unwrap_or_default();
        let error =
            Command::new(first).args(words).arg(own).args(std::env::args_os().skip(1)).env(IS_PRIVATE, "1").exec();
        eprintln!("xtask: cannot start {first}: {error}");
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["--help" | "-h" | "help"] => {
            println!("{}", steps::help());
            return ExitCode::SUCCESS;
        }
        ["suites", ref options @ ..] if !options.is_empty() => suites::run(options),
        ["dist", ref options @ ..] if !options.is_empty() => dist::run(options),
        ["api"] => tidy::rewrite_api(),
        ["site"] => site::make(),
        ["ci"] => steps::run(steps::of(Extent::Gate), Extent::Gate),
        ["ci", "--full"] => steps::run(steps::of(Extent::Full), Extent::Full),
        [name] if steps::named(name).next().is_some() => steps::run(steps::named(name), Extent::Gate),
        [name, "--full"] if steps::named(name).next().is_some() => steps::run(steps::named(name), Extent::Full),
        _ => Err(format!("unknown arguments: {}\n\n{}", arguments.join(" "), steps::help())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nxtask: {message}");
            ExitCode::FAILURE
        }
    }
}
