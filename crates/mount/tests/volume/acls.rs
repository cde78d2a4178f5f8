//! ACLs as enforced by the kernel.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, XattrFlags, getxattr, mkdir, open, setxattr};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use slackwater::backend::{MemBackend, NewNode};
use slackwater::{Engine, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::SystemClock;
use slackwater_fuse::mount::MountOptions;
use slackwater_fuse::{Pool, PoolOptions};
use slackwater_mount::{MountedVolume, UmountRequest};

use crate::programs::{LONG, until};
use crate::rig::{Rig, new_home, umount};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// The user named in ACLs, another user, and a group.
const NAMED: u32 = 65_534;
const OTHER: u32 = 65_532;
const GROUP: u32 = 65_531;

/// An ACL in the form of setxattr(2): owner, the named user, group, mask and others.
fn acl(owner: u16, named: u16, group: u16, mask: u16, others: u16) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries = [(1, owner, NONE), (2, named, NAMED), (4, group, NONE), (0x10, mask, NONE), (0x20, others, NONE)];
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    2_u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect()
}

fn acl_of(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    let len = getxattr(path, name, &mut buffer)?;
    buffer.truncate(len);
    Ok(buffer)
}

/// Runs `work` as a user other than root, on its own thread.
pub(crate) fn as_user<T: Send>(uid: u32, gid: u32, work: impl FnOnce() -> T + Send) -> T {
    let act = || {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

fn open_as(uid: u32, gid: u32, path: &Path, flags: OFlags) -> Result<(), Errno> {
    as_user(uid, gid, || open(path, flags | OFlags::CLOEXEC, Mode::empty()).map(drop))
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A file of root and [`GROUP`] with this ACL.
fn file_with(rig: &Rig, acl: &[u8]) -> std::path::PathBuf {
    let path = rig.file("file");
    fs::write(&path, b"text").unwrap();
    chown(&path, Some(0), Some(GROUP)).unwrap();
    setxattr(&path, ACCESS, acl, XattrFlags::empty()).unwrap();
    path
}

#[test]
fn a_named_user_can_be_denied_what_others_may() {
    let rig = Rig::new();
    let path = file_with(&rig, &acl(6, 0, 4, 4, 4));
    assert_eq!(open_as(NAMED, NAMED, &path, OFlags::RDONLY), Err(Errno::ACCESS));
    assert_eq!(open_as(OTHER, OTHER, &path, OFlags::RDONLY), Ok(()));
    assert_eq!(open_as(OTHER, GROUP, &path, OFlags::RDONLY), Ok(()));
    assert_eq!(open_as(OTHER, OTHER, &path, OFlags::WRONLY), Err(Errno::ACCESS));
}

#[test]
fn the_mask_shown_in_the_mode_does_not_grant_the_group_access() {
    let rig = Rig::new();
    let path = file_with(&rig, &acl(6, 6, 0, 6, 0));
    assert_eq!(mode_of(&path), 0o660, "the mask");
    assert_eq!(mode_of(&rig.stored("file")), 0o660);
    assert_eq!(open_as(NAMED, NAMED, &path, OFlags::RDWR), Ok(()));
    assert_eq!(open_as(OTHER, GROUP, &path, OFlags::RDONLY), Err(Errno::ACCESS));
    assert_eq!(open_as(OTHER, OTHER, &path, OFlags::RDONLY), Err(Errno::ACCESS));
}

#[test]
fn chmod_changes_the_mask() {
    let rig = Rig::new();
    let path = file_with(&rig, &acl(6, 6, 4, 6, 0));
    assert_eq!(open_as(NAMED, NAMED, &path, OFlags::RDWR), Ok(()));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(acl_of(&path, ACCESS).unwrap(), acl(6, 6, 4, 4, 0));
    assert_eq!(acl_of(&rig.stored("file"), ACCESS).unwrap(), acl(6, 6, 4, 4, 0));
    assert_eq!(open_as(NAMED, NAMED, &path, OFlags::WRONLY), Err(Errno::ACCESS));
    assert_eq!(open_as(NAMED, NAMED, &path, OFlags::RDONLY), Ok(()));
    rustix::fs::removexattr(&path, ACCESS).unwrap();
    assert_eq!(acl_of(&path, ACCESS), Err(Errno::NODATA));
    assert_eq!(open_as(NAMED, NAMED, &path, OFlags::RDONLY), Err(Errno::ACCESS));
    assert_eq!(open_as(OTHER, GROUP, &path, OFlags::RDONLY), Ok(()));
}

#[test]
fn an_acl_set_on_the_source_takes_effect_soon() {
    let rig = Rig::new();
    let path = file_with(&rig, &acl(6, 6, 4, 6, 0));
    assert_eq!(open_as(NAMED, NAMED, &path, OFlags::RDWR), Ok(()));
    setxattr(rig.stored("file"), ACCESS, &acl(6, 0, 4, 6, 0), XattrFlags::empty()).unwrap();
    until("the kernel reads the ACL again", || open_as(NAMED, NAMED, &path, OFlags::RDONLY) == Err(Errno::ACCESS));
}

#[test]
fn new_nodes_inherit_the_default_acl_in_place_of_the_umask() {
    let rig = Rig::new();
    let dir = rig.file("dir");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    setxattr(&dir, DEFAULT, &acl(7, 6, 4, 7, 0), XattrFlags::empty()).unwrap();
    // The umask of the test process does not matter.
    drop(open(dir.join("file"), OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o664)).unwrap());
    mkdir(dir.join("below"), Mode::from_raw_mode(0o777)).unwrap();
    assert_eq!(acl_of(&dir.join("file"), ACCESS).unwrap(), acl(6, 6, 4, 6, 0));
    assert_eq!(acl_of(&rig.stored("dir/file"), ACCESS).unwrap(), acl(6, 6, 4, 6, 0));
    assert_eq!(acl_of(&dir.join("file"), DEFAULT), Err(Errno::NODATA), "only directories have one");
    assert_eq!(acl_of(&dir.join("below"), ACCESS).unwrap(), acl(7, 6, 4, 7, 0));
    assert_eq!(acl_of(&dir.join("below"), DEFAULT).unwrap(), acl(7, 6, 4, 7, 0));
    assert_eq!(open_as(NAMED, NAMED, &dir.join("file"), OFlags::RDWR), Ok(()));
    assert_eq!(open_as(OTHER, OTHER, &dir.join("file"), OFlags::RDONLY), Err(Errno::ACCESS));
}

#[test]
fn an_acl_set_by_a_user_outside_the_group_clears_setgid() {
    let rig = Rig::new();
    let path = rig.file("tool");
    fs::write(&path, b"x").unwrap();
    for (gid, expected) in [(GROUP, 0o6775), (OTHER, 0o4775)] {
        chown(&path, Some(OTHER), Some(GROUP)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        as_user(OTHER, gid, || setxattr(&path, ACCESS, &acl(7, 7, 5, 7, 5), XattrFlags::empty())).unwrap();
        assert_eq!(mode_of(&path), expected, "by a member of {gid}");
        assert_eq!(acl_of(&path, ACCESS).unwrap(), acl(7, 7, 5, 7, 5));
    }
    rig.mounted.sync().unwrap();
    assert_eq!(mode_of(&rig.stored("tool")), 0o4775);
    let dir = rig.file("dir");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(OTHER), Some(GROUP)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o2755)).unwrap();
    as_user(OTHER, OTHER, || setxattr(&dir, DEFAULT, &acl(7, 7, 5, 7, 5), XattrFlags::empty())).unwrap();
    assert_eq!(mode_of(&dir), 0o2755, "a default ACL does not affect the directory itself");
}

#[test]
fn without_acls_in_the_source_the_mode_determines_access() {
    let (home, pool) = (new_home(), Pool::new(PoolOptions::default()).unwrap());
    let engine =
        Engine::new(Arena::create(&ArenaConfig::memfd(8 << 20)).unwrap(), Arc::new(SystemClock), Tunables::default());
    let sb = engine.mount("memory", Arc::new(MemBackend::new())).unwrap();
    let root = sb.root().unwrap();
    drop(sb.make(&root, "open", NewNode::File, 0o644).unwrap());
    drop(sb.make(&root, "closed", NewNode::File, 0o640).unwrap());
    drop(root);
    let mounted = MountedVolume::mount(&pool, Arc::clone(&sb), &home, &MountOptions::default(), None).unwrap();
    let (readable, closed) = (home.join("open"), home.join("closed"));
    let found = [
        open_as(OTHER, OTHER, &readable, OFlags::RDONLY),
        open_as(OTHER, OTHER, &readable, OFlags::WRONLY),
        open_as(OTHER, OTHER, &closed, OFlags::RDONLY),
        setxattr(&readable, ACCESS, &acl(6, 6, 4, 6, 0), XattrFlags::empty()),
    ];
    let is_writable = File::options().write(true).open(&readable).is_ok();
    umount(&mounted, UmountRequest { deadline: Some(LONG), ..UmountRequest::default() }, &|_| {}).unwrap();
    let _ = sb.umount(UmountOptions::default());
    fs::remove_dir(&home).unwrap();
    assert_eq!(found, [Ok(()), Err(Errno::ACCESS), Err(Errno::ACCESS), Err(Errno::OPNOTSUPP)]);
    assert!(is_writable);
}
