//! Volumes by path: lookups, nesting, busy mounts, and what an unmount leaves behind.

#![cfg(not(any(slackwater_loom, slackwater_shuttle)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackwater::backend::{MemBackend, NewNode};
use slackwater::{
    Engine, ManualClock, MountError, Namespace, NamespaceError, Timestamp, Tunables, UmountError, UmountGrace,
    UmountOptions,
};
use slackwater_arena::{Arena, ArenaConfig};

struct Rig {
    engine: Engine,
    namespace: Namespace,
}

impl Rig {
    fn new() -> Self {
        Self::with(UmountGrace::default())
    }

    fn with(grace: UmountGrace) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(4 << 20)).unwrap();
        let tunables = Tunables { flusher_threads: 1, ..Tunables::default() };
        let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(1))), tunables);
        let namespace = Namespace::new(&engine, grace);
        Self { engine, namespace }
    }
}

/// Serialises the tests: lookups of any of them stop at a gate that one of them holds.
fn serialize() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Mounts a new volume at `path`, with a file whose content is the path.
fn mount(rig: &Rig, path: &str) {
    let mount = rig.namespace.mount(path, &name_of(path), Arc::new(MemBackend::new())).unwrap();
    let volume = mount.super_block();
    let inode = volume.make(&volume.root().unwrap(), "file", NewNode::File, 0o644).unwrap();
    let file = slackwater::File::open(&inode).unwrap();
    file.write_at(0, path.as_bytes()).unwrap();
    file.fsync().unwrap();
}

/// A volume at /a, and another mounted on its directory.
fn mount_nested(rig: &Rig) {
    mount(rig, "/a");
    let volume = rig.namespace.resolve(Path::new("/a")).unwrap().0.super_block();
    volume.make(&volume.root().unwrap(), "dir", NewNode::Directory, 0o755).unwrap();
    mount(rig, "/a/dir");
}

fn name_of(path: &str) -> String {
    path.replace('/', "-")
}

fn content(rig: &Rig, path: &str) -> Result<String, NamespaceError> {
    let file = rig.namespace.open(path)?;
    let mut bytes = [0; 64];
    let len = file.read_at(0, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..len]).into())
}

fn umount(rig: &Rig, path: &str) -> Result<(), NamespaceError> {
    rig.namespace.umount(path, UmountOptions::default())
}

fn mounted(rig: &Rig) -> Vec<String> {
    rig.namespace.mounts().into_iter().map(|(path, _)| path.display().to_string()).collect()
}

#[test]
fn a_path_resolves_through_the_volumes_mounted_on_it() {
    let _turn = serialize();
    let rig = Rig::new();
    mount(&rig, "/vol/a");
    mount(&rig, "/vol/b");
    assert_eq!(content(&rig, "/vol/a/file").unwrap(), "/vol/a");
    assert_eq!(content(&rig, "//vol/./b/file").unwrap(), "/vol/b");
    assert_eq!(rig.namespace.resolve(Path::new("/vol/a/x/y")).unwrap().1, Path::new("x/y"));
    for nowhere in ["/", "/vol", "/vol/c/file", "/file"] {
        assert!(matches!(content(&rig, nowhere), Err(NamespaceError::NotFound(path)) if path == Path::new(nowhere)));
    }
    assert!(matches!(content(&rig, "/vol/a/none"), Err(NamespaceError::File(_))));
    assert_eq!(rig.namespace.mounts(), [("/vol/a".into(), "-vol-a".into()), ("/vol/b".into(), "-vol-b".into())]);
}

#[test]
fn a_volume_can_be_mounted_on_a_directory_of_another_and_on_the_root() {
    let _turn = serialize();
    let rig = Rig::new();
    mount(&rig, "/");
    let root = rig.namespace.resolve(Path::new("/")).unwrap().0.super_block();
    root.make(&root.root().unwrap(), "dir", NewNode::Directory, 0o755).unwrap();
    mount(&rig, "/dir");
    assert_eq!((content(&rig, "/file").unwrap(), content(&rig, "/dir/file").unwrap()), ("/".into(), "/dir".into()));
    let on = |path| rig.namespace.mount(path, "other", Arc::new(MemBackend::new())).map(drop);
    assert!(matches!(on("/"), Err(NamespaceError::AlreadyMounted(_))));
    assert!(matches!(on("/dir"), Err(NamespaceError::AlreadyMounted(_))));
    assert!(matches!(on("/file"), Err(NamespaceError::NotADirectory(_))));
    assert!(matches!(on("/none"), Err(NamespaceError::File(_))));
    assert!(matches!(on("dir"), Err(NamespaceError::BadPath(_))));
    assert!(matches!(on("/dir/../x"), Err(NamespaceError::BadPath(_))));
    assert_eq!(rig.engine.volumes().len(), 2, "a failed mount leaves nothing behind");
    root.make(&root.root().unwrap(), "more", NewNode::Directory, 0o755).unwrap();
    let name_taken = rig.namespace.mount("/more", &name_of("/dir"), Arc::new(MemBackend::new())).map(drop);
    assert!(matches!(name_taken, Err(NamespaceError::Mount(MountError::NameTaken(_)))));
}

