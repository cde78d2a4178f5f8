//! The checks in their order, and how they are run, timed and reported.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::cargo::{self, Cargo, Flaky, TestCount, Tested};
use crate::test_programs::TestProgram;
use crate::{dist, licences, packages, suites, test_programs, tidy};

/// How much of the checks runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The gate of every change: at most 20 minutes on two CPUs, from a fresh clone.
    Gate,
    /// All: an hour more.
    Full,
}

impl Extent {
    /// The option of the extent on the command line.
    fn option(self) -> &'static str {
        if self == Extent::Full { " --full" } else { "" }
    }
}

/// A check. `run` returns what its tests reported; an error says what failed and, for cargo, how to repeat it.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    about: &'static str,
    when: When,
    run: fn(Extent) -> Result<Tested, String>,
}

/// When a check runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// The check is part of each run.
    Always,
    /// The check is part of each run, beside the checks that follow, at the lowest priority and with a target folder of
    /// its own: it computes, and tests of mounts leave CPUs idle.
    Beside,
    /// The check is part of the full checks.
    Full,
}

/// All checks, in the order of `cargo xtask ci --full`.
#[rustfmt::skip]
pub(crate) const STEPS: [Step; 13] = [
    Step { name: "fmt", about: "formatting", when: When::Always, run: |_| no_tests(Cargo::new("fmt --all --check").run()) },
    Step { name: "tidy", about: "rules of the project that no standard tool knows", when: When::Always, run: |_| no_tests(tidy::run()) },
    Step { name: "licences", about: "licences of all dependencies", when: When::Always, run: |_| no_tests(licences::run()) },
    Step { name: "clippy", about: "all targets, built with more lints, warnings refused", when: When::Always, run: clippy },
    Step { name: "loom", about: "exhaustive model checks of the primitives", when: When::Beside, run: loom },
    Step { name: "shuttle", about: "random schedules of the protocols", when: When::Beside, run: shuttle },
    Step { name: "test", about: "unit, integration and doc tests; every example is run", when: When::Always, run: test },
    Step { name: "uring", about: "mounts over io_uring; needs root and Linux 6.14", when: When::Always, run: uring },
    Step { name: "docs", about: "rustdoc of all items, broken links refused", when: When::Full, run: docs },
    Step { name: "dist", about: "packages, and their life on a fresh Debian; needs root", when: When::Full, run: |_| no_tests(dist::step()) },
    Step { name: "heavy", about: "long tests, kills and databases, with release builds", when: When::Full, run: heavy },
    Step { name: "suites", about: "real programs on a mounted directory; needs root", when: When::Full, run: suites },
    Step { name: "fuzz", about: "requests that no kernel sends, for half a minute", when: When::Full, run: fuzz },
];

/// The checks of `extent`, in their order.
pub(crate) fn of(extent: Extent) -> impl Iterator<Item = &'static Step> {
    STEPS.iter().filter(move |step| extent == Extent::Full || step.when != When::Full)
}

/// The check with this name, if there is one.
pub(crate) fn named(name: &str) -> impl Iterator<Item = &'static Step> {
    STEPS.iter().filter(move |step| step.name == name)
}

/// The text of `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "cargo xtask ci [--full]       the gate: all checks but those marked *, in this order; stops at the first failure.\n\
         \x20                             With --full, all checks, and more of `test`, `uring`, `loom` and `shuttle`\n\
         cargo xtask <check> [--full]  one check:\n",
    );
    for step in &STEPS {
        text += &format!("    {:<9}{} {}\n", step.name, if step.when == When::Full { '*' } else { ' ' }, step.about);
    }
    text += "\nA test that fails runs once more alone. If it passes then, the run goes on, and lists it at its end as FLAKY.\n\
             \ncargo xtask api          rewrite the listings of the public API in docs/api\n\
             cargo xtask site         make the documentation site in target/site/html; needs mdBook\n";
    text + "\n" + &dist::help() + "\n" + &suites::help()
}

