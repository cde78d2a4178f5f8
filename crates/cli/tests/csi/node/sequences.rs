//! Random sequences of calls for two volumes, each against a model of its state. A call is made once or three times at once,
//! and the plugin is killed during some of them.
//!
//! `SLACKWATER_CSI_SEQUENCES` is the number of sequences, 10,000 for a long run. `SLACKWATER_SEED` repeats one. A long run
//! divides them among several machines, and has to be the only one that makes cgroups.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use slackwater_testkit::Random;

use crate::node::machine::{Call, Machine, TARGETS, Volume, wait_ended};
use crate::node::model::Model;
use crate::rig::{need_fuse, runs};

const CALLS: u64 = 14;
/// The mean number of calls of which one is cut off by a kill.
const KILLS: u64 = 6;
/// The longest time between the sending of a call and the kill of the plugin.
const KILLED_WITHIN_US: u64 = 15_000;

/// The fewest sequences of a long run.
const LONG: u64 = 1000;
/// Machines of a long run. A call waits more than it computes.
const MACHINES: usize = 8;

/// A volume, its model, and the text that was written to it last.
struct Subject {
    volume: Volume,
    model: Model,
    written: Option<String>,
}

#[test]
fn random_sequences_of_calls_agree_with_the_model() {
    need_fuse();
    let alone = runs("SLACKWATER_SEED", u64::MAX);
    let seeds = if alone == u64::MAX { 0..runs("SLACKWATER_CSI_SEQUENCES", 25) } else { alone..alone + 1 };
    let is_long = seeds.end - seeds.start >= LONG;
    let machines = if is_long { MACHINES } else { 1 };
    let before = cgroups();
    let made = AtomicU64::new(0);
    thread::scope(|scope| {
        for first in 0..machines {
            let (seeds, made) = (seeds.clone(), &made);
            scope.spawn(move || {
                let mut machine = Machine::start();
                for seed in seeds.skip(first).step_by(machines) {
                    sequence(&mut machine, seed);
                    let made = made.fetch_add(1, Ordering::Relaxed) + 1;
                    if is_long && made.is_multiple_of(100) {
                        println!("{made} sequences");
                    }
                }
                machine.end();
            });
        }
    });
    if is_long {
        assert_eq!(cgroups(), before);
    }
}

/// All cgroups of the machine.
fn cgroups() -> BTreeSet<PathBuf> {
    fn walk(dir: &Path, found: &mut BTreeSet<PathBuf>) {
        // A cgroup may end meanwhile.
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                walk(&entry.path(), found);
                found.insert(entry.path());
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(Path::new("/sys/fs/cgroup"), &mut found);
    found
}

fn sequence(machine: &mut Machine, seed: u64) {
    let random = &mut Random::new(seed);
    let mut subjects = ["a", "b"].map(|name| {
        let mut model = Model::default();
        model.answer(Call::Create).unwrap();
        Subject { volume: machine.create(&format!("{name}-{seed}")), model, written: None }
    });
    let mut history = Vec::new();
    for step in 0..CALLS {
        let subject = &mut subjects[random.below(2) as usize];
        let call = draw(random);
        history.push(format!("{} {call:?}", subject.volume.name));
        let about = || format!("repeat with SLACKWATER_SEED={seed}; {history:#?}");
        make(machine, subject, call, random, &about);
        if step % 2 == 0 {
            write(subject, &format!("{seed} {step}"), &about);
        }
    }
    let about = || format!("repeat with SLACKWATER_SEED={seed}; {history:#?}");
    for subject in &mut subjects {
        for target in 0..TARGETS {
            make(machine, subject, Call::Unpublish { target }, random, &about);
        }
        make(machine, subject, Call::Unstage, random, &about);
        make(machine, subject, Call::Delete, random, &about);
    }
    machine.expect_nothing();
    for Subject { volume, .. } in subjects {
        fs::remove_dir_all(volume.staging().parent().unwrap()).unwrap();
    }
}

/// Calls that take a volume on come more often than others.
fn draw(random: &mut Random) -> Call {
    let target = random.below(TARGETS as u64) as usize;
    match random.below(16) {
        0 => Call::Create,
        1 => Call::Delete,
        2..=5 => Call::Stage,
        6..=7 => Call::Unstage,
        8..=11 => Call::Publish { target, read_only: random.below(3) == 0 },
        12..=14 => Call::Unpublish { target },
        _ => Call::Stats { target },
    }
}

/// Makes a call and compares the answers with the model's.
fn make(machine: &mut Machine, subject: &mut Subject, call: Call, random: &mut Random, about: &dyn Fn() -> String) {
    let Subject { volume, model, written } = subject;
    let times = if random.below(2) == 0 { 3 } else { 1 };
    if random.below(KILLS) == 0 {
        let delay = Duration::from_micros(random.below(KILLED_WITHIN_US));
        machine.cut_off(volume, call, times, delay);
    }
    let was_in_daemon = model.is_in_daemon();
    let expected = model.answer(call);
    for answer in machine.at_once(volume, call, times, expected.is_ok()) {
        let is_expected = match (&answer, expected) {
            (Ok(()), Ok(())) | (Err(_), Err(None)) => true,
            (Err(status), Err(Some(code))) => status.code == code,
            _ => false,
        };
        assert!(is_expected, "{call:?} has to answer {expected:?}, and answers {answer:?}\n{}", about());
    }
    if was_in_daemon && !model.is_in_daemon() {
        // After an unstage it has; after the last of other directories it takes a moment.
        if call != Call::Unstage {
            wait_ended(machine, volume);
        }
        // N3: all that was written is in the source.
        let found = fs::read_to_string(volume.source().join("file")).ok();
        assert_eq!(found, *written, "{}", about());
    }
    if !model.exists() {
        *written = None;
    }
    let mounted = machine.mounts();
    for target in 0..TARGETS {
        let is_mounted = mounted.iter().any(|point| *point == volume.target(target).to_string_lossy());
        let is_published = model.published().any(|(number, _)| number == target);
        assert_eq!(is_mounted, is_published, "target {target} after {call:?}, {}", about());
    }
}

/// Writes in each directory that shows the volume.
fn write(subject: &mut Subject, text: &str, about: &dyn Fn() -> String) {
    for (target, is_read_only) in subject.model.published() {
        let wrote = fs::write(subject.volume.target(target).join("file"), text);
        match wrote {
            Ok(()) if !is_read_only => subject.written = Some(text.to_owned()),
            Err(error) if is_read_only && error.kind() == ErrorKind::ReadOnlyFilesystem => {}
            other => panic!("a write, read-only {is_read_only}: {other:?}\n{}", about()),
        }
    }
}
