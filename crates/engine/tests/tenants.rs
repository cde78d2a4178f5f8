//! Tenants: the wb that an inode belongs to, charges, and that nothing of a tenant is left behind.

#![cfg(not(any(slackwater_loom, slackwater_shuttle)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater::backend::{MemBackend, NewNode, Removal};
use slackwater::{
    Engine, File, InodeRef, ManualClock, Memcg, MemcgId, MemcgState, PAGE_BYTES, ReadRequest, SuperBlock, TenantStatus,
    Tick, Timestamp, Tunables, UmountOptions, WaitFor, WriteRequest, Written,
};
use slackwater_arena::{Arena, ArenaConfig};

const PAGE: usize = PAGE_BYTES as usize;

/// Writes without waiting for write-back.
#[track_caller]
fn try_write(file: &File, at: u64, bytes: &[u8]) -> Written {
    file.write(WriteRequest::at(at).wait(WaitFor::Backend), bytes).unwrap()
}

struct Rig {
    engine: Engine,
    clock: Arc<ManualClock>,
    volume: Arc<SuperBlock>,
}

impl Rig {
    /// Stepped by hand, except grace periods.
    fn new() -> Self {
        Self::with(Tunables::default())
    }

    fn with(tunables: Tunables) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(16 << 20)).unwrap();
        let tunables = Tunables { flusher_threads: 0, ..tunables };
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let engine = Engine::new(arena, clock.clone(), tunables);
        let volume = engine.mount("rig", Arc::new(MemBackend::new())).unwrap();
        Self { engine, clock, volume }
    }

    fn create(&self, name: &str) -> InodeRef {
        self.volume.make(&self.volume.root().unwrap(), name, NewNode::File, 0o644).unwrap()
    }

    fn remove(&self, name: &str) {
        self.volume.remove(&self.volume.root().unwrap(), name, Removal::File).unwrap();
    }

    /// Steps until `done`. Switches wait for a grace period, which takes real time.
    fn step_until(&self, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(60), "timed out waiting for {what}");
            let _ = self.engine.step();
            std::thread::yield_now();
        }
    }

    fn umount(self) {
        self.volume.umount(UmountOptions::default()).unwrap();
        assert_eq!(self.engine.dead_volume_uses(), 0);
    }
}

/// Writes page `index` for `memcg` and makes it durable, which is one round of write-back.
fn write_round(inode: &InodeRef, memcg: &Arc<Memcg>, index: u64) {
    let file = File::open_for(inode, memcg).unwrap();
    file.write_at(index * PAGE_BYTES, &[7; PAGE]).unwrap();
    file.fsync().unwrap();
}

#[test]
fn an_inode_belongs_to_its_first_dirtier_and_keeps_it_while_clean() {
    let rig = Rig::new();
    let (a, b) = (rig.engine.memcg_create("a", None, None), rig.engine.memcg_create("b", None, None));
    let inode = rig.create("x");
    assert_eq!(inode.memcg().id(), MemcgId::ROOT);
    write_round(&inode, &a, 0);
    assert_eq!(inode.memcg().id(), a.id());
    write_round(&inode, &b, 0);
    assert_eq!(inode.memcg().id(), a.id(), "one foreign round does not move it");
    drop(inode);
    rig.umount();
}

#[test]
fn a_steady_foreign_majority_moves_the_inode_and_a_single_round_of_its_owner_does_not_stop_it() {
    let rig = Rig::new();
    let (a, b) = (rig.engine.memcg_create("a", None, None), rig.engine.memcg_create("b", None, None));
    let inode = rig.create("x");
    write_round(&inode, &a, 0);
    for round in 0..8 {
        write_round(&inode, &b, round);
        assert_eq!(inode.memcg().id(), a.id(), "round {round}");
    }
    write_round(&inode, &a, 3);
    write_round(&inode, &b, 3);
    // It ends on this thread, in a step after its grace period.
    let is_on_its_way = inode.memcg().id() == a.id();
    assert_eq!(rig.volume.status().switches_in_flight, u32::from(is_on_its_way));
    rig.step_until("the switch", || inode.memcg().id() == b.id());
    assert_eq!(rig.volume.status().switches_in_flight, 0);
    assert_eq!((rig.engine.inodes_switched(), rig.volume.status().inodes_switched), (1, 1));
    assert_eq!(rig.engine.mount("other", Arc::new(MemBackend::new())).unwrap().status().inodes_switched, 0);
    drop(inode);
    rig.umount();
}

