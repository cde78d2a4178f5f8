//! `DirBackend` beyond the storage interface: descriptors, I/O that bypasses the page cache, and faults of the file
//! system below.

#[path = "dir/creator.rs"]
mod creator;
#[allow(dead_code, reason = "shared with the conformance suite, which uses all of it")]
mod fixture;
#[path = "dir/mounted.rs"]
mod mounted;
#[path = "dir/nobody.rs"]
mod nobody;
#[path = "dir/sys.rs"]
mod sys;
#[path = "dir/umask.rs"]
mod umask;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use fixture::TempDir;
use mounted::{Mounted, mount_tmpfs, mounted};
use rustix::fs::Uid;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, mount_bind, mount_remount};
use rustix::thread::set_thread_res_uid;
use slackwater::ErrorKind;
use slackwater::backend::{Backend, Call, Found, NewNode, NodeKind, Removal, SyncScope};
use slackwater_backends::{DirBackend, DirStats, OpenError};
use slackwater_testkit::conformance::{Volume, is_root};
use slackwater_testkit::pattern;

fn open(path: &Path) -> (Arc<DirBackend>, Volume) {
    let backend = Arc::new(DirBackend::open(path).expect("a directory can be opened"));
    (backend.clone(), Volume::new(backend))
}

#[test]
fn opening_anything_but_a_directory_fails() {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("file"), b"").expect("a file can be made");
    for name in ["file", "nothing"] {
        let error = DirBackend::open(dir.path().join(name)).err().expect("refused");
        assert!(matches!(&error, OpenError::Root { path, .. } if path.ends_with(name)), "{error}");
    }
}

#[test]
fn a_dropped_node_closes_its_descriptors() {
    if !is_root() {
        return println!("skipped: without privileges nodes are kept open");
    }
    let dir = TempDir::new();
    let (backend, volume) = open(dir.path());
    let root = volume.root();
    let before = dir.open_descriptors();
    let node = volume.file(&root, "file");
    volume.fill(&node, &pattern(1, 1 << 20));
    drop(node);
    dir.expect_open_descriptors(before);
    let node = volume.lookup(&root, "file").expect("it was made").node;
    dir.expect_open_descriptors(before + 1);
    volume.read(&node, 0, 1 << 20).expect("it can be read");
    volume.fill(&node, &pattern(2, (1 << 20) - 1));
    volume.sync(&node, SyncScope::All).expect("it can be synced");
    assert!(dir.open_descriptors() > before + 1);
    drop(node);
    dir.expect_open_descriptors(before);
    drop((root, volume, backend));
    dir.expect_open_descriptors(0);
}

#[test]
fn an_unprivileged_volume_keeps_nodes_open_until_they_have_no_name() {
    let dir = TempDir::new();
    let backend = DirBackend::open_unprivileged(dir.path()).expect("a directory can be opened");
    let volume = Volume::new(Arc::new(backend));
    let root = volume.root();
    let before = dir.open_descriptors();
    drop(volume.file(&root, "file"));
    dir.expect_open_descriptors(before + 1);
    volume.link(&volume.lookup(&root, "file").expect("it was made").node, &root, "link").expect("it can be linked");
    volume.remove(&root, "file", Removal::File).expect("it can be removed");
    dir.expect_open_descriptors(before + 1);
    volume.remove(&root, "link", Removal::File).expect("it can be removed");
    dir.expect_open_descriptors(before);
}

#[test]
fn large_units_go_directly_and_only_the_end_of_a_file_goes_through_the_cache() {
    let dir = TempDir::new();
    let (backend, volume) = open(dir.path());
    let file = volume.file(&volume.root(), "file");
    volume.fill(&file, &pattern(1, 2 << 20));
    let stats = backend.stats();
    if stats.direct_writes == 0 {
        assert!(stats.dontcache_writes + stats.plain_writes > 0);
        return println!("skipped: no direct I/O on the file system of the build");
    }
    assert_eq!((stats.direct_writes, stats.dontcache_writes, stats.plain_writes), (2, 0, 0));
    volume.write(&file, 2 << 20, &pattern(2, 100_000)).expect("it can be written");
    let stats = backend.stats();
    assert_eq!((stats.direct_writes, stats.dontcache_writes, stats.plain_writes), (3, 0, 1));
    volume.write(&file, 0, &pattern(3, 4096)).expect("it can be written");
    assert_eq!(backend.stats().plain_writes, 2, "a small unit uses the plain path");
    let bytes = volume.read(&file, 2 << 20, 1 << 20).expect("it can be read");
    assert_eq!(bytes, pattern(2, 100_000), "a unit that used two paths is one file");
    assert_eq!(std::fs::metadata(dir.path().join("file")).expect("it exists").len(), (2 << 20) + 100_000);
    assert!(backend.stats().direct_reads > 0);
}