/// Runs `steps` up to the first failure and prints the time of each, and the flaky tests of all.
pub(crate) fn run<'a>(steps: impl Iterator<Item = &'a Step>, extent: Extent) -> Result<(), String> {
    let start = Instant::now();
    let steps: Vec<_> = steps.collect();
    let mut times = Vec::new();
    let mut tested = Tested::default();
    let mut failures = Vec::new();
    let mut beside = Vec::new();
    let mut end = |step: &Step, outcome: Result<Tested, String>, seconds: f64| {
        println!("== {}: {seconds:.1} s", step.name);
        times.push((step.name, seconds));
        match outcome {
            Ok(of_step) => tested += of_step,
            Err(what) => {
                failures.push(format!("{0} failed: {what}\nrepeat: cargo xtask {0}{1}", step.name, extent.option()))
            }
        }
        failures.is_empty()
    };
    for step in &steps {
        if step.when == When::Beside && steps.len() > 1 {
            println!("\n== {}: {}; runs beside the checks that follow", step.name, step.about);
            let name = step.name;
            beside.push((step, thread::spawn(move || run_beside(name, extent))));
            continue;
        }
        println!("\n== {}: {}", step.name, step.about);
        let start = Instant::now();
        let outcome = (step.run)(extent);
        if !end(step, outcome, start.elapsed().as_secs_f64()) {
            break;
        }
    }
    for (step, process) in beside {
        let (outcome, said, seconds) = process.join().expect("it does not panic");
        println!("\n== {}: {}\n{said}", step.name, step.about);
        end(step, outcome, seconds);
    }
    println!("\n== {}", if failures.is_empty() { "passed" } else { "ended" });
    for (name, seconds) in &times {
        println!("{name:<9}{seconds:8.1} s");
    }
    println!("{:<9}{:8.1} s", "total", start.elapsed().as_secs_f64());
    if !tested.flaky.is_empty() {
        println!(
            "\n== FLAKY: failed, and passed when run alone. Each is a fault to mend: of the test, or of the program"
        );
        for Flaky { name, output } in &tested.flaky {
            println!("\n{name}\n{output}");
        }
        println!();
    }
    if !failures.is_empty() {
        return Err(failures.join("\n\n"));
    }
    if tested.count != TestCount::default() {
        println!("test result: {} {ALL_PROGRAMS}", tested.count);
    }
    Ok(())
}

/// The end of the line with the sum of all tests of a run.
const ALL_PROGRAMS: &str = "(all test programs)";

/// Runs the check `name` in a process of the lowest priority. Returns its results, what it printed, and its seconds.
fn run_beside(name: &str, extent: Extent) -> (Result<Tested, String>, String, f64) {
    let start = Instant::now();
    let run = || {
        // A build may have replaced the file meanwhile.
        let program = format!("/proc/{}/exe", std::process::id());
        let log = std::env::temp_dir().join(format!("slackwater-xtask-{name}-{}.txt", std::process::id()));
        let file = File::create(&log)?;
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(program).arg(name).args(extent.option().split_whitespace());
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let status = command.status()?;
        let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        fs::remove_file(log)?;
        Ok((status.success(), said))
    };
    let (passed, said) = run().unwrap_or_else(|error: std::io::Error| (false, error.to_string()));
    let sum = said.lines().rev().find(|line| line.ends_with(ALL_PROGRAMS)).map(TestCount::of_line).unwrap_or_default();
    let outcome = if passed { Ok(sum.into()) } else { Err("see its output above".into()) };
    (outcome, said, start.elapsed().as_secs_f64())
}

fn no_tests(result: Result<(), String>) -> Result<Tested, String> {
    result.map(|()| Tested::default())
}

/// Lints everything with all features; in the full checks also the command without any, as the README builds it.
fn clippy(extent: Extent) -> Result<Tested, String> {
    suites::build_all().run()?;
    if extent == Extent::Full {
        Cargo::new("clippy --package slackwater-cli -- -D warnings").run()?;
    }
    Ok(Tested::default())
}

fn test(extent: Extent) -> Result<Tested, String> {
    packages::install(packages::FOR_TESTS);
    if extent == Extent::Full {
        packages::install(packages::FOR_LONG_TESTS);
    }
    let list = cargo::target_directory()?.join("skipped-tests");
    let _ = fs::remove_file(&list);
    // All targets first, since some tests run programs of other packages.
    let mut programs = TestProgram::examples()?;
    programs.extend(TestProgram::build(all_tests())?);
    let programs = programs.into_iter().map(|program| {
        program.env("SLACKWATER_SKIPPED_TESTS", &list.to_string_lossy()).env("SLACKWATER_PROGRAMS_ARE_BUILT", "yes")
    });
    let mut tested = test_programs::run(programs.collect())?;
    tested += all_tests().args("--doc").run_tests_again()?;
    if let Ok(skipped) = fs::read_to_string(&list) {
        print!("\n{skipped}{} tests skipped\n", skipped.lines().count());
    }
    Ok(tested)
}

/// The tests of all packages, built with the features and dependencies of all of them together. The same selection in each
/// step saves compiling dependencies with other features.
fn all_tests() -> Cargo {
    Cargo::new("test --workspace").args(suites::FEATURES).linted()
}

/// A run of the test program `program`, named as `NAME` or `PACKAGE/NAME`.
struct Run {
    program: &'static str,
    variables: &'static [(&'static str, &'static str)],
    arguments: &'static str,
    /// The tests run the command as it is released, but for object volumes. Otherwise it has all features, without
    /// optimisation.
    is_released: bool,
}