/// Pages charged to a tenant may be on another tenant's wb and already written when it needs frames: then a commit is
/// enough.
#[test]
fn a_tenant_gets_frames_from_pages_another_has_written_for_it() {
    let rig = Rig::new();
    let limited = |name, pages| rig.engine.memcg_create(name, None, Some(pages * PAGE_BYTES));
    let (a, b) = (limited("a", 4), limited("b", 8));
    let theirs = rig.create("theirs");
    write_round(&theirs, &b, 100);
    let file = File::open_for(&theirs, &a).unwrap();
    file.write_at(0, &[1; 4 * PAGE]).unwrap();
    // Above the background level of `b`, whose flusher writes everything on its wb.
    File::open_for(&rig.create("own"), &b).unwrap().write_at(0, &[1; 3 * PAGE]).unwrap();
    let _ = rig.engine.step();
    assert_eq!((rig.volume.status().dirty_bytes, a.charged_bytes()), (0, 4 * PAGE_BYTES), "written, but not durable");
    assert_eq!(try_write(&file, 5 * PAGE_BYTES, &[1; PAGE]), Written::NoFrames);
    let _ = rig.engine.step();
    assert_eq!(a.charged_bytes(), 0);
    assert_eq!(try_write(&file, 5 * PAGE_BYTES, &[1; PAGE]), Written::Bytes(PAGE));
    drop((file, theirs));
    rig.umount();
}

#[test]
fn a_tenant_gets_frames_from_anothers_file_whatever_the_age_of_its_pages() {
    for dirty_writeback in [Duration::ZERO, Duration::from_secs(5)] {
        let rig = Rig::with(Tunables { dirty_writeback, ..Tunables::default() });
        let (owner, memcg) = (rig.engine.root_memcg(), rig.engine.memcg_create("a", None, Some(2 * PAGE_BYTES)));
        let inode = rig.create("theirs");
        write_round(&inode, owner, 0);
        let file = File::open_for(&inode, &memcg).unwrap();
        assert_eq!(try_write(&file, 0, &[1; 2 * PAGE]), Written::Bytes(2 * PAGE));
        rig.clock.advance(Duration::from_secs(40));
        assert_eq!(try_write(&file, 2 * PAGE_BYTES, b"x"), Written::NoFrames);
        let _ = rig.engine.step();
        rig.clock.advance(Duration::from_secs(6));
        let _ = rig.engine.step();
        assert_eq!(try_write(&file, 2 * PAGE_BYTES, b"x"), Written::Bytes(1), "{dirty_writeback:?}");
        drop((file, inode));
        rig.umount();
    }
}

#[test]
fn dirty_pages_move_with_their_inode_but_stay_charged_to_their_dirtier() {
    let rig = Rig::new();
    let (a, b) = (rig.engine.memcg_create("a", None, None), rig.engine.memcg_create("b", None, None));
    let inode = rig.create("x");
    write_round(&inode, &a, 0);
    let file = File::open_for(&inode, &a).unwrap();
    file.write_at(0, &[1; 3 * PAGE]).unwrap();
    file.write_at(50 * PAGE_BYTES, &[1; PAGE]).unwrap();
    assert_eq!((a.charged_bytes(), b.charged_bytes()), (4 * PAGE_BYTES, 0));
    let theirs = File::open_for(&inode, &b).unwrap();
    theirs.write_at(PAGE_BYTES, b"mine now").unwrap();
    assert_eq!((a.charged_bytes(), b.charged_bytes()), (3 * PAGE_BYTES, PAGE_BYTES), "charged to the last dirtier");
    for round in 100..110 {
        write_round(&inode, &b, round);
    }
    rig.step_until("the switch", || inode.memcg().id() == b.id());
    file.write_at(0, &[2; PAGE]).unwrap();
    assert_eq!(rig.volume.status().dirty_bytes, PAGE_BYTES);
    rig.volume.sync().unwrap();
    assert_eq!((a.charged_bytes(), b.charged_bytes(), rig.volume.status().bytes_left()), (0, 0, 0));
    drop((file, theirs, inode));
    rig.umount();
}