#[test]
fn writes_by_other_programs_are_seen() {
    let dir = TempDir::new();
    let (_, volume) = open(dir.path());
    let root = volume.root();
    let file = volume.file(&root, "file");
    volume.fill(&file, &pattern(1, 200_000));
    assert_eq!(std::fs::read(dir.path().join("file")).expect("it exists"), pattern(1, 200_000));
    std::fs::write(dir.path().join("file"), pattern(2, 150_000)).expect("it can be written");
    assert_eq!(volume.read(&file, 0, 1 << 20), Ok(pattern(2, 150_000)));
    std::fs::write(dir.path().join("other"), b"theirs").expect("it can be written");
    let other = volume.lookup(&root, "other").expect("it was made").node;
    assert_eq!(volume.read(&other, 0, 4096).as_deref(), Ok(&b"theirs"[..]));
}

#[test]
fn special_files_have_attributes_and_are_never_opened() {
    let dir = TempDir::new();
    let (_, volume) = open(dir.path());
    // Opening a FIFO for reading would block until a writer opens it.
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, dir.path().join("fifo"), FileType::Fifo, mode, 0).expect("a fifo can be made");
    let fifo = volume.lookup(&volume.root(), "fifo").expect("it was made");
    assert_eq!(fifo.attr.kind, NodeKind::Special);
    assert_eq!(volume.read(&fifo.node, 0, 4096), Err(ErrorKind::Invalid));
    assert_eq!(volume.write(&fifo.node, 0, b"x"), Err(ErrorKind::Invalid));
    assert_eq!(volume.sync(&fifo.node, SyncScope::All), Ok(()));
}

#[test]
fn a_directory_inherits_setgid_and_a_file_does_not() {
    let dir = TempDir::new();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o2755)).expect("ours to change");
    if std::fs::metadata(dir.path()).expect("it exists").mode() & 0o2000 == 0 {
        return println!("skipped: the file system has no setgid directories");
    }
    let (_, volume) = open(dir.path());
    let root = volume.root();
    let mode_of = |name, what| volume.make(&root, name, what, 0o750).expect("it can be made").attr.mode & 0o7777;
    assert_eq!(mode_of("dir", NewNode::Directory), 0o2750);
    assert_eq!(mode_of("file", NewNode::File), 0o750);
}

#[test]
fn a_deleted_root_gives_errors() {
    let dir = TempDir::new();
    let (_, volume) = open(dir.path());
    let root = volume.root();
    let file = volume.file(&root, "file");
    std::fs::remove_dir_all(dir.path()).expect("ours to remove");
    assert_eq!(volume.attr(&volume.root()).nlink, 0);
    assert_eq!(volume.lookup(&root, "file").err(), Some(ErrorKind::NotFound));
    assert_eq!(volume.make(&root, "new", NewNode::File, 0o644).err(), Some(ErrorKind::NotFound));
    assert_eq!(volume.make(&root, "new", NewNode::Directory, 0o755).err(), Some(ErrorKind::NotFound));
    assert_eq!(volume.remove(&root, "file", Removal::File), Err(ErrorKind::NotFound));
    assert_eq!(volume.entries(&root), []);
    // The file works like any file without a name.
    assert_eq!(volume.write(&file, 0, b"late"), Ok(4));
    assert_eq!(volume.sync(&file, SyncScope::All), Ok(()));
    assert_eq!(volume.sync_volume(), Ok(()));
}

#[test]
fn a_full_disk_gives_no_space_and_takes_writes_again_later() {
    let dir = TempDir::new();
    let Some(_mounted) = mounted(dir.path(), |path| mount_tmpfs(path, c"size=1536k")) else { return };
    let (_, volume) = open(dir.path());
    let root = volume.root();
    let hog = volume.file(&root, "hog");
    volume.fill(&hog, &pattern(1, 1 << 20));
    let file = volume.file(&root, "file");
    // A part may fit; the rest does not, and the answer says so.
    let first = volume.write(&file, 0, &pattern(2, 1 << 20)).unwrap_or(0);
    assert!(first < 1 << 20);
    let at = first.next_multiple_of(4096);
    assert_eq!(volume.write(&file, at as u64, &pattern(2, 1 << 20)), Err(ErrorKind::NoSpace));
    assert_eq!(volume.statfs().blocks_available, 0);
    volume.resize(&hog, 0).expect("a cut needs no space");
    assert_eq!(volume.write(&file, 0, &pattern(2, 1 << 20)), Ok(1 << 20));
}

#[test]
fn a_read_only_root_refuses_every_change() {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("file"), b"bytes").expect("a file can be made");
    let bind = |path: &Path| {
        mount_bind(path, path)?;
        let read_only = mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, c"");
        read_only.inspect_err(|_| drop(Mounted(path)))
    };
    let Some(_mounted) = mounted(dir.path(), bind) else { return };
    let (_, volume) = open(dir.path());
    let root = volume.root();
    let file = volume.lookup(&root, "file").expect("it is there").node;
    assert_eq!(volume.read(&file, 0, 4096).as_deref(), Ok(&b"bytes"[..]));
    let read_only = Some(ErrorKind::ReadOnly);
    assert_eq!(volume.write(&file, 0, b"x").err(), read_only);
    assert_eq!(volume.resize(&file, 0).err(), read_only);
    assert_eq!(volume.make(&root, "new", NewNode::File, 0o644).err(), read_only);
    assert_eq!(volume.make(&root, "new", NewNode::Directory, 0o755).err(), read_only);
    assert_eq!(volume.remove(&root, "file", Removal::File).err(), read_only);
    assert_eq!(volume.link(&file, &root, "link").err(), read_only);
    assert_eq!(volume.sync(&file, SyncScope::All), Ok(()));
}