/// The tests marked `#[ignore = "long: ..."]` that find faults, and more rounds of others.
#[rustfmt::skip]
const HEAVY: [Run; 10] = [
    Run { program: "csi", variables: &[], arguments: "--ignored", is_released: false },
    Run { program: "csi", variables: &[("SLACKWATER_CSI_SEQUENCES", "300")], arguments: "sequences::", is_released: false },
    Run { program: "daemon", variables: &[], arguments: "--ignored", is_released: false },
    Run { program: "docker_plugin", variables: &[], arguments: "--ignored", is_released: false },
    Run { program: "mounts", variables: &[], arguments: "--ignored", is_released: true },
    Run { program: "mounts", variables: &[("SLACKWATER_MOUNT_KILLS", "50"), ("SLACKWATER_MOUNT_RUNS", "10")], arguments: "kills:: crash_mix:: load::", is_released: true },
    Run { program: "object/model", variables: &[("SLACKWATER_HISTORIES", "300")], arguments: "", is_released: false },
    Run { program: "power_cut", variables: &[("SLACKWATER_POWER_CUTS", "50")], arguments: "", is_released: true },
    Run { program: "slackwater_object", variables: &[("SLACKWATER_LONG", "yes")], arguments: "crash_at_any_request round_trip histories", is_released: false },
    // A hundred kills of a kept mount under programs of all kinds, among them two databases.
    Run { program: "takeover", variables: &[("SLACKWATER_KEPT_KILLS", "100")], arguments: "--include-ignored many_kills::", is_released: true },
];

const OVER_URING: &[(&str, &str)] = &[("SLACKWATER_TEST_TRANSPORT", "uring")];

/// The tests of the transport and of promises over io_uring. A test of a promise is named after it, such as `p02_...`.
#[rustfmt::skip]
const URING_OF_GATE: [Run; 2] = [
    Run { program: "mounts", variables: OVER_URING, arguments: "transport:: ::p0 ::p1", is_released: false },
    Run { program: "volume", variables: OVER_URING, arguments: "::p0 ::p1", is_released: false },
];

/// The tests that end, stop or take over a mount, or wait in one, over io_uring.
#[rustfmt::skip]
const URING: [Run; 3] = [
    Run { program: "mounted", variables: OVER_URING, arguments: "", is_released: true },
    Run { program: "mounts", variables: OVER_URING, arguments: "transport:: kills:: crash_mix:: hung_source:: startup:: forced_unmounts:: lifecycle:: load:: signals::", is_released: true },
    Run { program: "volume", variables: OVER_URING, arguments: "", is_released: true },
];

/// The built test programs of `runs`. A run without a program is an error: otherwise its tests would disappear unnoticed.
fn programs_of(runs: &[Run]) -> Result<Vec<TestProgram>, String> {
    let command = if runs.iter().any(|run| run.is_released) { dist::command()? } else { PathBuf::new() };
    let built = TestProgram::build(all_tests())?;
    let mut programs = Vec::new();
    for Run { program, variables, arguments, is_released } in runs {
        let found = built.iter().find(|built| built.is(program)).ok_or_else(|| format!("no test program {program}"))?;
        let command = is_released.then(|| (COMMAND, command.to_str().unwrap_or_default()));
        let variables = variables.iter().copied().chain(command);
        programs.push(variables.fold(found.clone().args(arguments), |program, (name, value)| program.env(name, value)));
    }
    Ok(programs)
}

/// The variable with the `slackwater` that the tests of the command run, if not the one that is built with them.
const COMMAND: &str = "SLACKWATER_TEST_COMMAND";

/// The runs of [`HEAVY`], and the long tests of the engine, which is built in release mode.
fn heavy(_: Extent) -> Result<Tested, String> {
    packages::install(packages::FOR_TESTS);
    packages::install(packages::FOR_LONG_TESTS);
    let engine = Cargo::new("test --release --package slackwater-backends --test lives --test model");
    let engine = TestProgram::build(engine)?.into_iter().map(|program| program.args("--ignored"));
    test_programs::run(engine.chain(programs_of(&HEAVY)?).collect())
}

fn fuzz(_: Extent) -> Result<Tested, String> {
    all_tests().args("--test fuzz").env("SLACKWATER_FUZZ_SECONDS", "30").run_tests().map(Tested::from)
}

/// Runs the suites on a directory; on one whose server is killed again and again; and then on object volumes with the
/// programs that ask most of names and syncs. Others on object volumes run by hand, and so does `stress`: it looks for
/// crashes, and checks no promise.
fn suites(_: Extent) -> Result<Tested, String> {
    packages::install(packages::FOR_TESTS);
    let command = dist::command()?.display().to_string();
    suites::run(&["--binary", &command, "pjdfstest", "git", "sqlite", "fio", "fsx", "trees"])?;
    suites::run(&["--binary", &command, "--kill", "git", "sqlite"])?;
    suites::run(&["--store", "file", "pjdfstest"])?;
    no_tests(suites::run(&["--store", "s3", "git"]))
}

