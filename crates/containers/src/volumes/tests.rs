//! Volumes against a model, with crashes; and single cases.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use proptest::prelude::*;
use proptest::sample::select;
use rustix::fs::{FlockOperation, flock};
use slackwater_testkit::damage;

use super::*;
use crate::crash;

/// As that of the command, without mounts.
fn lock_for_removal(path: &Path) -> Result<OwnedFd, Failure> {
    let directory = OwnedFd::from(fs::File::open(path).unwrap());
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(_) => Err(Failure::busy(format!("{} is in use", path.display()))),
    }
}

/// A state directory and two pools, removed at the end.
struct Place {
    root: PathBuf,
    volumes: Volumes,
}

impl Place {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("slackwater-volumes-{}-{number}", std::process::id()));
        for name in ["a", "b", "mine"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(root.join("mine/file"), "mine").unwrap();
        let volumes = Volumes::open(&root.join("state"), lock_for_removal).unwrap();
        Self { root, volumes }
    }

    fn wanted(&self, name: &str, pool: &str) -> NewVolume {
        let pool = match pool {
            "mine" => Pool::Existing(self.root.join(pool)),
            _ => Pool::Directory(self.root.join(pool)),
        };
        NewVolume { name: name.to_owned(), pool, required_bytes: None, limit_bytes: None, limits: Limits::default() }
    }

    /// The record files and the directories of the pools, without the files in them.
    fn entries(&self, of: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(of)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create { name: &'static str, pool: &'static str, required: Option<u64>, limit: Option<u64> },
    Remove { name: &'static str },
    Resize { name: &'static str, bytes: u64 },
}

/// Names whose ids need care.
const NAMES: [&str; 5] = ["data", "../data", "DATA", "", "x\ny"];

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![3 => 1_u64..5, 1 => Just(0), 1 => Just(u64::MAX)];
    prop_oneof![
        4 => (select(&NAMES[..]), select(&["a", "b", "mine", "missing"][..]), proptest::option::of(bytes()), proptest::option::of(bytes()))
            .prop_map(|(name, pool, required, limit)| Step::Create { name, pool, required, limit }),
        3 => select(&NAMES[..]).prop_map(|name| Step::Remove { name }),
        2 => (select(&NAMES[..]), bytes()).prop_map(|(name, bytes)| Step::Resize { name, bytes }),
    ]
}

/// Ready volumes by name: pool and size.
type Model = BTreeMap<&'static str, (&'static str, Option<u64>)>;

/// Makes a step in the model, and returns whether it succeeds.
fn expected(model: &mut Model, step: &Step) -> Result<(), &'static str> {
    let is_bad = |bytes: &u64| *bytes == 0 || *bytes > BYTES_MAX;
    match step {
        Step::Create { name: "", .. } => Err("invalid"),
        Step::Create { required, limit, .. } if [required, limit].into_iter().flatten().any(is_bad) => Err("range"),
        Step::Create { required: Some(required), limit: Some(limit), .. } if required > limit => Err("range"),
        Step::Create { name, pool, required, limit } => match model.get(name) {
            None if *pool == "missing" => Err("failed"),
            None => {
                model.insert(name, (pool, required.or(*limit)));
                Ok(())
            }
            Some((present, bytes)) => {
                let is_enough = required.is_none_or(|least| bytes.is_some_and(|bytes| bytes >= least));
                let is_within = limit.is_none_or(|most| bytes.is_some_and(|bytes| bytes <= most));
                if present == pool && is_enough && is_within { Ok(()) } else { Err("different") }
            }
        },
        Step::Remove { name } => {
            model.remove(name);
            Ok(())
        }
        Step::Resize { bytes, .. } if is_bad(bytes) => Err("range"),
        Step::Resize { name, bytes } => match model.get_mut(name) {
            None => Err("missing"),
            Some((_, present)) => {
                *present = Some(present.map_or(*bytes, |present| present.max(*bytes)));
                Ok(())
            }
        },
    }
}

fn kind(error: &VolumeError) -> &'static str {
    match error {
        VolumeError::Different(_) => "different",
        VolumeError::Missing(_) => "missing",
        VolumeError::Invalid(_) => "invalid",
        VolumeError::OutOfRange(_) => "range",
        VolumeError::Busy(_) => "busy",
        VolumeError::Failed(_) => "failed",
    }
}