#[test]
fn a_mount_point_below_the_root_is_refused() {
    let dir = TempDir::new();
    let below = dir.path().join("below");
    std::fs::create_dir(&below).expect("ours to fill");
    let Some(_mounted) = mounted(&below, |path| mount_tmpfs(path, c"size=1m")) else { return };
    let (_, volume) = open(dir.path());
    let root = volume.root();
    assert_eq!(volume.lookup(&root, "below").err(), Some(ErrorKind::CrossDevice));
    let entries = volume.readdir_plus(&root, 0).expect("the root can be read");
    assert!(entries[0].entry.name == "below" && entries[0].found.is_none(), "{entries:?}");
    assert_eq!(volume.remove(&root, "below", Removal::Directory), Err(ErrorKind::Busy));
}

/// A process without root's rights creates a read-only file and fills it, as a copy of a read-only file is made. Only
/// this thread changes its user; the volume's threads inherit it.
#[test]
fn a_file_without_write_permission_is_filled_through_the_descriptor_it_was_made_with() {
    let dir = TempDir::new_in(std::env::temp_dir());
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("ours to change");
    let path = dir.path().to_owned();
    let unprivileged = std::thread::spawn(move || {
        if is_root() {
            let nobody = Uid::from_raw(65534);
            set_thread_res_uid(nobody, nobody, nobody).expect("root may become anybody");
        }
        let (backend, volume) = open(&path);
        let root = volume.root();
        for (name, mode) in [("read-only", 0o444), ("secret", 0o000)] {
            let file = volume.make(&root, name, NewNode::File, mode).expect("a file can be made").node;
            volume.fill(&file, &pattern(3, (1 << 20) + 100));
            assert_eq!(volume.read(&file, 0, 1 << 20), Ok(pattern(3, (1 << 20) + 100)[..1 << 20].to_vec()));
            assert_eq!(volume.sync(&file, SyncScope::All), Ok(()));
            assert_eq!(volume.attr(&file).mode & 0o7777, mode);
        }
        assert_eq!(backend.stats().direct_writes, 0);
    });
    unprivileged.join().expect("every call is permitted");
}

#[test]
fn a_refused_kind_of_io_is_not_tried_again() {
    let dir = TempDir::new_in("/dev/shm");
    let (backend, volume) = open(dir.path());
    let file = volume.file(&volume.root(), "file");
    volume.fill(&file, &pattern(1, 2 << 20));
    let DirStats { direct_writes, dontcache_writes, plain_writes, .. } = backend.stats();
    assert_eq!(dontcache_writes, 0, "tmpfs has no page cache to leave");
    assert_eq!(direct_writes + plain_writes, 2);
    assert_eq!(volume.read(&file, 1 << 20, 1 << 20), Ok(pattern(1, 2 << 20)[1 << 20..].to_vec()));
}

#[test]
fn an_unprivileged_volume_goes_on_with_the_descriptors_of_an_earlier_one() {
    let dir = TempDir::new();
    let open = || Arc::new(DirBackend::open_unprivileged(dir.path()).expect("a directory can be opened"));
    let (first, next) = (open(), open());
    let volume = Volume::new(Arc::clone(&first) as Arc<dyn Backend>);
    let root = volume.root();
    let (named, nameless) = (volume.file(&root, "named"), volume.file(&root, "nameless"));
    volume.fill(&nameless, b"bytes");
    let adopt = |node| next.adopt(first.descriptor(node).expect("an open node")).expect("a node of the volume");
    let named = adopt(&named);
    volume.remove(&root, "nameless", Removal::File).expect("it can be removed");
    let nameless = adopt(&nameless);
    drop((volume, root, first));
    let volume = Volume::new(next);
    let reopen = |found: &Found| {
        let (handle, id) = (found.handle.clone(), Some(found.attr.id));
        volume.ask(|done| Call::Reopen { handle, id, nameless: true, done })
    };
    std::fs::rename(dir.path().join("named"), dir.path().join("renamed")).expect("it can be renamed");
    let (handle, id) = (nameless.handle.clone(), nameless.attr.id);
    for _ in 0..2 {
        assert_eq!(reopen(&named).expect("it is open").attr.id, named.attr.id);
        let again = reopen(&nameless).expect("it is open");
        assert_eq!((again.attr.nlink, volume.read(&again.node, 0, 100).as_deref()), (0, Ok(&b"bytes"[..])));
    }
    drop(nameless);
    assert!(reopen(&named).is_ok());
    let gone = volume.ask(|done| Call::Reopen { handle, id: Some(id), nameless: true, done });
    assert_eq!(gone.map(drop), Err(ErrorKind::Stale));
}