#[test]
fn files_of_an_offline_tenant_move_to_its_nearest_online_ancestor() {
    let rig = Rig::new();
    let parent = rig.engine.memcg_create("parent", None, None);
    let child = rig.engine.memcg_create("child", Some(&parent), None);
    let grandchild = rig.engine.memcg_create("grandchild", Some(&child), None);
    let inodes: Vec<_> = (0..300).map(|nth| rig.create(&format!("{nth}"))).collect();
    for inode in &inodes {
        write_round(inode, &grandchild, 0);
    }
    let dirty = File::open_for(&inodes[0], &grandchild).unwrap();
    dirty.write_at(0, b"dirty").unwrap();
    assert!(rig.engine.memcg_offline(&child));
    assert!(rig.engine.memcg_offline(&grandchild) && !rig.engine.memcg_offline(&grandchild), "once");
    for _ in 0..50 {
        let _ = rig.engine.step();
    }
    assert!(inodes.iter().all(|inode| inode.memcg().id() == grandchild.id()), "while the inode is dirty");
    dirty.fsync().unwrap();
    drop(dirty);
    rig.step_until("the clean-up", || inodes.iter().all(|inode| inode.memcg().id() == parent.id()));
    assert_eq!(grandchild.state(), MemcgState::Offline);
    assert_eq!(rig.engine.memcgs().len(), 4, "the test holds references to them");
    let ids = (child.id(), grandchild.id());
    drop((child, grandchild));
    rig.step_until("the release", || rig.engine.memcgs().len() == 2);
    let next = rig.engine.memcg_create("next", None, None);
    assert!(next.id() != ids.0 && next.id() != ids.1, "numbers are not reused");
    drop(inodes);
    rig.umount();
}

#[test]
fn a_write_for_an_offline_tenant_belongs_to_its_ancestor() {
    let rig = Rig::new();
    let parent = rig.engine.memcg_create("parent", None, None);
    let child = rig.engine.memcg_create("child", Some(&parent), None);
    let inode = rig.create("x");
    let file = File::open_for(&inode, &child).unwrap();
    assert!(rig.engine.memcg_offline(&child));
    file.write_at(0, b"late").unwrap();
    assert_eq!(inode.memcg().id(), parent.id());
    file.fsync().unwrap();
    drop((file, inode));
    rig.umount();
}

#[test]
fn an_inode_leaves_an_offline_tenant_even_if_its_only_write_was_refused() {
    let rig = Rig::with(Tunables { pinned_nodes: 2, ..Tunables::default() });
    let memcg = rig.engine.memcg_create("a", None, None);
    let others: Vec<_> = ["x", "y"].iter().map(|name| File::open(&rig.create(name)).unwrap()).collect();
    others.iter().for_each(|file| assert_eq!(try_write(file, 0, b"dirty"), Written::Bytes(5)));
    let inode = rig.create("z");
    let file = File::open_for(&inode, &memcg).unwrap();
    assert_eq!(try_write(&file, 0, b"no node is left to pin"), Written::NoFrames);
    assert_eq!(inode.memcg().id(), memcg.id());
    assert!(rig.engine.memcg_offline(&memcg));
    rig.step_until("the clean-up", || inode.memcg().id() == MemcgId::ROOT);
    drop((file, memcg));
    rig.step_until("the release", || rig.volume.wbs_alive() == 1 && rig.engine.memcgs().len() == 1);
    drop((inode, others));
    rig.umount();
}

#[test]
fn removed_files_waiting_for_a_commit_do_not_keep_other_files_of_an_offline_tenant() {
    let rig = Rig::new();
    let memcg = rig.engine.memcg_create("a", None, None);
    let removed: Vec<_> = (0..200).map(|nth| format!("{nth}")).collect();
    for name in &removed {
        File::open_for(&rig.create(name), &memcg).unwrap().write_at(0, b"written, but not durable").unwrap();
    }
    rig.clock.advance(Duration::from_secs(40));
    let _ = rig.engine.step();
    assert_eq!(rig.volume.status().bytes_left(), rig.volume.status().unstable_bytes);
    removed.iter().for_each(|name| rig.remove(name));
    let kept = rig.create("kept");
    write_round(&kept, &memcg, 0);
    assert!(rig.engine.memcg_offline(&memcg));
    rig.step_until("the clean-up", || kept.memcg().id() == MemcgId::ROOT);
    drop(kept);
    rig.umount();
}

