//! Real programs on a mount: `cargo xtask suites [--long] [--store KIND | --on DIR | --kill] [--binary FILE] [SUITE...]`.
//!
//! Each file with a [`Suite`] is one of them. [`ground`] gives it a directory to work in: a `slackwater mount` of
//! its own directory, or with `--store` of its own volume in a [`store`]. With `--on DIR` it is a plain directory there,
//! which shows the result of the file system below alone. With `--kill`, the server of the mount is killed again and again
//! ([`kills`]), which no suite may notice.
//! [`program`] runs its programs, with a time limit and a log; [`tools`] builds those that cargo builds.
//!
//! A suite that cannot run fails. Everything is below one directory in /tmp, which is removed on success.

mod fio;
mod fsx;
mod git;
mod ground;
mod kills;
mod pjdfstest;
mod program;
mod real_tree;
mod sqlite;
mod store;
mod stress;
mod tools;
mod trees;

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ground::{Ground, Home, Target};
use store::Store;

use crate::cargo::target_directory;
use crate::folders::cannot;
use crate::packages;

pub(crate) use tools::{FEATURES, build_all, is_installed, is_root};

/// Programs that check a file system, and their verdict.
struct Suite {
    name: &'static str,
    about: &'static str,
    /// System programs that the suite needs.
    needs: &'static [&'static str],
    /// The function that runs the suite. Returns what was done, in one line.
    run: fn(&mut Ground, &Effort) -> Result<String, String>,
}

/// How much of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Effort {
    is_long: bool,
}

impl Effort {
    /// The amount of a long or of a short run.
    fn pick<T>(self, long: T, short: T) -> T {
        if self.is_long { long } else { short }
    }
}

/// The suites, the quick ones first.
const SUITES: [Suite; 7] =
    [pjdfstest::SUITE, git::SUITE, sqlite::SUITE, fio::SUITE, fsx::SUITE, trees::SUITE, stress::SUITE];

/// The options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    effort: Effort,
    on: Option<PathBuf>,
    /// `file` or `s3`.
    store: Option<String>,
    kill: bool,
    binary: Option<PathBuf>,
    names: Vec<String>,
}

/// The text of `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "cargo xtask suites [OPTIONS] [SUITE...]   real programs on a mounted directory, as root\n\
         \x20   --long          more operations\n\
         \x20   --store KIND    on object volumes: `file`, in a directory; `s3`, on a local S3 server\n\
         \x20   --kill          on a kept mount, whose server is killed every 0.3 to 2 s\n\
         \x20   --on DIR        on a plain directory made in DIR instead, to see what its file system does\n\
         \x20   --binary FILE   mounts by this slackwater, not by the one of this checkout\n",
    );
    for suite in &SUITES {
        text += &format!("    {:<12}{}\n", suite.name, suite.about);
    }
    text
}

