//! Which inodes the shrinker of a volume asks a front end to release, and which it leaves alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use slackwater::backend::{MemBackend, NewNode};
use slackwater::shrink::{Count, ShrinkerForm};
use slackwater::{Engine, File, InodeRef, NodeId, PAGE_BYTES, SuperBlock, UmountOptions};
use slackwater_sync::Completion;

use crate::rig::{end, engine, eventually};

/// The heaviest walk that scans each object once: half of them, times two.
const ONCE: u32 = 1;

/// A volume, and a front end that stands for a kernel with cached nodes.
struct Rig {
    engine: Engine,
    volume: Arc<SuperBlock>,
    front_end: Arc<FrontEnd>,
}

#[derive(Default)]
struct FrontEnd {
    known: Mutex<HashMap<NodeId, InodeRef>>,
    asked: Mutex<Vec<NodeId>>,
    refuses: AtomicBool,
}

impl FrontEnd {
    fn forget(&self, ids: &[NodeId]) -> usize {
        self.asked.lock().unwrap().extend(ids);
        if self.refuses.load(Ordering::Relaxed) {
            return 0;
        }
        ids.iter().filter(|id| self.known.lock().unwrap().remove(id).is_some()).count()
    }

    fn asked(&self) -> Vec<NodeId> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.sort();
        asked
    }
}

impl Rig {
    fn new() -> Self {
        let engine = engine(ShrinkerForm::default());
        let volume = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
        let front_end = Arc::new(FrontEnd::default());
        let weak = Arc::downgrade(&front_end);
        volume.on_inode_pressure(move |ids| weak.upgrade().map_or(0, |front_end| front_end.forget(ids)));
        Self { engine, volume, front_end }
    }

    /// Creates a file that the front end knows.
    fn look_up(&self, name: &str) -> NodeId {
        let inode = self.volume.make(&self.volume.root().unwrap(), name, NewNode::File, 0o644).unwrap();
        let id = inode.id();
        self.front_end.known.lock().unwrap().insert(id, inode);
        id
    }

    /// Creates files; an even number of them, so that [`ONCE`] is exact.
    fn look_up_many(&self, names: &[&str]) -> Vec<NodeId> {
        names.iter().map(|name| self.look_up(name)).collect()
    }

    fn known(&self, id: NodeId) -> InodeRef {
        self.front_end.known.lock().unwrap()[&id].clone()
    }

    fn count(&self) -> Count {
        self.engine.shrinkers()[0].count
    }

    fn umount(self) {
        self.front_end.known.lock().unwrap().clear();
        self.volume.umount(UmountOptions::default()).unwrap();
        assert!(self.engine.shrinkers().is_empty());
        self.engine.check_counts().unwrap();
    }
}

#[test]
fn inodes_that_only_the_front_end_keeps_are_asked_for() {
    let rig = Rig::new();
    assert_eq!((rig.count(), rig.engine.shrinkers()[0].name.as_str()), (Count::Empty, "sb-a-0"));
    let told_of = rig.look_up_many(&["a", "b", "c", "d"]);
    assert_eq!(rig.count(), Count::Objects(4), "not the root");
    assert_eq!(rig.engine.shrink(0), 4);
    assert_eq!(rig.front_end.asked(), told_of);
    assert_eq!((rig.count(), rig.volume.status().inodes), (Count::Empty, 1));
    assert_eq!(rig.engine.shrink(0), 0);
    rig.umount();
}

#[test]
fn a_volume_knows_its_own_shrinker_in_every_form() {
    for form in [ShrinkerForm::Rwsem, ShrinkerForm::Srcu, ShrinkerForm::RefcountRcu] {
        let engine = engine(form);
        let [one, other] = ["a", "b"].map(|name| engine.mount(name, Arc::new(MemBackend::new())).unwrap());
        assert_eq!([one.shrinker(), other.shrinker()].map(Option::unwrap).to_vec(), engine.shrinkers());
        one.umount(UmountOptions::default()).unwrap();
        assert_eq!((one.shrinker(), other.shrinker().map(|shrinker| shrinker.name)), (None, Some("sb-b-1".to_owned())));
        other.umount(UmountOptions::default()).unwrap();
        drop((one, other));
        engine.check_counts().unwrap();
    }
}

#[test]
fn inodes_older_than_the_front_end_are_asked_for() {
    let engine = engine(ShrinkerForm::default());
    let volume = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
    let inode = volume.make(&volume.root().unwrap(), "x", NewNode::File, 0o644).unwrap();
    assert_eq!(engine.shrinkers()[0].count, Count::Empty, "nothing can be freed without a front end");
    let asked = Arc::new(Mutex::new(Vec::new()));
    volume.on_inode_pressure({
        let asked = Arc::clone(&asked);
        move |ids| {
            asked.lock().unwrap().extend(ids.iter().copied());
            ids.len()
        }
    });
    assert_eq!(engine.shrink(0), 1);
    assert_eq!(*asked.lock().unwrap(), [inode.id()]);
    drop(inode);
    volume.umount(UmountOptions::default()).unwrap();
    assert_eq!(Arc::strong_count(&asked), 1, "the front end is dropped");
}