#[test]
fn a_mount_that_is_in_use_stays_and_works() {
    let _turn = serialize();
    let rig = Rig::new();
    mount(&rig, "/a");
    let file = rig.namespace.open("/a/file").unwrap();
    assert!(matches!(umount(&rig, "/a"), Err(NamespaceError::Busy { mounts: 0, references: 3, .. })));
    file.write_at(0, b"more").unwrap();
    drop(file);
    let found = rig.namespace.resolve(Path::new("/a/file")).unwrap().0;
    assert!(matches!(umount(&rig, "/a"), Err(NamespaceError::Busy { references: 3, .. })));
    let inode = found.super_block().walk("file").unwrap();
    drop(found);
    // Not through the path: the volume itself has an open inode.
    assert!(matches!(umount(&rig, "/a"), Err(NamespaceError::Umount(UmountError::Busy { open_inodes: 1, .. }))));
    drop(inode);
    assert_eq!(content(&rig, "/a/file").unwrap(), "more");
    umount(&rig, "/a").unwrap();
    assert!(matches!(umount(&rig, "/a"), Err(NamespaceError::NotAMount(_))));
    assert!(matches!(umount(&rig, "/"), Err(NamespaceError::NotAMount(_))));
    assert!(rig.engine.volumes().is_empty());
}

#[test]
fn a_mount_is_unmounted_after_or_together_with_those_on_it() {
    let _turn = serialize();
    let rig = Rig::new();
    mount_nested(&rig);
    assert!(matches!(umount(&rig, "/a"), Err(NamespaceError::Busy { mounts: 1, references: 2, .. })));
    assert_eq!(content(&rig, "/a/file").unwrap(), "/a");
    mount(&rig, "/b");
    let waited = rig.namespace.grace_periods();
    let results = rig.namespace.umount_all(&["/a", "/none", "/b", "/a/dir"], UmountOptions::default());
    assert!(matches!(&results[..], [Ok(()), Err(NamespaceError::NotAMount(_)), Ok(()), Ok(())]), "{results:?}");
    assert_eq!(rig.namespace.grace_periods() - waited, 1, "one grace period for all");
    assert!(mounted(&rig).is_empty() && rig.engine.volumes().is_empty());
}

#[test]
fn a_volume_unmounted_directly_leaves_the_tree_and_frees_its_path() {
    let _turn = serialize();
    let rig = Rig::new();
    let mount = || rig.namespace.mount("/a", "a", Arc::new(MemBackend::new())).map(|mount| mount.super_block());
    let volume = mount().unwrap();
    volume.umount(UmountOptions::default()).unwrap();
    assert_eq!(mounted(&rig).len(), 1);
    rig.namespace.umount_lazily("/a").unwrap();
    assert!(mounted(&rig).is_empty());
    mount().unwrap();
}

#[test]
fn the_last_user_of_a_lazily_detached_mount_unmounts_it() {
    let _turn = serialize();
    let rig = Rig::new();
    mount_nested(&rig);
    let file = rig.namespace.open("/a/file").unwrap();
    rig.namespace.umount_lazily("/a").unwrap();
    assert!(mounted(&rig).is_empty());
    assert_eq!(rig.engine.volumes().len(), 1, "the nested volume was not in use");
    assert!(matches!(content(&rig, "/a/file"), Err(NamespaceError::NotFound(_))));
    assert!(matches!(rig.namespace.umount_lazily("/a"), Err(NamespaceError::NotAMount(_))));
    file.write_at(0, b"late").unwrap();
    // Its path is free, its name is not.
    let again = |name: &str| rig.namespace.mount("/a", name, Arc::new(MemBackend::new())).map(drop);
    assert!(matches!(again(&name_of("/a")), Err(NamespaceError::Mount(MountError::NameTaken(_)))));
    again("other").unwrap();
    let old = file.inode().clone();
    drop(file); // the inode is still referenced, and keeps the volume although the mount is gone
    assert_eq!(rig.engine.volumes().len(), 2, "an inode is in use");
    drop(old);
    let left = rig.engine.volumes().into_iter().find(|volume| volume.name() == name_of("/a")).unwrap();
    left.umount(UmountOptions::default()).unwrap();
    umount(&rig, "/a").unwrap();
    assert!(rig.engine.volumes().is_empty());
}