fn make(place: &Place, step: &Step) -> Result<(), &'static str> {
    let done = match step {
        Step::Create { name, pool, required, limit } => {
            let wanted = place.wanted(name, pool);
            let wanted = NewVolume { required_bytes: *required, limit_bytes: *limit, ..wanted };
            place.volumes.create(&wanted).map(|record| {
                if *pool != "mine" {
                    fs::write(Path::new(&record.source).join(&record.id), "data").unwrap();
                }
            })
        }
        Step::Remove { name } => place.volumes.remove(&id::of(name), []),
        Step::Resize { name, bytes } => place.volumes.resize(&id::of(name), *bytes).map(drop),
    };
    done.map_err(|error| kind(&error))
}

/// Compares everything that exists with the model.
fn check(place: &Place, model: &Model) {
    let listed = place.volumes.list().unwrap();
    let found: Model = listed
        .iter()
        .map(|record| {
            let pool = Path::new(&record.source).strip_prefix(&place.root).unwrap().iter().next().unwrap();
            let name = NAMES.iter().find(|name| record.name == **name).unwrap();
            let pool = ["a", "b", "mine"].into_iter().find(|known| pool == *known).unwrap();
            (*name, (pool, record.bytes))
        })
        .collect();
    assert_eq!(&found, model);
    assert!(listed.is_sorted_by(|one, next| one.id < next.id));
    let files: Vec<_> = listed.iter().map(|record| format!("{}.json", record.id)).collect();
    assert_eq!(place.entries("state"), files, "nothing is left beside the records");
    for pool in ["a", "b"] {
        let here = listed.iter().filter(|record| record.pool == Pool::Directory(place.root.join(pool)));
        assert_eq!(place.entries(pool), here.map(|record| record.id.clone()).collect::<Vec<_>>());
    }
    for record in listed.iter().filter(|record| !matches!(record.pool, Pool::Existing(_))) {
        assert!(Path::new(&record.source).is_dir());
        let files = place.entries(Path::new(&record.source).strip_prefix(&place.root).unwrap().to_str().unwrap());
        assert!(files.iter().all(|file| *file == record.id), "{files:?}");
        assert_eq!(place.volumes.get(&record.id).as_ref(), Ok(&Some(record.clone())));
        assert_eq!(place.volumes.named(&record.name), Ok(Some(record.clone())));
    }
    assert_eq!(fs::read_to_string(place.root.join("mine/file")).unwrap(), "mine");
}

proptest! {
    #![proptest_config(damage::cases())]

    /// Each step may crash at one of its places. Then the volume is as before the step or as after it, once the records
    /// are open again and [`Volumes::finish`] has run, or the step is repeated.
    #[test]
    fn volumes_are_as_in_the_model(steps in proptest::collection::vec((step(), proptest::option::of(0_usize..16), any::<bool>()), 1..30)) {
        let mut place = Place::new();
        let mut model = Model::new();
        for (step, crash_after, is_repeated) in steps {
            let before = model.clone();
            let outcome = expected(&mut model, &step);
            match crash::after(crash_after, || make(&place, &step)) {
                Ok(done) => prop_assert_eq!(done, outcome, "{:?} on {:?}", step, before),
                Err(crash::Crash) => {
                    place.volumes = Volumes::open(&place.root.join("state"), lock_for_removal).unwrap();
                    if is_repeated {
                        prop_assert_eq!(make(&place, &step), outcome, "{:?} again on {:?}", step, before);
                    }
                    place.volumes.finish();
                    let names = place.volumes.list().unwrap().len();
                    if !is_repeated && names == before.len() && before.len() != model.len() {
                        model = before;
                    } else if let (false, Step::Resize { name, .. }) = (is_repeated, &step)
                        && place.volumes.named(name).unwrap().map(|record| record.bytes) == before.get(name).map(|(_, bytes)| *bytes)
                    {
                        model = before;
                    }
                }
            }
            check(&place, &model);
        }
    }
}

#[test]
fn calls_at_once_make_one_volume_and_remove_it_once() {
    let place = Place::new();
    let other = Volumes::open(&place.root.join("state"), lock_for_removal).unwrap();
    let wanted = place.wanted("data", "a");
    for _ in 0..20 {
        let barrier = Barrier::new(6);
        let both = [&place.volumes, &other];
        thread::scope(|scope| {
            for nth in 0..6 {
                let (volumes, wanted, barrier) = (both[nth % 2], &wanted, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    volumes.create(wanted).unwrap();
                });
            }
        });
        assert_eq!(place.entries("a").len(), 1);
        let id = id::of("data");
        thread::scope(|scope| {
            for nth in 0..6 {
                let (volumes, id) = (both[nth % 2], &id);
                scope.spawn(move || volumes.remove(id, []).unwrap());
            }
        });
        assert!(place.entries("a").is_empty() && place.entries("state").is_empty());
    }
}

