//! Lookups by path during unmounts in random schedules. `SLACKWATER_SHUTTLE_EXECUTIONS` sets the number of schedules.

use std::time::Duration;

use crate::schedules::check;
use slackwater::backend::{MemBackend, NewNode};
use slackwater::{
    Engine, File, Forms, ManualClock, Namespace, NamespaceError, PAGE_BYTES, Timestamp, Tunables, UmountError,
    UmountGrace, UmountOptions,
};
use slackwater_arena::{Arena, ArenaConfig, Survivors};
use slackwater_sync::rcu::Options;
use slackwater_sync::shim::{Arc, thread};

const FRAMES: u64 = 16;
/// Attempts at an operation that other threads may block.
const ATTEMPTS: usize = 5_000;

/// An engine and its namespace.
struct Rig {
    engine: Engine,
    namespace: Namespace,
}

fn rig() -> Arc<Rig> {
    let arena = Arena::create(&ArenaConfig::memfd(FRAMES * PAGE_BYTES).with_inodes(4).with_volumes(4)).unwrap();
    let tunables = Tunables { flusher_threads: 1, dirty_writeback: Duration::ZERO, ..Tunables::default() };
    let forms = Forms { rcu: Options { coalesce: Duration::ZERO, ..Options::default() }, ..Forms::default() };
    let clock = Arc::new(ManualClock::new(Timestamp(1)));
    let engine = Engine::with_forms(arena, Survivors::default(), clock, tunables, forms);
    let namespace = Namespace::new(&engine, UmountGrace::Expedited);
    Arc::new(Rig { engine, namespace })
}

/// A backend whose file contains this byte.
fn store(byte: u8) -> Arc<MemBackend> {
    let backend = Arc::new(MemBackend::new());
    let rig = rig();
    let volume = rig.engine.mount("maker", Arc::clone(&backend) as _).unwrap();
    let file = File::open(&volume.make(&volume.root().unwrap(), "file", NewNode::File, 0o644).unwrap()).unwrap();
    file.write_at(0, &[byte]).unwrap();
    drop(file);
    volume.umount(UmountOptions::default()).unwrap();
    backend
}

/// The byte of the file at `path`; `None` if there is no such volume, or it refuses to open files.
fn look(rig: &Rig, path: &str) -> Option<u8> {
    match rig.namespace.open(path) {
        Ok(file) => {
            let mut byte = [0];
            assert_eq!(file.read_at(0, &mut byte).unwrap(), 1);
            Some(byte[0])
        }
        Err(NamespaceError::NotFound(_) | NamespaceError::File(slackwater::FileError::NotMounted)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Unmounts the volume at `path`, retrying while others use it.
fn umount(rig: &Rig, path: &str) {
    for _ in 0..ATTEMPTS {
        match rig.namespace.umount(path, UmountOptions::default()) {
            Ok(()) => return,
            Err(NamespaceError::Busy { .. } | NamespaceError::Umount(UmountError::Busy { .. })) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{path} stays busy");
}

/// Checks that nothing is left.
fn finish(rig: &Rig) {
    assert!(rig.namespace.mounts().is_empty() && rig.engine.volumes().is_empty());
    assert_eq!(rig.engine.arena().free_frames(), FRAMES);
    rig.engine.check_counts().unwrap();
}

#[test]
fn a_lookup_finds_the_old_volume_or_the_new_one_or_none() {
    check("a_lookup_finds_the_old_volume_or_the_new_one_or_none", 300, || {
        let (old, new) = (store(b'o'), store(b'n'));
        let rig = rig();
        drop(rig.namespace.mount("/v", "v", old).unwrap());
        let reader = thread::spawn({
            let rig = Arc::clone(&rig);
            move || {
                let seen = [(); 3].map(|()| look(&rig, "/v/file"));
                let is_new = seen.iter().flatten().map(|byte| *byte == b'n');
                assert!(is_new.is_sorted(), "the old volume after the new one: {seen:?}");
            }
        });
        umount(&rig, "/v");
        drop(rig.namespace.mount("/v", "v", new).unwrap());
        reader.join().unwrap();
        assert_eq!(look(&rig, "/v/file"), Some(b'n'));
        umount(&rig, "/v");
        finish(&rig);
    });
}

#[test]
fn the_last_user_of_a_detached_mount_unmounts_it() {
    check("the_last_user_of_a_detached_mount_unmounts_it", 300, || {
        let backend = store(b'o');
        let rig = rig();
        drop(rig.namespace.mount("/v", "v", Arc::clone(&backend) as _).unwrap());
        let writers = [b'1', b'2'].map(|byte| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || match rig.namespace.open("/v/file") {
                Ok(file) => drop(file.write_at(0, &[byte]).unwrap()),
                Err(NamespaceError::NotFound(_) | NamespaceError::File(slackwater::FileError::NotMounted)) => {}
                Err(error) => panic!("{error}"),
            })
        });
        rig.namespace.umount_lazily("/v").unwrap();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        finish(&rig);
        drop(rig.namespace.mount("/v", "v", backend).unwrap());
        assert!(matches!(look(&rig, "/v/file"), Some(b'o' | b'1' | b'2')));
        umount(&rig, "/v");
        finish(&rig);
    });
}

#[test]
fn of_two_unmounts_of_one_path_one_succeeds() {
    check("of_two_unmounts_of_one_path_one_succeeds", 300, || {
        let rig = rig();
        drop(rig.namespace.mount("/v", "v", store(b'v')).unwrap());
        drop(rig.namespace.mount("/w", "w", store(b'w')).unwrap());
        let unmount = |paths: [&'static str; 2]| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                let results = rig.namespace.umount_all(&paths, UmountOptions::default());
                results.iter().filter(|result| result.is_ok()).count()
            })
        };
        let unmounters = [unmount(["/v", "/w"]), unmount(["/w", "/v"])];
        let unmounted: usize = unmounters.into_iter().map(|unmounter| unmounter.join().unwrap()).sum();
        // Each may find the other's reference and give up.
        assert_eq!(unmounted + rig.engine.volumes().len(), 2);
        let left: Vec<_> = rig.namespace.mounts().into_iter().map(|(path, _)| path).collect();
        assert!(rig.namespace.umount_all(&left, UmountOptions::default()).iter().all(Result::is_ok));
        finish(&rig);
    });
}
