//! Attributes as programs see them, and as the backend ends up with them.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::{AttrChange, Creator, NewNode, Removal, RenameMode, SyncScope, XattrMode};
use slackwater::{ErrorKind, File, Tunables, UmountOptions};
use slackwater_backends::DirBackend;
use slackwater_testkit::Rule;

use crate::rig::{Disk, Rig, TempDir, create, eventually, read_all, spawn};

const SOMEBODY: Creator = Creator { uid: 7, gid: 8, umask: 0o022 };

fn mode(mode: u32) -> AttrChange {
    AttrChange { mode: Some(mode), ..AttrChange::default() }
}

#[test]
fn a_node_belongs_to_its_creator() {
    let rig = Rig::by_hand();
    let root = rig.volume.root().unwrap();
    let dir = rig.volume.make_as(&root, "d", NewNode::Directory, 0o777, SOMEBODY).unwrap();
    let attr = dir.attr();
    assert_eq!((attr.uid, attr.gid, attr.mode & 0o7777), (7, 8, 0o755));
    let nameless = rig.volume.make_tmpfile(&dir, 0o600, SOMEBODY).unwrap();
    assert_eq!(nameless.attr().nlink, 0);
    File::open(&nameless).unwrap().write_at(0, b"named later").unwrap();
    rig.volume.link(&nameless, &dir, "x").unwrap();
    assert_eq!(nameless.attr().nlink, 1);
    let found = rig.volume.walk("d/x").unwrap();
    assert_eq!(read_all(&File::open(&found).unwrap()), b"named later");
    let named = rig.volume.readdir_plus(&dir, 0).unwrap();
    assert_eq!((named.len(), named[0].entry.name.to_str()), (1, Some("x")));
    assert_eq!(named[0].inode.as_ref().unwrap().attr().size_bytes, 11, "with what is cached");
    rig.volume.sync_node(&dir, SyncScope::All).unwrap();
}

#[test]
fn a_directory_shows_the_names_that_were_just_made_and_removed() {
    let rig = Rig::by_hand();
    let (volume, root) = (&rig.volume, rig.volume.root().unwrap());
    let other = volume.make(&root, "other", NewNode::Directory, 0o755).unwrap();
    let look = |dir| volume.revalidate(dir, Duration::from_secs(3600)).unwrap();
    assert_eq!((look(&root).nlink, look(&other).nlink), (3, 2));
    volume.make(&root, "d", NewNode::Directory, 0o755).unwrap();
    assert_eq!(look(&root).nlink, 4);
    let before = look(&root).mtime;
    volume.rename(&root, "d", &other, "d", RenameMode::Replace).unwrap();
    assert_eq!((look(&root).nlink, look(&other).nlink), (3, 3));
    assert!(look(&root).mtime > before);
    volume.remove(&other, "d", Removal::Directory).unwrap();
    assert_eq!(look(&other).nlink, 2);
}

#[test]
fn a_file_that_never_gets_a_name_is_freed_with_its_last_user() {
    let rig = Rig::by_hand();
    let root = rig.volume.root().unwrap();
    let file = File::open(&rig.volume.make_tmpfile(&root, 0o600, SOMEBODY).unwrap()).unwrap();
    file.write_at(0, &[1; 100_000]).unwrap();
    drop((file, root));
    assert_eq!(rig.volume.status().bytes_left(), 0);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn size_and_times_are_those_of_the_cache_while_it_is_dirty_and_the_same_afterwards() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    rig.clock.advance(Duration::from_secs(100));
    file.write_at(0, b"hello").unwrap();
    let dirty = rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    assert_eq!(dirty.size_bytes, 5);
    assert!(dirty.ctime >= dirty.mtime);
    file.fsync().unwrap();
    let clean = rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    assert_eq!((clean.size_bytes, clean.mtime), (dirty.size_bytes, dirty.mtime));
    assert_eq!(clean.ctime, dirty.ctime, "a flush is no change");
}

