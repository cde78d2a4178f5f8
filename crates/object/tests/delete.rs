//! Deletion of whole volumes: with a crash at every request, beside a process that has the volume, and in a directory.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use futures::executor::block_on;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use slackwater_object::layers::{Fault, Layered, Patience, Rule};
use slackwater_object::{FsckOptions, Location, ObjectBackend, OpenOptions, VolumeError, delete, fsck};

const PATIENCE: Patience =
    Patience { attempt: Duration::from_millis(300), min_bytes_per_s: 1 << 20, request: Duration::from_millis(200) };

/// An object of the old volume, which must not be part of a new one.
const OLD: &str = "seg/07/00000000000000000000000000000007";

fn behind(store: &Arc<InMemory>, fault: &Arc<Fault>) -> Location {
    let (store, fault) = (store.clone(), fault.clone());
    let layer = move |_| -> Arc<dyn ObjectStore> { Arc::new(Layered::new(fault.clone(), store.clone())) };
    Location::parse("memory:deleted").unwrap().layered(layer).patient(PATIENCE)
}

fn objects(store: &Arc<InMemory>) -> Vec<String> {
    block_on(store.list(None).map_ok(|object| object.location.to_string()).try_collect()).unwrap()
}

/// A volume with an object that no metadata names, and an object of another program beside it.
fn volume() -> Arc<InMemory> {
    let store = Arc::new(InMemory::new());
    ObjectBackend::mkfs(&behind(&store, &Arc::default())).unwrap();
    for key in [OLD, "other/program"] {
        block_on(store.put(&Key::from(key), b"x".as_slice().into())).unwrap();
    }
    store
}

#[test]
fn a_deletion_that_crashes_anywhere_leaves_a_volume_or_none_and_can_be_repeated() {
    let mut deletions = 0;
    for request in 1.. {
        for (rule, then_mkfs) in [(Rule::crash_before(), false), (Rule::crash_after(), true)] {
            let store = volume();
            let fault = Arc::new(Fault::new());
            fault.add(rule.nth(request));
            let outcome = delete(&behind(&store, &fault));
            if !fault.is_crashed() {
                outcome.unwrap();
                assert_eq!(objects(&store), ["other/program"], "request {request}");
                // A listing has no answer after which it could crash.
                if then_mkfs {
                    continue;
                }
                assert!(deletions > 8, "it crashed {deletions} times");
                return;
            }
            deletions += 1;
            let location = behind(&store, &Arc::default());
            match ObjectBackend::look(&location) {
                Ok(_) => assert!(objects(&store).contains(&OLD.to_owned()), "request {request}: it is whole"),
                Err(VolumeError::NoVolume(_)) if then_mkfs => {
                    ObjectBackend::mkfs(&location).unwrap();
                    let left = objects(&store);
                    assert!(!left.contains(&OLD.to_owned()), "request {request}: a new volume has an old object");
                    let report = fsck(&location, &FsckOptions { repair: false, data: true }, &mut |_| {}).unwrap();
                    assert!(report.findings.is_empty() && report.files == 0, "request {request}: {report:?}");
                }
                Err(VolumeError::NoVolume(_)) => {}
                Err(error) => panic!("request {request}: {error}"),
            }
            delete(&location).unwrap();
            assert_eq!(objects(&store), ["other/program"], "request {request}");
            delete(&location).unwrap();
        }
    }
}

#[test]
fn a_volume_that_a_process_has_is_not_deleted() {
    let store = volume();
    let location = behind(&store, &Arc::default());
    let before = objects(&store).len();
    let writer = ObjectBackend::open(&location, &OpenOptions::default()).unwrap();
    assert!(matches!(delete(&location), Err(VolumeError::InUse(_))));
    assert!(objects(&store).len() >= before, "nothing is deleted");
    writer.close().unwrap();
    drop(writer);
    delete(&location).unwrap();
    assert_eq!(objects(&store), ["other/program"]);
}

#[test]
fn objects_of_other_programs_are_never_deleted() {
    let store = Arc::new(InMemory::new());
    for key in ["meta/mine", "seg/mine", "volume.txt"] {
        block_on(store.put(&Key::from(key), b"x".as_slice().into())).unwrap();
    }
    delete(&behind(&store, &Arc::default())).unwrap();
    assert_eq!(objects(&store), ["meta/mine", "seg/mine", "volume.txt"]);
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_volume_in_a_directory_leaves_no_directory() {
    let folder = Folder(std::env::temp_dir().join(format!("slackwater-deleted-{}", std::process::id())));
    let place = folder.0.join("volume");
    let location = Location::parse(&format!("file://{}", place.display())).unwrap();
    ObjectBackend::mkfs(&location).unwrap();
    delete(&location).unwrap();
    assert!(!place.exists());
    delete(&location).unwrap();
    // The disk of the directory above may not be mounted.
    fs::remove_dir(&folder.0).unwrap();
    assert!(delete(&location).is_err());

    ObjectBackend::mkfs(&location).unwrap();
    fs::write(place.join("mine"), "x").unwrap();
    delete(&location).unwrap();
    let left: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [Path::new(&place).join("mine")]);
}