#[test]
fn clean_files_leave_an_offline_tenant_when_others_take_its_last_dirty_one() {
    let rig = Rig::new();
    let (a, b) = (rig.engine.memcg_create("a", None, None), rig.engine.memcg_create("b", None, None));
    let (clean, contested) = (rig.create("clean"), rig.create("contested"));
    write_round(&clean, &a, 0);
    write_round(&contested, &a, 0);
    for _ in 0..9 {
        write_round(&contested, &b, 0);
    }
    assert_eq!(rig.engine.switches_in_flight(), 1);
    let file = File::open_for(&contested, &b).unwrap();
    file.write_at(0, b"dirty").unwrap();
    assert!(rig.engine.memcg_offline(&a));
    rig.step_until("the switch", || contested.memcg().id() == b.id());
    rig.step_until("the clean-up", || clean.memcg().id() == MemcgId::ROOT);
    drop((file, clean, contested));
    rig.umount();
}

#[test]
fn a_waiting_writer_wakes_when_others_take_over_pages_or_its_limit_is_raised() {
    let rig = Rig::new();
    let a = rig.engine.memcg_create("a", None, Some(2 * PAGE_BYTES));
    let b = rig.engine.memcg_create("b", None, None);
    let (inode, other) = (rig.create("x"), rig.create("y"));
    let (file, waits) = (File::open_for(&inode, &a).unwrap(), File::open_for(&other, &a).unwrap());
    let theirs = File::open_for(&inode, &b).unwrap();
    file.write_at(0, &[1; 2 * PAGE]).unwrap();
    let refused = || {
        let seen = rig.volume.progress_count();
        assert_eq!(try_write(&waits, 0, b"x"), Written::NoFrames);
        assert!(!rig.volume.wait_for_progress(seen, Some(Tick(0))));
        seen
    };
    let hears = |seen| rig.volume.wait_for_progress(seen, Some(Tick(0)));
    let seen = refused();
    theirs.write_at(0, b"a part of one").unwrap();
    assert!(hears(seen));
    waits.write_at(PAGE_BYTES, b"in its place").unwrap();
    let seen = refused();
    let mut landed = rig.volume.landing_frames(PAGE).unwrap();
    assert_eq!(theirs.write_landed(WriteRequest::at(PAGE_BYTES), &mut landed, 0..PAGE).unwrap(), Written::Bytes(PAGE));
    assert!(hears(seen));
    waits.write_at(2 * PAGE_BYTES, b"in its place").unwrap();
    let seen = refused();
    a.set_limit_bytes(Some(3 * PAGE_BYTES));
    assert!(hears(seen));
    waits.write_at(0, b"within it").unwrap();
    assert_eq!((a.charged_bytes(), b.charged_bytes()), (3 * PAGE_BYTES, 2 * PAGE_BYTES));
    drop((file, waits, theirs, landed, inode, other));
    rig.umount();
}