#[test]
fn slots_are_reused_by_later_mounts() {
    let _turn = serialize();
    for grace in [UmountGrace::Expedited, UmountGrace::Normal] {
        let rig = Rig::with(grace);
        for _ in 0..20 {
            let paths = ["/a", "/b", "/c"];
            paths.iter().for_each(|path| mount(&rig, path));
            assert_eq!(mounted(&rig), paths);
            assert!(paths.iter().all(|path| content(&rig, &format!("{path}/file")).unwrap() == *path));
            assert!(rig.namespace.umount_all(&paths, UmountOptions::default()).iter().all(Result::is_ok));
        }
        assert_eq!(rig.namespace.grace_periods(), 20);
    }
}

#[test]
fn lookups_during_unmounts_find_the_right_volume_or_none() {
    let _turn = serialize();
    let rig = Rig::new();
    let paths = ["/a", "/b", "/a/dir"];
    let (found, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for path in paths {
                        match content(&rig, &format!("{path}/file")) {
                            Ok(content) => {
                                // The file exists before it has its content.
                                assert!(content.is_empty() || content == path, "{content} at {path}");
                                found.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(NamespaceError::NotFound(_) | NamespaceError::File(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        for round in 0..6000 {
            // On a very busy machine the readers may begin late.
            if round >= 60 && found.load(Ordering::Relaxed) != 0 {
                break;
            }
            mount(&rig, "/b");
            mount_nested(&rig);
            if round % 2 == 0 {
                let _ = rig.namespace.umount_all(&paths, UmountOptions::default()); // those that are not busy
            }
            mounted(&rig).iter().for_each(|path| {
                let _ = rig.namespace.umount_lazily(path); // it may have been unmounted together with its parent
            });
            while !rig.engine.volumes().is_empty() {
                std::thread::yield_now(); // a reader completes the unmount of a lazily detached volume
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(found.into_inner() != 0, "no lookup found a volume");
    assert_eq!(rig.engine.arena().free_frames(), u64::from(rig.engine.arena().frames()));
}

#[cfg(debug_assertions)]
mod races {
    use std::thread;

    use slackwater_sync::gate;

    use super::*;

    #[test]
    fn an_unmount_waits_for_a_lookup_that_found_the_mount_just_before() {
        let _turn = serialize();
        let rig = Rig::new();
        mount(&rig, "/a");
        thread::scope(|scope| {
            let leaving = gate::hold("namespace.leaving");
            let umounter = scope.spawn(|| umount(&rig, "/a"));
            leaving.wait_reached();
            let found = gate::hold("namespace.found");
            let reader = scope.spawn(|| content(&rig, "/a/file"));
            found.wait_reached(); // in its read section, without a reference
            drop(leaving);
            while !mounted(&rig).is_empty() {
                thread::yield_now();
            }
            assert!(!umounter.is_finished(), "its grace period did not wait for the lookup");
            drop(found);
            assert!(matches!(reader.join().unwrap(), Err(NamespaceError::NotFound(_))));
            umounter.join().unwrap().unwrap();
        });
        assert!(rig.engine.volumes().is_empty());
    }

    #[test]
    fn a_mount_that_becomes_busy_during_the_flush_stays_mounted() {
        let _turn = serialize();
        let rig = Rig::new();
        mount(&rig, "/a");
        mount(&rig, "/b");
        thread::scope(|scope| {
            let leaving = gate::hold("namespace.leaving");
            let umounter = scope.spawn(|| rig.namespace.umount_all(&["/a", "/b"], UmountOptions::default()));
            leaving.wait_reached(); // both are frozen
            let found = rig.namespace.resolve(Path::new("/a")).unwrap().0;
            drop(leaving);
            let results = umounter.join().unwrap();
            assert!(matches!(&results[..], [Err(NamespaceError::Busy { references: 3, .. }), Ok(())]), "{results:?}");
            drop(found);
        });
        assert_eq!(mounted(&rig), ["/a"]);
        rig.namespace.open("/a/file").unwrap().write_at(0, b"thawed").unwrap();
        assert_eq!(content(&rig, "/a/file").unwrap(), "thawed");
        umount(&rig, "/a").unwrap();
    }

    #[test]
    fn an_unmount_deferred_to_a_callback_blocks_the_next_mount_until_it_ends() {
        let _turn = serialize();
        let rig = Rig::with(UmountGrace::Deferred);
        mount(&rig, "/a");
        let hold = gate::hold("namespace.deferred");
        umount(&rig, "/a").unwrap();
        let again = || rig.namespace.mount("/a", &name_of("/a"), Arc::new(MemBackend::new())).map(drop);
        assert!(
            matches!(again(), Err(NamespaceError::Mount(MountError::NameTaken(_)))),
            "not while the old one exists"
        );
        hold.wait_reached();
        drop(hold);
        while again().is_err() {
            thread::yield_now();
        }
    }
}