#[test]
fn an_inode_used_since_the_last_walk_gets_a_second_chance() {
    let rig = Rig::new();
    let told_of = rig.look_up_many(&["a", "b", "c", "d"]);
    let again = rig.volume.lookup(&rig.volume.root().unwrap(), "c").unwrap();
    assert_eq!(again.id(), told_of[2]);
    drop(again);
    assert_eq!(rig.engine.shrink(ONCE), 3);
    assert_eq!(rig.front_end.asked(), [told_of[0], told_of[1], told_of[3]]);
    assert_eq!(rig.engine.shrink(0), 1);
    assert_eq!(rig.front_end.asked(), [told_of[2]]);
    rig.umount();
}

#[test]
fn open_dirty_and_cached_files_are_left_alone_until_they_are_not() {
    let rig = Rig::new();
    let ids = rig.look_up_many(&["open", "dirty", "cached", "idle"]);
    let open = File::open(&rig.known(ids[0])).unwrap();
    let dirty = File::open(&rig.known(ids[1])).unwrap();
    dirty.write_at(0, b"dirty").unwrap();
    drop(dirty);
    let cached = File::open(&rig.known(ids[2])).unwrap();
    cached.write_at(0, b"cached").unwrap();
    cached.fsync().unwrap();
    drop(cached);
    // Two walks, because they were used.
    assert_eq!(rig.engine.shrink(0) + rig.engine.shrink(0), 1);
    assert_eq!((rig.front_end.asked(), rig.count()), (vec![ids[3]], Count::Empty));
    // Each is listed again when what kept it in use has ended.
    drop(open);
    assert_eq!(rig.count(), Count::Objects(1));
    for id in &ids[1..3] {
        let file = File::open(&rig.known(*id)).unwrap();
        file.set_len(0).unwrap();
        file.fsync().unwrap();
    }
    assert_eq!(rig.count(), Count::Objects(3));
    assert_eq!(rig.engine.shrink(0) + rig.engine.shrink(0), 3);
    assert_eq!((rig.front_end.asked(), rig.volume.status().inodes), (ids[..3].to_vec(), 1));
    rig.umount();
}

#[test]
fn an_inode_is_listed_when_its_last_page_is_evicted() {
    let rig = Rig::new();
    let id = rig.look_up("small");
    let small = File::open(&rig.known(id)).unwrap();
    small.write_at(0, b"small").unwrap();
    small.fsync().unwrap();
    drop(small);
    assert_eq!(rig.engine.shrink(0) + rig.engine.shrink(0), 0);
    assert_eq!(rig.count(), Count::Empty);
    let large = File::open(&rig.known(rig.look_up("large"))).unwrap();
    for page in 0..1024 {
        large.write_at(page * PAGE_BYTES, b"four times the arena").unwrap();
        large.fsync().unwrap();
    }
    assert_eq!(rig.engine.shrink(0) + rig.engine.shrink(0), 1);
    assert_eq!(rig.front_end.asked(), [id]);
    drop(large);
    rig.umount();
}

#[test]
fn an_inode_that_the_front_end_refuses_is_asked_for_again() {
    let rig = Rig::new();
    let told_of = rig.look_up_many(&["a", "b"]);
    rig.front_end.refuses.store(true, Ordering::Relaxed);
    assert_eq!(rig.engine.shrink(ONCE), 0);
    assert_eq!((rig.front_end.asked(), rig.count()), (told_of.clone(), Count::Objects(2)));
    rig.front_end.refuses.store(false, Ordering::Relaxed);
    assert_eq!(rig.engine.shrink(0), 2);
    assert_eq!(rig.front_end.asked(), told_of);
    rig.umount();
}

#[test]
fn forgotten_and_removed_inodes_are_no_longer_counted() {
    let rig = Rig::new();
    let told_of = rig.look_up_many(&["a", "b", "c"]);
    rig.front_end.known.lock().unwrap().remove(&told_of[0]);
    assert_eq!(rig.count(), Count::Objects(2));
    rig.volume.remove(&rig.volume.root().unwrap(), "b", slackwater::backend::Removal::File).unwrap();
    rig.front_end.known.lock().unwrap().remove(&told_of[1]);
    assert_eq!(rig.count(), Count::Objects(1));
    rig.umount();
}

/// The front end has released the inode but stays in the call. Only the unmount of that volume waits for it, at its
/// end.
#[test]
fn an_unmount_waits_for_a_scan_of_its_own_volume_alone() {
    let engine = engine(ShrinkerForm::default());
    let [volume, other] = ["a", "b"].map(|name| engine.mount(name, Arc::new(MemBackend::new())).unwrap());
    let known = Arc::new(Mutex::new(Some(volume.make(&volume.root().unwrap(), "x", NewNode::File, 0o644).unwrap())));
    let (is_there, go_on) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    volume.on_inode_pressure({
        let (is_there, go_on) = (Arc::clone(&is_there), Arc::clone(&go_on));
        move |ids| {
            drop(known.lock().unwrap().take());
            is_there.complete();
            go_on.wait();
            ids.len()
        }
    });
    let walker = thread::spawn({
        let engine = engine.clone();
        move || engine.shrink(0)
    });
    is_there.wait();
    let umount = |volume: Arc<SuperBlock>| thread::spawn(move || volume.umount(UmountOptions::default()).unwrap());
    end("the other volume's unmount to end", umount(other));
    let umounter = umount(volume);
    // Without touching the volume's inodes, which would keep it busy.
    eventually("everything but the scan to end", || engine.volumes().is_empty() && engine.shrinkers().is_empty());
    assert!(!umounter.is_finished());
    go_on.complete();
    assert_eq!(end("the walk", walker), 1);
    end("the unmount", umounter);
}