#[test]
fn a_limit_covers_a_tenant_and_its_descendants_on_every_volume_and_no_others() {
    let rig = Rig::new();
    let second = rig.engine.mount("second", Arc::new(MemBackend::new())).unwrap();
    let parent = rig.engine.memcg_create("parent", None, Some(8 * PAGE_BYTES));
    let child = rig.engine.memcg_create("child", Some(&parent), Some(6 * PAGE_BYTES));
    let other = rig.engine.memcg_create("other", None, None);
    let inode = rig.create("x");
    let other_file = second.make(&second.root().unwrap(), "y", NewNode::File, 0o644).unwrap();
    let (file, on_second) = (File::open_for(&inode, &child).unwrap(), File::open_for(&other_file, &parent).unwrap());
    assert_eq!(try_write(&file, 0, &[1; 5 * PAGE]), Written::Bytes(5 * PAGE));
    assert_eq!(try_write(&file, 5 * PAGE_BYTES, &[1; PAGE]), Written::Bytes(PAGE));
    assert_eq!(try_write(&file, 6 * PAGE_BYTES, &[1; PAGE]), Written::NoFrames, "its own");
    assert_eq!(try_write(&on_second, 0, &[1; 3 * PAGE]), Written::Bytes(3 * PAGE), "exceeded by one request at most");
    assert_eq!(parent.charged_bytes(), 9 * PAGE_BYTES);
    assert_eq!(
        try_write(&on_second, 3 * PAGE_BYTES, b"x"),
        Written::NoFrames,
        "the child's pages also count for the parent"
    );
    let theirs = File::open_for(&inode, &other).unwrap();
    assert_eq!(try_write(&theirs, 9 * PAGE_BYTES, b"x"), Written::Bytes(1));
    // Their wbs have been woken: frames become free without a sync.
    file.write_at(6 * PAGE_BYTES, &[1; 20 * PAGE]).unwrap();
    on_second.write_at(3 * PAGE_BYTES, &[1; 20 * PAGE]).unwrap();
    drop((file, on_second, theirs, inode, other_file));
    second.umount(UmountOptions::default()).unwrap();
    rig.umount();
}

#[test]
fn writes_proceed_under_limits_of_zero_one_page_and_more_than_the_arena() {
    let rig = Rig::new();
    for limit in [0, 1, PAGE_BYTES, PAGE_BYTES + 1, u64::MAX] {
        let memcg = rig.engine.memcg_create("odd", None, Some(limit));
        let inode = rig.create(&format!("{limit}"));
        let file = File::open_for(&inode, &memcg).unwrap();
        for nth in 0..20 {
            file.write_at(nth * PAGE_BYTES, &[nth as u8; PAGE]).unwrap();
        }
        memcg.set_limit_bytes(Some(3 * PAGE_BYTES));
        file.write_at(0, &[1; 10 * PAGE]).unwrap();
        memcg.set_limit_bytes(None);
        file.write_at(0, &[1; 10 * PAGE]).unwrap();
        assert!(rig.engine.memcg_offline(&memcg));
    }
    rig.volume.sync().unwrap();
    rig.step_until("their release", || rig.engine.memcgs().len() == 1);
    rig.umount();
}

#[test]
fn ten_thousand_short_lived_tenants_leave_nothing() {
    let rig = Rig::new();
    let inode = rig.create("x");
    for nth in 0..10_000_u64 {
        let memcg = rig.engine.memcg_create(&format!("{nth}"), None, Some(1 << 20));
        if nth % 10 == 0 {
            let own = rig.create(&format!("{nth}"));
            write_round(&own, &memcg, 0);
            drop(own);
            rig.remove(&format!("{nth}"));
        }
        write_round(&inode, &memcg, nth % 8);
        assert!(rig.engine.memcg_offline(&memcg));
        drop(memcg);
        let _ = rig.engine.step();
    }
    rig.volume.sync().unwrap(); // pages waiting for the next commit hold it until then
    rig.step_until("all tenants to be released", || rig.engine.memcgs().len() == 1);
    assert_eq!(rig.volume.wbs_alive(), 1);
    drop(inode);
    rig.umount();
}