#[test]
fn an_unreadable_record_is_named_and_stays() {
    let place = Place::new();
    let record = place.volumes.create(&place.wanted("data", "a")).unwrap();
    place.volumes.create(&place.wanted("other", "a")).unwrap();
    let file = place.root.join("state").join(format!("{}.json", record.id));
    let good = fs::read(&file).unwrap();
    for bad in [b"".as_slice(), b"{}", &good[..good.len() / 2], b"{\"version\": 9}"] {
        fs::write(&file, bad).unwrap();
        let refusals = [
            place.volumes.create(&place.wanted("data", "a")).unwrap_err(),
            place.volumes.get(&record.id).unwrap_err(),
            place.volumes.resize(&record.id, 7).unwrap_err(),
            place.volumes.remove(&record.id, []).unwrap_err(),
            place.volumes.list().unwrap_err(),
        ];
        for refusal in refusals {
            assert_eq!(kind(&refusal), "failed");
            assert!(refusal.to_string().contains(file.to_str().unwrap()), "{refusal}");
        }
        place.volumes.finish();
        assert_eq!(fs::read(&file).unwrap(), bad);
        assert!(Path::new(&record.source).is_dir());
    }
    fs::write(&file, good).unwrap();
    assert_eq!(place.volumes.list().unwrap().len(), 2);
}

#[test]
fn a_directory_without_a_record_is_not_taken() {
    let place = Place::new();
    let stranger = place.root.join("a").join(id::of("data"));
    fs::create_dir(&stranger).unwrap();
    fs::write(stranger.join("file"), "").unwrap();
    let refusal = place.volumes.create(&place.wanted("data", "a")).unwrap_err().to_string();
    assert!(refusal.contains(&format!("source={}", stranger.display())), "{refusal}");
    place.volumes.remove(&id::of("data"), []).unwrap();
    place.volumes.finish();
    assert!(stranger.join("file").exists() && place.entries("state").is_empty());
}

#[test]
fn the_lock_of_a_killed_process_does_not_stay() {
    let place = Place::new();
    fs::write(place.root.join("state").join(format!("{}.lock", id::of("data"))), "").unwrap();
    assert_eq!(place.volumes.list(), Ok(vec![]));
    place.volumes.finish();
    assert!(place.entries("state").is_empty());
}

#[test]
fn a_volume_that_a_mount_has_is_not_removed() {
    let place = Place::new();
    let record = place.volumes.create(&place.wanted("data", "a")).unwrap();
    let owner = fs::File::open(&record.source).unwrap();
    flock(&owner, FlockOperation::LockExclusive).unwrap();
    assert_eq!(kind(&place.volumes.remove(&record.id, []).unwrap_err()), "busy");
    assert_eq!(place.volumes.get(&record.id), Ok(Some(record.clone())), "it stays as it is");
    drop(owner);
    place.volumes.remove(&record.id, []).unwrap();
    assert!(place.entries("a").is_empty());
}

#[test]
fn a_pool_whose_disk_is_not_mounted_loses_no_volume() {
    let place = Place::new();
    let record = place.volumes.create(&place.wanted("data", "a")).unwrap();
    let (pool, away) = (place.root.join("a"), place.root.join("away"));
    fs::rename(&pool, &away).unwrap();
    assert_eq!(kind(&place.volumes.remove(&record.id, []).unwrap_err()), "failed");
    assert_eq!(kind(&place.volumes.create(&place.wanted("new", "a")).unwrap_err()), "failed");
    assert!(!pool.exists());
    fs::rename(&away, &pool).unwrap();
    assert_eq!(place.volumes.get(&record.id), Ok(Some(record)));
}