/// git treats a file whose ctime has changed as modified.
#[test]
fn a_flush_moves_no_ctime_and_a_change_of_the_mode_does() {
    let rig = Rig::by_hand();
    let dir = TempDir::new("ctime");
    let volume = rig.engine.mount("dir", Arc::new(DirBackend::open(dir.path()).unwrap())).unwrap();
    let file = create(&volume, "a");
    let ctime = || volume.revalidate(file.inode(), Duration::ZERO).unwrap().ctime;
    let made = ctime();
    let on_disk = || std::fs::metadata(dir.path().join("a")).unwrap().ctime_nsec();
    let before = on_disk();
    eventually("a flush at another time", || {
        file.write_at(0, b"hello").unwrap();
        file.fsync().unwrap();
        on_disk() != before
    });
    assert_eq!(ctime(), made);
    eventually("a change at another time", || {
        volume.setattr(file.inode(), mode(0o600)).unwrap();
        ctime() > made
    });
    drop(file);
    // An engine driven by hand may give up while the directory's threads still work.
    eventually("it is unmounted", || volume.umount(UmountOptions::default()).is_ok());
}

#[test]
fn setuid_that_a_write_has_cleared_stays_cleared_and_one_that_was_not_stays() {
    for (given, kept) in [(0o4755, 0o755), (0o2755, 0o755), (0o2644, 0o644), (0o6777, 0o777)] {
        let rig = Rig::by_hand();
        let (cleared, untouched) = (rig.create("a"), rig.create("b"));
        for file in [&cleared, &untouched] {
            file.fsync().unwrap();
            rig.volume.setattr(file.inode(), mode(given)).unwrap();
            file.write_at(0, b"x").unwrap();
        }
        rig.volume.kill_suidgid(cleared.inode()).unwrap();
        assert_eq!(cleared.inode().attr().mode & 0o7777, kept);
        rig.advance(Duration::from_secs(40));
        drop((cleared, untouched));
        rig.volume.umount(slackwater::UmountOptions::default()).unwrap();
        let volume = rig.engine.mount("again", rig.disk.backend.clone()).unwrap();
        assert_eq!(volume.walk("a").unwrap().attr().mode & 0o7777, kept, "of {given:o}");
        assert_eq!(volume.walk("b").unwrap().attr().mode & 0o7777, given);
    }
}

#[test]
fn setuid_is_cleared_behind_a_flush_that_keeps_it() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    rig.volume.setattr(file.inode(), mode(0o4755)).unwrap();
    file.write_at(0, b"x").unwrap();
    rig.disk.faults.add(Rule::hold().on("setattr").next(1));
    rig.flush_without_waiting();
    assert_eq!(rig.disk.faults.held().len(), 1, "a flush that keeps the mode is on its way");
    let (volume, inode) = (rig.volume.clone(), file.inode().clone());
    let killing = spawn("clearing setuid", move || volume.kill_suidgid(&inode).unwrap());
    rig.disk.faults.release_all();
    killing.wait();
    assert_eq!(file.inode().attr().mode & 0o7777, 0o755);
    file.fsync().unwrap();
    drop(file);
    rig.volume.umount(slackwater::UmountOptions::default()).unwrap();
    let volume = rig.engine.mount("again", rig.disk.backend.clone()).unwrap();
    assert_eq!(volume.walk("a").unwrap().attr().mode & 0o7777, 0o755);
}

/// When the process dies, the bytes may be in the backend or in the arena, but never under the old mode.
#[test]
fn setuid_is_cleared_in_the_backend_before_the_bytes_are_accepted() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    rig.volume.setattr(file.inode(), mode(0o4757)).unwrap();
    rig.volume.kill_suidgid(file.inode()).unwrap();
    let other = rig.engine.mount("other", rig.disk.mem.clone()).unwrap();
    assert_eq!(other.walk("a").unwrap().attr().mode & 0o7777, 0o757);
    rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("setattr").next(1));
    rig.volume.setattr(file.inode(), mode(0o4757)).unwrap_err();
}

#[test]
fn a_change_of_owner_clears_setuid() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    rig.volume.setattr(file.inode(), mode(0o4755)).unwrap();
    rig.volume.setattr(file.inode(), AttrChange { uid: Some(5), ..AttrChange::default() }).unwrap();
    assert_eq!(file.inode().attr().mode & 0o7777, 0o755);
    file.write_at(0, b"x").unwrap();
    file.fsync().unwrap();
    let attr = rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    assert_eq!((attr.uid, attr.mode & 0o7777), (5, 0o755));
}

