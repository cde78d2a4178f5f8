//! Another program removes, on the backend, a file that has dirty data in the cache. The loss of the name is reported,
//! and no data is lost.

use std::fs;

use slackwater::backend::Removal;
use slackwater::{
    Engine, ErrorKind, File, FileError, RescuedFrom, SuperBlock, Tunables, UmountError, UmountOptions, UncleanFile,
};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{DirBackend, SystemClock};
use slackwater_testkit::{Fault, FaultControl, Rule, pattern};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rig::{PATIENCE, TempDir, assert_same, create};

struct Mounted {
    dir: TempDir,
    engine: Engine,
    volume: Arc<SuperBlock>,
}

impl Mounted {
    fn new(name: &str) -> Self {
        Self::with_faults(name).0
    }

    fn with_faults(name: &str) -> (Self, FaultControl) {
        let dir = TempDir::new(name);
        let arena = Arena::create(&ArenaConfig::memfd(8 << 20)).unwrap();
        let engine = Engine::new(arena, Arc::new(SystemClock), Tunables::default());
        let (fault, faults) = Fault::new(Arc::new(DirBackend::open(dir.path()).unwrap()));
        let volume = engine.mount("dir", Arc::new(fault)).unwrap();
        (Self { dir, engine, volume }, faults)
    }

    /// A file with durable bytes, some of which were overwritten since.
    fn dirty(&self, name: &str) -> (File, Vec<u8>) {
        let file = create(&self.volume, name);
        let mut bytes = pattern(1, 100_001);
        file.write_at(0, &bytes).unwrap();
        file.fsync().unwrap();
        file.write_at(5000, b"newer").unwrap();
        bytes[5000..5005].copy_from_slice(b"newer");
        (file, bytes)
    }

    /// The one file that received the data.
    fn rescued(&self) -> Vec<u8> {
        let [rescued] = &self.volume.rescued()[..] else { panic!("{:?}", self.volume.rescued()) };
        assert_eq!(rescued.from, RescuedFrom::Removed);
        fs::read(self.dir.path().join(&rescued.name)).unwrap()
    }
}

#[test]
fn p02_a_dirty_file_removed_behind_the_volume_fails_fsync_and_is_kept_by_the_unmount() {
    let mounted = Mounted::new("removed-fsync");
    let (file, bytes) = mounted.dirty("a");
    fs::remove_file(mounted.dir.path().join("a")).unwrap();
    let error = file.fsync().unwrap_err();
    assert!(matches!(error, FileError::Writeback(ErrorKind::Stale)) || error.kind() == ErrorKind::Stale, "{error}");
    drop(file);
    mounted.volume.umount(UmountOptions::default()).unwrap();
    assert_same(&mounted.rescued(), &bytes, "what it held");
    assert!(mounted.engine.surviving_volumes().is_empty());
}

#[test]
fn p02_a_dirty_file_replaced_behind_the_volume_is_kept_by_a_sync_that_fails_first() {
    let mounted = Mounted::new("removed-sync");
    let (file, bytes) = mounted.dirty("a");
    fs::write(mounted.dir.path().join("new"), b"theirs").unwrap();
    fs::rename(mounted.dir.path().join("new"), mounted.dir.path().join("a")).unwrap();
    // No description is open any more, and only the cache has the data.
    drop(file);
    mounted.volume.sync().unwrap_err();
    mounted.volume.sync().unwrap();
    assert_same(&mounted.rescued(), &bytes, "what it held");
    assert_same(&fs::read(mounted.dir.path().join("a")).unwrap(), b"theirs", "theirs");
    mounted.volume.umount(UmountOptions::default()).unwrap();
}

/// Only the first fsync failed. The next one returned 0, and the status had nothing of the file.
#[test]
fn p02_a_file_without_a_name_is_reported_until_a_sync_has_copied_it() {
    let mounted = Mounted::new("removed-reported");
    let (file, bytes) = mounted.dirty("a");
    fs::remove_file(mounted.dir.path().join("a")).unwrap();
    for _ in 0..3 {
        assert_eq!(file.fsync().unwrap_err().kind(), ErrorKind::Stale);
        let status = mounted.volume.status();
        assert_eq!((status.removed_files, status.bytes_left()), (1, 100_001));
        assert_eq!(status.failing, Some(ErrorKind::Stale));
        assert_eq!(mounted.volume.would_lose()[..], [UncleanFile { id: file.inode().id(), bytes: 100_001 }]);
    }
    mounted.volume.sync().unwrap();
    assert_same(&mounted.rescued(), &bytes, "what it held");
    file.fsync().unwrap();
    let status = mounted.volume.status();
    assert_eq!((status.removed_files, status.bytes_left(), status.failing), (0, 0, None));
    assert_eq!(mounted.volume.would_lose(), []);
    drop(file);
    mounted.volume.umount(UmountOptions::default()).unwrap();
}