#[test]
fn each_tenant_has_its_own_status_on_each_volume() {
    let rig = Rig::new();
    let second = rig.engine.mount("second", Arc::new(MemBackend::new())).unwrap();
    let a = rig.engine.memcg_create("a", None, Some(512 * PAGE_BYTES));
    let b = rig.engine.memcg_create("b\n\"c", None, None);
    let of =
        |volume: &Arc<SuperBlock>, id: MemcgId| volume.tenants().into_iter().find(|tenant| tenant.id == id).unwrap();
    let (x, y) = (rig.create("x"), rig.create("y"));
    write_round(&x, &a, 0);
    let (file, theirs) = (File::open_for(&x, &a).unwrap(), File::open_for(&y, &b).unwrap());
    file.write_at(0, &[1; 3 * PAGE]).unwrap();
    rig.clock.advance(Duration::from_secs(7));
    theirs.write_at(0, &[1; PAGE]).unwrap();
    let of_a = of(&rig.volume, a.id());
    assert_eq!((of_a.name.as_str(), of_a.state, of_a.limit_bytes), ("a", MemcgState::Online, Some(512 * PAGE_BYTES)));
    assert_eq!(
        (of_a.charged_bytes, of_a.dirty_bytes, of_a.written_bytes),
        (3 * PAGE_BYTES, 3 * PAGE_BYTES, PAGE_BYTES)
    );
    assert_eq!((of_a.writeback_bytes, of_a.unstable_bytes, of_a.is_at_limit), (0, 0, false));
    assert_eq!(of_a.oldest, Some(Duration::from_secs(7)));
    let of_b = of(&rig.volume, b.id());
    assert_eq!((of_b.name.as_str(), of_b.limit_bytes, of_b.oldest), ("b\n\"c", None, Some(Duration::ZERO)));
    assert_eq!(rig.volume.status().oldest, of_a.oldest, "the oldest of all tenants'");
    let ids = |tenants: Vec<TenantStatus>| tenants.iter().map(|tenant| tenant.id).collect::<Vec<_>>();
    assert_eq!(ids(second.tenants()), [MemcgId::ROOT], "no other tenant has anything there");
    let other = second.make(&second.root().unwrap(), "z", NewNode::File, 0o644).unwrap();
    File::open_for(&other, &a).unwrap().write_at(0, &[1; PAGE]).unwrap();
    let there = of(&second, a.id());
    assert_eq!(
        (there.charged_bytes, there.dirty_bytes, there.oldest),
        (4 * PAGE_BYTES, PAGE_BYTES, Some(Duration::ZERO)),
        "the limit covers all volumes"
    );
    assert_eq!(ids(rig.volume.tenants()), [MemcgId::ROOT, a.id(), b.id()]);
    let idle = rig.engine.memcg_create("idle", None, None);
    let all = rig.engine.tenants();
    assert_eq!((all[1].dirty_bytes, all[1].written_bytes, all[1].oldest), (4 * PAGE_BYTES, PAGE_BYTES, of_a.oldest));
    assert_eq!(ids(all), [MemcgId::ROOT, a.id(), b.id(), idle.id()]);
    assert!(rig.engine.memcg_offline(&idle));
    drop((other, idle));
    second.sync().unwrap();

    let chunk = vec![1; 32 * PAGE];
    for nth in 0..16 {
        assert_eq!(try_write(&file, nth * chunk.len() as u64, &chunk), Written::Bytes(chunk.len()));
        let _ = file.balance_dirty_pages(file.memcg());
    }
    assert_eq!(try_write(&file, 512 * PAGE_BYTES, &[1; PAGE]), Written::NoFrames);
    let full = of(&rig.volume, a.id());
    assert!(full.is_at_limit && full.paused > Duration::ZERO, "{full:?}");
    assert_eq!(of(&rig.volume, b.id()).paused, Duration::ZERO);
    assert_eq!((rig.volume.status().paused, second.status().paused), (full.paused, Duration::ZERO));
    assert_eq!(
        full.cached_bytes,
        2 * PAGE_BYTES,
        "the page on the other volume, and one that was clean and is dirty again"
    );

    // Hits and misses count for the reader's tenant.
    assert_eq!((full.read_hits, full.read_misses), (0, 0));
    let reader = File::open(file.inode()).unwrap();
    reader.set_reader(&a);
    assert_eq!(reader.peek(ReadRequest::at(0), 3 * PAGE, |slices| slices.len()), Some(3));
    drop(reader);
    let found = of(&rig.volume, a.id());
    assert_eq!((found.read_hits, found.read_misses), (3, 0));
    assert_eq!(of(&rig.volume, MemcgId::ROOT).read_hits, 0);

    let id = a.id();
    assert!(rig.engine.memcg_offline(&a));
    assert_eq!(of(&rig.volume, id).state, MemcgState::Offline);
    rig.volume.sync().unwrap();
    drop((file, theirs, x, y, a));
    rig.step_until("the release", || rig.engine.tenants().iter().all(|tenant| tenant.id != id));
    drop(b);
    second.umount(UmountOptions::default()).unwrap();
    rig.umount();
}