#[test]
fn programs_of_every_user_can_write_to_a_new_volume() {
    let place = Place::new();
    let record = place.volumes.create(&place.wanted("data", "a")).unwrap();
    assert_eq!(fs::metadata(&record.source).unwrap().permissions().mode() & 0o7777, 0o777);
    assert_eq!(fs::metadata(place.root.join("state")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn ids_from_outside_reach_no_other_file() {
    let place = Place::new();
    fs::write(place.root.join("victim.json"), "x").unwrap();
    for id in ["../victim", "", ".", "..", "/etc/passwd", "a/b", "a\0b", &"x".repeat(5000)] {
        assert_eq!(place.volumes.get(id), Ok(None), "{id}");
        assert_eq!(place.volumes.remove(id, []), Ok(()), "{id}");
        assert_eq!(kind(&place.volumes.resize(id, 7).unwrap_err()), "missing");
    }
    assert!(place.entries("state").is_empty() && place.root.join("victim.json").exists());
}

#[test]
fn limits_must_suit_the_pool() {
    let place = Place::new();
    let limits = Limits::parse(&[("slackwater.upload-limit".into(), "1MiB".into())].into()).unwrap();
    let wanted = NewVolume { limits, ..place.wanted("data", "a") };
    assert_eq!(kind(&place.volumes.create(&wanted).unwrap_err()), "invalid");
    let limits = Limits::parse(&[("slackwater.quota-inodes".into(), "7".into())].into()).unwrap();
    let wanted = NewVolume { limits, pool: Pool::Store("s3://bucket/x".into()), ..wanted };
    assert_eq!(kind(&place.volumes.create(&wanted).unwrap_err()), "invalid");
}

#[test]
#[cfg(feature = "object")]
fn volumes_of_a_store_are_made_and_deleted() {
    let place = Place::new();
    let store = place.root.join("store");
    let pool = Pool::parse(&format!("file://{}", store.display())).unwrap();
    let wanted = NewVolume { pool, ..place.wanted("data", "a") };
    let record = place.volumes.create(&wanted).unwrap();
    assert_eq!(place.volumes.create(&wanted), Ok(record.clone()));
    let at = Path::new(record.source.strip_prefix("file://").unwrap());
    assert!(at.join("volume.json").exists());
    let existing = NewVolume { pool: Pool::parse_existing(&record.source).unwrap(), ..place.wanted("same", "a") };
    let same = place.volumes.create(&existing).unwrap();
    place.volumes.remove(&same.id, []).unwrap();
    assert!(at.join("volume.json").exists());
    place.volumes.remove(&record.id, []).unwrap();
    assert!(!at.exists());
    let again = place.volumes.create(&wanted).unwrap();
    assert_ne!(again.source, record.source, "a prefix is used once");
    place.volumes.remove(&again.id, []).unwrap();
}

#[test]
#[cfg(feature = "object")]
fn a_volume_in_a_store_can_be_removed_on_a_machine_that_did_not_make_it() {
    let (place, other) = (Place::new(), Place::new());
    let [pool, elsewhere, missing] = ["store", "elsewhere", "missing"]
        .map(|name| Pool::parse(&format!("file://{}", place.root.join(name).display())).unwrap());
    let make = |name: &str, pool: &Pool| {
        place.volumes.create(&NewVolume { pool: pool.clone(), ..place.wanted(name, "a") }).unwrap()
    };
    // The id of the second begins with that of the first.
    let data = make("data", &pool);
    let (longer, apart) = (make(&data.id, &pool), make("apart", &elsewhere));
    let exists = |record: &Record| Path::new(record.source.strip_prefix("file://").unwrap()).exists();
    let directories = Pool::Directory(place.root.join("a"));
    other.volumes.remove(&data.id, [&directories, &elsewhere]).unwrap();
    assert!(exists(&data), "its pool is not known there");
    for _ in 0..2 {
        other.volumes.remove(&data.id, [&directories, &missing, &elsewhere, &pool]).unwrap();
        assert!(!exists(&data) && exists(&longer) && exists(&apart));
    }
    // The machine that made it finds nothing to remove.
    place.volumes.remove(&data.id, [&pool]).unwrap();
    assert_eq!(place.volumes.list().unwrap().len(), 2);
}

#[test]
#[cfg(feature = "object")]
fn a_volume_that_was_made_with_credentials_is_removed_and_finished_only_with_credentials() {
    let place = Place::new();
    let pool = Pool::parse(&format!("file://{}", place.root.join("store").display())).unwrap();
    let secrets = [("AWS_REGION".to_owned(), "here".to_owned())].into();
    let with = place.volumes.using(Credentials::of_secrets(secrets, Some("file:///")).unwrap());
    let wanted = NewVolume { pool: pool.clone(), ..place.wanted("data", "a") };
    let record = with.create(&wanted).unwrap();
    let exists = || Path::new(record.source.strip_prefix("file://").unwrap()).exists();
    assert_eq!(kind(&place.volumes.remove(&record.id, [&pool]).unwrap_err()), "invalid");
    assert!(exists());
    assert_eq!(place.volumes.get(&record.id), Ok(Some(record.clone())));
    // Its removal was interrupted.
    place.volumes.files.write(&Stored::new(State::Removing, &record)).unwrap();
    place.volumes.finish();
    assert!(exists() && place.volumes.files.read(&record.id).unwrap().is_some());
    with.remove(&record.id, [&pool]).unwrap();
    assert!(!exists() && place.volumes.files.read(&record.id).unwrap().is_none());
}