/// Tests of mounts once more, over io_uring, which is switched on for that time.
fn uring(extent: Extent) -> Result<Tested, String> {
    let Some(_switch) = Switch::on() else {
        println!("skipped: {URING_SWITCH} cannot be switched on here");
        return Ok(Tested::default());
    };
    if extent == Extent::Gate {
        return test_programs::run(programs_of(&URING_OF_GATE)?);
    }
    let tested = test_programs::run(programs_of(&URING)?)?;
    suites::run(&["--binary", &dist::command()?.display().to_string(), "pjdfstest"])?;
    Ok(tested)
}

const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The kernel's switch for FUSE over io_uring; as it was before when dropped.
struct Switch {
    before: String,
}

impl Switch {
    /// `None` if the kernel has none, or the user may not.
    fn on() -> Option<Self> {
        let before = fs::read_to_string(URING_SWITCH).ok()?;
        fs::write(URING_SWITCH, "Y").ok()?;
        Some(Self { before })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // It was writable before.
        let _ = fs::write(URING_SWITCH, self.before.trim());
    }
}

fn docs(_: Extent) -> Result<Tested, String> {
    let doc = Cargo::new("doc --workspace --all-features --no-deps --document-private-items")
        .env("RUSTDOCFLAGS", "-D warnings");
    no_tests(doc.run())
}

/// The gate leaves out the search for missing barriers, in which each scenario runs once for each barrier, and two large
/// scenarios, and allows fewer preemptions.
fn loom(extent: Extent) -> Result<Tested, String> {
    let left_out = "--skip mutants:: --skip the_callback_follows_all_work --skip the_element_behind_a_removed_one";
    let (arguments, variable) = match extent {
        Extent::Gate => (left_out, Some(("SLACKWATER_LOOM_PREEMPTIONS", "2"))),
        Extent::Full => ("", None),
    };
    model_check("loom", &["slackwater-sync"], arguments, variable)
}

fn shuttle(extent: Extent) -> Result<Tested, String> {
    let executions = if extent == Extent::Full { None } else { Some(("SLACKWATER_SHUTTLE_EXECUTIONS", "100")) };
    model_check("shuttle", &["slackwater", "slackwater-sync"], "", executions)
}

/// Runs the test target `tool` of every package that has one under the tool's cfg, each tool with its own target folder.
/// A package in `required` without it is an error: otherwise its checks would disappear unnoticed. A schedule that fails is a
/// fault, whether or not another run finds it again.
fn model_check(
    tool: &str,
    required: &[&str],
    arguments: &str,
    variable: Option<(&str, &str)>,
) -> Result<Tested, String> {
    let packages: Vec<_> = targets("test")?.into_iter().filter(|(_, target)| target == tool).collect();
    if let Some(missing) = required.iter().find(|name| !packages.iter().any(|(package, _)| package == *name)) {
        return Err(format!("no test {tool} in {missing}"));
    }
    let mut count = TestCount::default();
    for (package, _) in packages {
        let mut cargo =
            Cargo::new(&format!("test --release --package {package} --test {tool} -- --nocapture {arguments}"))
                .env("CARGO_TARGET_DIR", &format!("target/{tool}"))
                .env("RUSTFLAGS", &format!("--cfg slackwater_{tool}"));
        if let Some((name, value)) = variable {
            cargo = cargo.env(name, value);
        }
        count += cargo.run_tests()?;
    }
    Ok(count.into())
}

/// The targets of our packages of one kind, such as `test`: package and name.
fn targets(kind: &str) -> Result<Vec<(String, String)>, String> {
    let metadata = cargo::metadata("--no-deps")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| {
        let targets = package["targets"].as_array().into_iter().flatten();
        let of_kind = targets.filter(|target| target["kind"][0] == kind);
        of_kind.filter_map(|target| Some((package["name"].as_str()?.into(), target["name"].as_str()?.into())))
    });
    Ok(targets.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_check() {
        let help = help();
        assert!(STEPS.iter().all(|step| help.contains(step.name)), "{help}");
    }

    #[test]
    fn the_run_stops_at_the_first_failure_and_names_it() {
        let fails = Step { name: "bad", about: "", when: When::Always, run: |_| Err("cargo bad".into()) };
        let unreached = Step { name: "after", about: "", when: When::Always, run: |_| panic!("ran after a failure") };
        let message = run([&fails, &unreached].into_iter(), Extent::Gate).unwrap_err();
        assert_eq!(message, "bad failed: cargo bad\nrepeat: cargo xtask bad");
    }
}