/// Runs the suites that `arguments` name, all of them by default; and reports failures after all of them have run.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let request = parse(arguments)?;
    let chosen = chosen(&request.names)?;
    check_machine(request.on.is_none(), &chosen)?;
    let mut home = Home::new(request.on.as_deref())?;
    let logs = target_directory()?.join("suites");
    fs::create_dir_all(&logs).map_err(|error| cannot(&logs, &error))?;
    let mut target = Target { is_killed: request.kill, ..Target::default() };
    if request.on.is_none() {
        let has_server = request.store.as_deref() == Some("s3");
        let built = match &request.binary {
            Some(_) if !has_server => PathBuf::new(),
            _ => tools::programs(request.store.is_some(), request.effort.is_long)?,
        };
        target.binary = Some(request.binary.unwrap_or_else(|| built.join("slackwater")));
        if request.store.is_some() {
            let server = has_server.then(|| built.join("slackwater-s3-server"));
            target.store = Some(Store::start(server, home.path().join("store"), &logs.join("store.log"))?);
        }
    }
    let mut failed = Vec::new();
    for suite in chosen {
        println!("-- {}: {}", suite.name, suite.about);
        let start = Instant::now();
        let outcome = run_one(suite, &request.effort, &home, &logs, &target);
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(what) => println!("PASS {:<10} {seconds:6.1} s  {what}", suite.name),
            Err(what) => {
                println!("FAIL {:<10} {seconds:6.1} s  {what}", suite.name);
                failed.push(suite.name);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    home.keep();
    Err(format!("{}; logs are in {}, files in {}", failed.join(", "), logs.display(), home.path().display()))
}

fn run_one(suite: &Suite, effort: &Effort, home: &Home, logs: &Path, target: &Target) -> Result<String, String> {
    let mut ground = Ground::new(suite.name, home, logs, target)?;
    let outcome = (suite.run)(&mut ground, effort);
    // The first failure is reported first; an unmount that fails makes a suite fail that passed.
    let ended = ground.end();
    let what = outcome?;
    ended?;
    Ok(match ground.killed() {
        Some(killed) => format!("{what}; {killed}"),
        None => what,
    })
}

fn parse(arguments: &[&str]) -> Result<Request, String> {
    let mut request = Request::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--long" => request.effort.is_long = true,
            "--store" => match arguments.next() {
                Some(kind @ (&"file" | &"s3")) => request.store = Some((*kind).to_owned()),
                kind => return Err(format!("--store needs a kind, file or s3, instead of {kind:?}")),
            },
            "--kill" => request.kill = true,
            "--on" => request.on = Some(arguments.next().ok_or("--on needs a directory")?.into()),
            "--binary" => request.binary = Some(arguments.next().ok_or("--binary needs a file")?.into()),
            option if option.starts_with('-') => return Err(format!("unknown option {option}\n\n{}", help())),
            name => request.names.push(name.to_owned()),
        }
    }
    let places = [request.on.is_some(), request.store.is_some(), request.kill];
    if places.into_iter().filter(|is_asked| *is_asked).count() > 1 {
        return Err("--on, --store and --kill exclude each other".to_owned());
    }
    Ok(request)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Suite>, String> {
    if names.is_empty() {
        return Ok(SUITES.iter().collect());
    }
    let find = |name: &String| {
        let suite = SUITES.iter().find(|suite| suite.name == name);
        suite.ok_or_else(|| format!("there is no suite {name:?}\n\n{}", help()))
    };
    names.iter().map(find).collect()
}

/// All reasons for a suite to fail that are not the file system's fault.
fn check_machine(mounts: bool, chosen: &[&Suite]) -> Result<(), String> {
    let mut wrong = Vec::new();
    if !is_root() {
        wrong.push("root is needed: the suites mount, and act as several users".to_owned());
    }
    if mounts && let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        wrong.push(format!("/dev/fuse is needed, and cannot be opened: {error}"));
    }
    let programs = chosen.iter().flat_map(|suite| suite.needs).chain(&["timeout", "setpriv", "umount", "kill"]);
    let missing = programs.filter(|program| !is_installed(program));
    let mut packages: Vec<&str> = missing.map(|program| packages::package_of(program).unwrap_or(program)).collect();
    packages.sort_unstable();
    packages.dedup();
    if !packages.is_empty() {
        wrong.push(format!("programs are missing: apt-get install {}", packages.join(" ")));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_in_any_order() {
        let request = parse(&["git", "--on", "/tmp", "--long", "fsx"]).unwrap();
        let names = vec!["git".to_owned(), "fsx".to_owned()];
        let on = Some("/tmp".into());
        let expected = Request { effort: Effort { is_long: true }, on, names, ..Request::default() };
        assert_eq!(request, expected);
        assert_eq!(parse(&["--store", "s3"]).unwrap().store.as_deref(), Some("s3"));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert!(parse(&["--on"]).is_err());
        assert!(parse(&["--store", "gs"]).unwrap_err().contains("file or s3"));
        assert!(parse(&["--store", "file", "--on", "/tmp"]).is_err());
        assert!(parse(&["--kill", "--on", "/tmp"]).is_err());
        assert!(parse(&["--fast"]).unwrap_err().contains("--long"));
        assert!(chosen(&["gti".to_owned()]).is_err_and(|message| message.contains("pjdfstest")));
        assert_eq!(chosen(&[]).unwrap().len(), SUITES.len());
    }

    #[test]
    fn every_program_of_a_suite_has_its_package() {
        let mut programs = SUITES.iter().flat_map(|suite| suite.needs);
        assert!(programs.all(|program| packages::package_of(program).is_some()));
        assert_eq!(packages::package_of("setfacl"), Some("acl"));
    }

    #[test]
    fn help_names_every_suite() {
        let help = help();
        assert!(SUITES.iter().all(|suite| help.contains(suite.name)), "{help}");
    }
}
