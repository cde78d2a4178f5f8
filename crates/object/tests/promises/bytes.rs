//! Objects that are truncated, corrupt or missing, a newer format, and a full disk. Damage concerns its own file alone.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use rustix::mount::{MountFlags, mount_remount};
use slackwater::{Engine, ErrorKind, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::SystemClock;
use slackwater_object::{Location, ObjectBackend, OpenOptions, VolumeError};
use slackwater_testkit::pattern;

use crate::bucket::Bucket;
use crate::mounted::{mount_tmpfs, mounted};
use crate::rig::{ARENA_BYTES, TempDir, assert_same, create, read_all};
use crate::volume::{Volume, slow};

/// Runs a request to the bare store.
fn wait<T>(request: impl Future<Output = object_store::Result<T>>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(request).unwrap()
}

fn segments(bucket: &Bucket) -> Vec<Path> {
    let listed = bucket.store.list(Some(&Path::from("seg"))).map_ok(|object| object.location);
    wait(listed.try_collect())
}

/// Two files, each in a segment of its own, and the segment of the first.
fn two_files() -> (Arc<Bucket>, Path) {
    let volume = Volume::new(slow());
    let mut first = None;
    for nth in 0..2 {
        let file = volume.create(&format!("f{nth}"));
        file.write_at(0, &pattern(nth, 400_000)).unwrap();
        file.fsync().unwrap();
        let found = segments(&volume.bucket);
        first.get_or_insert_with(|| found.first().expect("a large file is in a segment").clone());
    }
    (volume.end(), first.expect("two files"))
}

#[test]
fn a_damaged_object_is_an_error_of_its_own_file_alone() {
    for damage in ["missing", "truncated", "corrupt"] {
        let (bucket, segment) = two_files();
        let store = bucket.store.clone();
        let bytes = wait(async { store.get(&segment).await?.bytes().await });
        let put = |bytes: Bytes| drop(wait(store.put(&segment, PutPayload::from(bytes))));
        match damage {
            "missing" => wait(store.delete(&segment)),
            "truncated" => put(bytes.slice(..1000)),
            _ => {
                let mut wrong = bytes.to_vec();
                wrong[200_000] ^= 1;
                put(wrong.into());
            }
        }
        let volume = Volume::again(bucket);
        let damaged = volume.open("f0");
        let mut buffer = vec![0; 400_000];
        let error = damaged.read_at(0, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{damage}");
        assert_same(&read_all(&volume.open("f1")), &pattern(1, 400_000), damage);
        volume.open("f1").write_at(0, b"the volume goes on").unwrap();
        drop(damaged);
        volume.end();
    }
}

#[test]
fn a_volume_of_a_newer_format_is_refused_by_its_name() {
    let bucket = Bucket::new();
    let path = Path::from("volume.json");
    let store = bucket.store.clone();
    let text = wait(async { store.get(&path).await?.bytes().await });
    let mut header: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let version = header["format"].as_u64().expect("the header has a version");
    header["format"] = (version + 1).into();
    wait(store.put(&path, PutPayload::from(serde_json::to_vec(&header).unwrap())));
    let error = bucket.open(&Arc::default()).err().expect("it cannot be read");
    assert!(error.to_string().contains("newer"), "{error}");
    assert!(!matches!(error, VolumeError::NoVolume(_)), "{error:?}");
}

#[test]
fn a_full_disk_keeps_data_in_the_cache_until_there_is_space() {
    let dir = TempDir::new("full");
    let Some(_tmpfs) = mounted(dir.path(), |path| mount_tmpfs(path, c"size=6m")) else { return };
    let location = Location::parse(&format!("file://{}/volume", dir.path().display())).unwrap();
    ObjectBackend::mkfs(&location).unwrap();
    let backend = Arc::new(ObjectBackend::open(&location, &OpenOptions::default()).unwrap());
    let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap();
    let engine = Engine::new(arena, Arc::new(SystemClock), slow());
    let volume = engine.mount("full", backend.clone()).unwrap();
    let (file, wanted) = (create(&volume, "a"), pattern(1, 7_000_000));
    file.write_at(0, &wanted).unwrap();
    assert_eq!(file.fsync().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_same(&read_all(&file), &wanted, "cached");
    mount_remount(dir.path(), MountFlags::empty(), c"size=64m").unwrap();
    file.fsync().or_else(|_| file.fsync()).unwrap();
    drop(file);
    volume.umount(UmountOptions::default()).unwrap();
    backend.close().unwrap();
    drop((volume, engine, backend));
    let again = Arc::new(ObjectBackend::open(&location, &OpenOptions::default()).unwrap());
    let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap();
    let engine = Engine::new(arena, Arc::new(SystemClock), slow());
    let volume = engine.mount("full", again.clone()).unwrap();
    assert_same(&read_all(&crate::rig::open(&volume, "a")), &wanted, "stored");
    volume.umount(UmountOptions::default()).unwrap();
    again.close().unwrap();
}