/// The unmount failed with 0 bytes not written back, and nothing was listed that a discard would lose.
#[test]
fn p03_data_whose_whole_backend_was_removed_is_not_written_back() {
    let mounted = Mounted::new("removed-root");
    let (file, _) = mounted.dirty("a");
    fs::remove_dir_all(mounted.dir.path()).unwrap();
    let soon = UmountOptions { deadline: Some(Duration::from_millis(50)), discard: false };
    for _ in 0..3 {
        mounted.volume.sync().unwrap_err();
        file.fsync().unwrap_err();
    }
    drop(file);
    let refused = mounted.volume.umount(soon);
    let wanted = UmountError::Deadline { dirty_bytes: 100_001, cause: Some(ErrorKind::Stale) };
    assert_eq!(format!("{refused:?}"), format!("{:?}", Err::<(), _>(wanted)));
    assert_eq!(mounted.volume.would_lose().iter().map(|file| file.bytes).sum::<u64>(), 100_001);
    mounted.volume.umount(UmountOptions { discard: true, ..UmountOptions::default() }).unwrap();
    assert!(mounted.engine.surviving_volumes().is_empty());
}

/// All other data was written back, so an unmount tried to copy the file some 200 times per second, as long as that failed.
#[test]
fn an_unmount_pauses_between_attempts_to_copy_a_removed_file() {
    let (mounted, faults) = Mounted::with_faults("removed-pauses");
    let (file, bytes) = mounted.dirty("a");
    fs::remove_file(mounted.dir.path().join("a")).unwrap();
    file.fsync().unwrap_err();
    drop(file);
    let rule = faults.add(Rule::fail(ErrorKind::Io).on("make"));
    let soon = UmountOptions { deadline: Some(Duration::from_secs(1)), discard: false };
    let refused = mounted.volume.umount(soon);
    assert!(matches!(refused, Err(UmountError::Deadline { .. })), "{refused:?}");
    // Due after 0.1, 0.3 and 0.7 s.
    assert!(faults.strikes(rule) <= 4, "{} attempts", faults.strikes(rule));
    faults.clear();
    mounted.volume.umount(UmountOptions::default()).unwrap();
    assert_same(&mounted.rescued(), &bytes, "what it held");
}

#[test]
fn removals_through_the_volume_are_not_reported() {
    let mounted = Mounted::new("removed-here");
    let root = mounted.volume.root().unwrap();
    for nth in 0..50 {
        let (file, _) = mounted.dirty("a");
        if nth % 2 == 0 {
            mounted.volume.remove(&root, "a", Removal::File).unwrap();
        } else {
            let other = create(&mounted.volume, "b");
            drop(other);
            mounted.volume.rename(&root, "b", &root, "a", slackwater::backend::RenameMode::Replace).unwrap();
        }
        file.fsync().unwrap();
        drop(file);
        if nth % 2 == 1 {
            mounted.volume.remove(&root, "a", Removal::File).unwrap();
        }
        mounted.volume.sync().unwrap();
    }
    assert_eq!(mounted.volume.rescued(), []);
    drop(root);
    mounted.volume.umount(UmountOptions::default()).unwrap();
    assert_eq!(fs::read_dir(mounted.dir.path()).unwrap().count(), 0);
}

#[test]
fn p03_an_unmount_with_a_deadline_ends_although_the_copy_of_a_removed_file_hangs() {
    for call in ["write", "read"] {
        let (mounted, faults) = Mounted::with_faults(&format!("removed-hangs-{call}"));
        let (file, bytes) = mounted.dirty("a");
        fs::remove_file(mounted.dir.path().join("a")).unwrap();
        file.fsync().unwrap_err();
        drop(file);
        faults.add(Rule::hold().on(call));
        let soon = UmountOptions { deadline: Some(Duration::from_millis(50)), discard: false };
        for _ in 0..3 {
            let start = Instant::now();
            let refused = mounted.volume.umount(soon);
            assert!(matches!(refused, Err(UmountError::Deadline { .. })), "{refused:?}");
            assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
        }
        faults.clear();
        faults.release_all();
        mounted.volume.umount(UmountOptions::default()).unwrap();
        assert_same(&mounted.rescued(), &bytes, "what it held");
        assert!(mounted.engine.surviving_volumes().is_empty());
    }
}