#[test]
fn a_removal_is_one_call_and_returns_the_number_of_names_left() {
    let rig = Rig::by_hand();
    let root = rig.volume.root().unwrap();
    let file = rig.create("a");
    rig.volume.link(file.inode(), &root, "b").unwrap();
    assert_eq!(file.inode().attr().nlink, 2);
    let other = rig.disk.faults.add(Rule::fail(ErrorKind::Io).matching(|call| call.name() != "remove"));
    rig.volume.remove(&root, "a", Removal::File).unwrap();
    assert_eq!(file.inode().attr().nlink, 1);
    rig.volume.remove(&root, "b", Removal::File).unwrap();
    assert_eq!(file.inode().attr().nlink, 0);
    assert_eq!(rig.disk.faults.strikes(other), 0);
    rig.disk.faults.clear();
}

#[test]
fn a_rename_over_a_file_writes_the_new_bytes_back_first() {
    let rig = Rig::by_hand();
    let root = rig.volume.root().unwrap();
    let old = rig.create("a");
    old.write_at(0, b"old").unwrap();
    let new = rig.create("a.new");
    new.write_at(0, b"new").unwrap();
    rig.volume.rename(&root, "a.new", &root, "a", RenameMode::Replace).unwrap();
    assert_eq!(rig.stored("a").unwrap(), b"new", "not an empty file under the name");
    assert_eq!(old.inode().attr().nlink, 0);
    assert_eq!(read_all(&old), b"old");

    // If the bytes cannot be written, the name keeps its old file.
    let third = rig.create("a.third");
    third.write_at(0, b"third").unwrap();
    rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    assert_eq!(rig.volume.rename(&root, "a.third", &root, "a", RenameMode::Replace).unwrap_err().kind(), ErrorKind::Io);
    rig.disk.faults.clear();
    assert_eq!(rig.stored("a").unwrap(), b"new");
}

#[test]
fn attributes_by_name() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let (volume, inode) = (&rig.volume, file.inode());
    volume.setxattr(inode, "user.a", b"1", XattrMode::Create).unwrap();
    assert_eq!(volume.setxattr(inode, "user.a", b"2", XattrMode::Create).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(volume.setxattr(inode, "user.b", b"2", XattrMode::Replace).unwrap_err().kind(), ErrorKind::NoData);
    assert_eq!(volume.getxattr(inode, "user.a").unwrap(), b"1");
    assert_eq!(volume.listxattr(inode).unwrap(), ["user.a"]);
    volume.removexattr(inode, "user.a").unwrap();
    assert_eq!(volume.getxattr(inode, "user.a").unwrap_err().kind(), ErrorKind::NoData);
}

/// The kernel removes capabilities from a file at any write, and a flush is a write.
#[test]
fn capabilities_set_on_a_dirty_file_are_there_when_it_is_clean() {
    const NAME: &str = "security.capability";
    // `struct vfs_cap_data` of revision 2: CAP_NET_BIND_SERVICE is permitted, nothing inherited.
    let mut capabilities = [0; 20];
    capabilities[..8].copy_from_slice(&[0, 0, 0, 2, 0, 4, 0, 0]);
    let dir = TempDir::new("capabilities");
    // A directory answers on threads of its own, and the unmount of an engine driven by hand would not wait for them.
    let rig = Rig::live(Disk::new(), Tunables::default());
    let volume = rig.engine.mount("dir", Arc::new(DirBackend::open(dir.path()).unwrap())).unwrap();
    let file = create(&volume, "a");
    file.write_at(0, &[1; 10_000]).unwrap();
    match volume.setxattr(file.inode(), NAME, &capabilities, XattrMode::Set) {
        Err(error) if matches!(error.kind(), ErrorKind::NotPermitted | ErrorKind::Unsupported) => {
            println!("skipped: files cannot be given capabilities here: {error}");
        }
        set => {
            set.unwrap();
            file.fsync().unwrap();
            assert_eq!(volume.getxattr(file.inode(), NAME).unwrap(), capabilities);
            // A later write removes them, as on any file system, before the backend receives the bytes.
            assert_eq!(volume.listxattr(file.inode()).unwrap(), [NAME]);
            file.write_at(0, &[2; 10]).unwrap();
            let are_gone = || {
                assert_eq!(volume.getxattr(file.inode(), NAME).unwrap_err().kind(), ErrorKind::NoData);
                assert_eq!(volume.listxattr(file.inode()).unwrap(), [""; 0]);
            };
            are_gone();
            file.fsync().unwrap();
            are_gone();
        }
    }
    drop(file);
    volume.umount(UmountOptions::default()).unwrap();
}
