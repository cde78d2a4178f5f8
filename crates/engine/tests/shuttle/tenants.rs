//! Switches, tenants going offline, limits and unmounts in random schedules.
//!
//! Limits are small: a few frames, files of a few pages. An inode moves to another tenant after nine rounds of
//! write-back; all but the last are done before the threads start. `SLACKWATER_SHUTTLE_EXECUTIONS` sets the number of
//! schedules.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::schedules::{check, check_fair};
use crate::threaded::{Refused, ThreadedBackend, limits};
use slackwater::backend::{Backend, Call, Limits, MemBackend, NewNode};
use slackwater::{
    Engine, File, Forms, InodeRef, ManualClock, Memcg, MemcgId, PAGE_BYTES, SuperBlock, Timestamp, Tunables,
    UmountError, UmountForm, UmountOptions, WaitFor, WriteRequest, Written,
};
use slackwater_arena::{Arena, ArenaConfig, Survivors};
use slackwater_sync::lock::{Mutex, Rank};
use slackwater_sync::rcu::Options;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::{Arc, thread};

const FRAMES: u64 = 16;
/// Foreign rounds of one page, after which the next one moves the inode.
const ROUNDS: u64 = 8;
/// Polls for what other threads do, which happens within some hundred.
const POLLS: usize = 20_000;

/// The thread that answers for the backend.
#[derive(Copy, Clone)]
enum Answers {
    /// The caller's thread.
    Inline,
    /// A separate thread.
    Threaded,
}

/// Holds units until they are released, and answers all other calls at once.
struct Stuck {
    inner: MemBackend,
    units: Mutex<Option<Vec<Call>>>,
}

impl Stuck {
    fn new() -> Arc<Self> {
        let units = Mutex::new(Rank::new(90, "stuck units"), Some(Vec::new()));
        Arc::new(Self { inner: MemBackend::with_limits(limits()), units })
    }

    fn units(&self) -> usize {
        self.units.lock().as_ref().map_or(0, Vec::len)
    }

    fn release(&self) {
        let units = self.units.lock().take();
        units.into_iter().flatten().for_each(|unit| self.inner.submit(unit));
    }
}

impl Backend for Stuck {
    fn submit(&self, call: Call) {
        let mut units = self.units.lock();
        match (&mut *units, call) {
            (Some(units), unit @ Call::Write(_)) => units.push(unit),
            (_, call) => {
                drop(units);
                self.inner.submit(call);
            }
        }
    }

    fn limits(&self) -> Limits {
        limits()
    }
}

struct Rig {
    engine: Engine,
    clock: Arc<ManualClock>,
    volume: Arc<SuperBlock>,
    worker: Option<thread::JoinHandle<()>>,
}

impl Rig {
    /// The flushers start at the second dirty page.
    fn new(umount: UmountForm, answers: Answers) -> Self {
        Self::with(umount, answers, 10)
    }

    /// The flushers start only at the request of a tenant that is waiting for frames.
    fn for_limits() -> Self {
        Self::with(UmountForm::PerSb, Answers::Threaded, 95)
    }

    fn with(umount: UmountForm, answers: Answers, dirty_background_percent: u32) -> Self {
        let mem = MemBackend::with_limits(limits());
        match answers {
            Answers::Inline => Self::on(Arc::new(mem), None, umount, dirty_background_percent),
            Answers::Threaded => {
                let (threaded, worker) = ThreadedBackend::new(Arc::new(mem), Refused(0));
                Self::on(Arc::new(threaded), Some(worker), umount, dirty_background_percent)
            }
        }
    }

    fn on(
        backend: Arc<dyn Backend>,
        worker: Option<thread::JoinHandle<()>>,
        umount: UmountForm,
        dirty_background_percent: u32,
    ) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(FRAMES * PAGE_BYTES).with_inodes(4).with_volumes(1)).unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let tunables = Tunables {
            flusher_threads: 2,
            dirty_writeback: Duration::ZERO,
            dirty_background_percent,
            dirty_percent: 100,
            readahead_pages: 2,
            ..Tunables::default()
        };
        let rcu = Options { coalesce: Duration::ZERO, ..Options::default() };
        let forms = Forms { umount, rcu, ..Forms::default() };
        let engine = Engine::with_forms(arena, Survivors::default(), clock.clone(), tunables, forms);
        let volume = engine.mount("rig", backend).unwrap();
        Self { engine, clock, volume, worker }
    }

    fn tenant(&self, name: &str) -> Arc<Memcg> {
        self.engine.memcg_create(name, None, None)
    }

    fn create(&self, name: &str) -> InodeRef {
        self.volume.make(&self.volume.root().unwrap(), name, NewNode::File, 0o644).unwrap()
    }

    /// A clean file that belongs to `owner`, and that the next round of `other` moves to `other`.
    fn create_contested(&self, name: &str, owner: &Arc<Memcg>, other: &Arc<Memcg>) -> InodeRef {
        let inode = self.create(name);
        write(&inode, owner, 0).fsync().unwrap();
        for _ in 0..ROUNDS {
            write(&inode, other, 0).fsync().unwrap();
        }
        assert_eq!(inode.memcg().id(), owner.id());
        inode
    }

    fn eventually(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..POLLS {
            if is_so() {
                return;
            }
            thread::yield_now();
        }
        let (wbs, memcgs) = (self.volume.wbs_alive(), self.engine.memcgs());
        panic!("gave up waiting for {what}: {wbs} wbs, {memcgs:?}, {:?}", self.engine.check_counts());
    }

    /// Syncs until nothing is left. The first sync may leave a page whose write is just being answered and which is not
    /// yet known to be durable.
    fn sync(&self) {
        self.eventually("dirty data to be written", || {
            self.volume.sync().unwrap();
            self.volume.status().bytes_left() == 0
        });
    }

    /// Unmounts as soon as no file is open.
    fn umount(&self) -> Result<(), UmountError> {
        loop {
            match self.volume.umount(UmountOptions::default()) {
                Err(UmountError::Busy { .. }) => thread::yield_now(),
                result => return result,
            }
        }
    }

    /// Checks that once all tenants are offline nothing is left but the root's state, and finally nothing at all.
    fn finish(self) {
        self.sync();
        self.eventually("the tenants to be released", || {
            self.volume.wbs_alive() == 1 && self.engine.memcgs().len() == 1 && self.engine.switches_in_flight() == 0
        });
        self.eventually("consistent counts", || self.engine.check_counts().is_ok());
        self.umount().unwrap();
        self.end();
    }

    fn end(self) {
        assert_eq!(self.engine.dead_volume_uses(), 0);
        assert_eq!(self.volume.bdi().pinned_frames(), 0);
        assert_eq!(self.engine.arena().free_frames(), FRAMES);
        drop((self.volume, self.engine));
        self.worker.into_iter().for_each(|worker| worker.join().unwrap());
    }
}

/// Dirties page `index` for `memcg`.
fn write(inode: &InodeRef, memcg: &Arc<Memcg>, index: u64) -> File {
    let file = File::open_for(inode, memcg).unwrap();
    file.write_at(index * PAGE_BYTES, &[7; PAGE_BYTES as usize]).unwrap();
    file
}

/// Unmounts while an inode is moved because its owner goes offline; with `flush`, also while the flush of the unmount
/// finds that another one has to move. Returns the result of the unmount.
fn umount_beside_switches(form: UmountForm, flush: bool) -> (Rig, Result<(), UmountError>) {
    let rig = Rig::new(form, Answers::Inline);
    let (a, b) = (rig.tenant("a"), rig.tenant("b"));
    if flush {
        let contested = rig.create_contested("x", &a, &b);
        drop(write(&contested, &b, 0));
    }
    let left = rig.create("y");
    write(&left, &a, 0).fsync().unwrap();
    drop(left);
    let offline = {
        let engine = rig.engine.clone();
        thread::spawn(move || assert!(engine.memcg_offline(&a)))
    };
    let result = rig.umount();
    offline.join().unwrap();
    rig.eventually("the switches to end", || rig.engine.switches_in_flight() == 0);
    (rig, result)
}

fn umount_ends(form: UmountForm) {
    for flush in [true, false] {
        let (rig, result) = umount_beside_switches(form, flush);
        result.unwrap();
        rig.end();
    }
}

#[test]
fn an_unmount_during_switches_in_the_default_form() {
    check("umount, per_sb", 700, || umount_ends(UmountForm::PerSb));
}

#[test]
fn an_unmount_during_switches_in_the_form_race() {
    check("umount, race", 400, || umount_ends(UmountForm::Race));
}

#[test]
fn an_unmount_during_switches_in_the_form_rmbarrier() {
    check("umount, rmbarrier", 400, || umount_ends(UmountForm::RmBarrier));
}

/// About one schedule in a thousand shows the bug.
#[test]
fn the_base_form_is_detected_as_incorrect() {
    static WRONG: AtomicU64 = AtomicU64::new(0);
    let is_found = (0..60).any(|_| {
        check("umount, base", 500, || {
            let (rig, result) = umount_beside_switches(UmountForm::Base, false);
            let is_wrong = matches!(result, Err(UmountError::BusyInodes(_))) || rig.engine.dead_volume_uses() != 0;
            WRONG.fetch_add(is_wrong.into(), Ordering::Relaxed);
        });
        WRONG.load(Ordering::Relaxed) != 0
    });
    println!("umount, base: {} times wrong", WRONG.load(Ordering::Relaxed));
    assert!(is_found);
}

/// Covers a wb of the tenant that is just being created, one that is just being killed, and a switch to one.
#[test]
fn a_tenant_goes_offline_while_files_are_assigned_to_it() {
    check("offline", 1000, || {
        let rig = Rig::new(UmountForm::PerSb, Answers::Inline);
        let (a, b) = (rig.tenant("a"), rig.tenant("b"));
        let contested = rig.create_contested("x", &b, &a);
        let new = rig.create("y");
        let writers = [contested.clone(), new.clone()].map(|inode| {
            let a = Arc::clone(&a);
            thread::spawn(move || drop(write(&inode, &a, 0)))
        });
        assert!(rig.engine.memcg_offline(&a));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        rig.sync();
        let left = |inode: &InodeRef| inode.memcg().id() != a.id();
        rig.eventually("another owner", || left(&contested) && left(&new));
        assert!(rig.engine.memcg_offline(&b));
        rig.eventually("the last owner to change", || {
            contested.memcg().id() == MemcgId::ROOT && new.memcg().id() == MemcgId::ROOT
        });
        drop((a, b, contested, new));
        rig.finish();
    });
}

/// The round of `b` moves the inode to it, and going offline moves it from `a` to the root.
#[test]
fn counts_are_exact_while_pages_are_dirtied_flushed_truncated_and_synced_and_the_inode_moves() {
    check("counts", 700, || {
        let rig = Rig::new(UmountForm::PerSb, Answers::Threaded);
        let (a, b) = (rig.tenant("a"), rig.tenant("b"));
        let contested = rig.create_contested("x", &a, &b);
        let cutter = {
            let (inode, a) = (contested.clone(), Arc::clone(&a));
            thread::spawn(move || {
                let file = write(&inode, &a, 1);
                file.set_len(PAGE_BYTES / 2).unwrap();
                write(&inode, &a, 2).fsync().unwrap();
            })
        };
        let writer = {
            let (inode, b) = (contested.clone(), Arc::clone(&b));
            thread::spawn(move || {
                write(&inode, &b, 0).fsync().unwrap();
                drop(write(&inode, &b, 3));
            })
        };
        assert!(rig.engine.memcg_offline(&a));
        cutter.join().unwrap();
        writer.join().unwrap();
        rig.eventually("consistent counts", || rig.engine.check_counts().is_ok());
        rig.sync();
        assert_eq!((a.charged_bytes(), b.charged_bytes()), (0, 0));
        assert!(rig.engine.memcg_offline(&b));
        drop((a, b, contested));
        rig.finish();
    });
}

/// Two containers of a pod write the same pages, and one of them gets another tenant below the pod's parent, as when the
/// limit of the pod goes. Each page counts once for its tenant and once for each above it.
#[test]
fn counts_on_three_levels_are_exact_while_pages_change_hands_and_a_tenant_is_replaced() {
    check("levels", 700, || {
        let rig = Rig::new(UmountForm::PerSb, Answers::Threaded);
        let limit = Some(64 * PAGE_BYTES);
        let pods = rig.engine.memcg_create("pods", None, limit);
        let pod = rig.engine.memcg_create("pod", Some(&pods), limit);
        let [a, b] = ["a", "b"].map(|name| rig.engine.memcg_create(name, Some(&pod), limit));
        let inode = rig.create("x");
        let writer = {
            let (inode, b) = (inode.clone(), Arc::clone(&b));
            thread::spawn(move || {
                drop(write(&inode, &b, 0));
                write(&inode, &b, 1).fsync().unwrap();
                drop(write(&inode, &b, 0));
            })
        };
        drop(write(&inode, &a, 0));
        let next = rig.engine.memcg_create("a", Some(&pods), limit);
        assert!(rig.engine.memcg_offline(&a));
        write(&inode, &next, 1).fsync().unwrap();
        drop(write(&inode, &next, 0));
        writer.join().unwrap();
        rig.eventually("consistent counts", || rig.engine.check_counts().is_ok());
        rig.sync();
        let all = [a, b, next, pod, pods];
        assert_eq!(all.each_ref().map(|memcg| memcg.charged_bytes()), [0; 5]);
        all.iter().skip(1).for_each(|memcg| assert!(rig.engine.memcg_offline(memcg)));
        drop((all, inode));
        rig.finish();
    });
}

/// The outermost limit is the smallest, and both writers wait for it, whichever of them has the frames.
#[test]
fn writers_below_a_full_tenant_two_levels_up_get_frames() {
    check_fair("outer limit", 1000, || {
        let rig = Rig::for_limits();
        let pods = rig.engine.memcg_create("pods", None, Some(2 * PAGE_BYTES));
        let pod = rig.engine.memcg_create("pod", Some(&pods), Some(8 * PAGE_BYTES));
        let [a, b] = ["a", "b"].map(|name| rig.engine.memcg_create(name, Some(&pod), Some(8 * PAGE_BYTES)));
        drop((pods, pod));
        writers_get_frames(rig, a, b);
    });
}

/// Two writers, of `first` and `second`, write more than both may have dirty.
fn writers_get_frames(rig: Rig, first: Arc<Memcg>, second: Arc<Memcg>) {
    let writer = {
        let (inode, first) = (rig.create("x"), Arc::clone(&first));
        thread::spawn(move || (0..4).for_each(|index| drop(write(&inode, &first, index))))
    };
    let inode = rig.create("y");
    (0..4).for_each(|index| drop(write(&inode, &second, index)));
    writer.join().unwrap();
    rig.sync();
    assert_eq!((first.charged_bytes(), second.charged_bytes()), (0, 0));
    for memcg in [first, second] {
        let lineage = std::iter::successors(Some(memcg), |memcg| memcg.parent().cloned());
        for memcg in lineage {
            rig.engine.memcg_offline(&memcg);
        }
    }
    drop(inode);
    rig.finish();
}

#[test]
fn two_writers_of_a_limited_tenant_get_frames() {
    check_fair("limits", 1000, || {
        let rig = Rig::for_limits();
        let memcg = rig.engine.memcg_create("limited", None, Some(2 * PAGE_BYTES));
        writers_get_frames(rig, Arc::clone(&memcg), memcg);
    });
}

#[test]
fn writers_of_a_limited_tenant_and_of_its_child_get_frames() {
    check_fair("nested limits", 1000, || {
        let rig = Rig::for_limits();
        let parent = rig.engine.memcg_create("parent", None, Some(3 * PAGE_BYTES));
        let child = rig.engine.memcg_create("child", Some(&parent), Some(2 * PAGE_BYTES));
        writers_get_frames(rig, child, parent);
    });
}

/// The pages that reach the limit are on the wb of an unlimited tenant. They are committed only when due, so the clock
/// advances here.
#[test]
fn a_limited_tenant_writing_to_files_of_others_gets_frames() {
    check_fair("foreign limits", 1000, || {
        let rig = Rig::for_limits();
        let (owner, memcg) = (rig.tenant("owner"), rig.engine.memcg_create("limited", None, Some(2 * PAGE_BYTES)));
        let inode = rig.create("x");
        write(&inode, &owner, 0).fsync().unwrap();
        let has_ended = Arc::new(AtomicBool::new(false));
        let writer = {
            let (inode, memcg, has_ended) = (inode.clone(), Arc::clone(&memcg), Arc::clone(&has_ended));
            thread::spawn(move || {
                (0..4).for_each(|index| drop(write(&inode, &memcg, index)));
                has_ended.store(true, Ordering::Release);
            })
        };
        rig.eventually("free frames", || {
            rig.clock.advance(Duration::from_secs(1));
            has_ended.load(Ordering::Acquire)
        });
        writer.join().unwrap();
        assert!(rig.engine.memcg_offline(&memcg) && rig.engine.memcg_offline(&owner));
        drop((owner, memcg, inode));
        rig.finish();
    });
}

/// Units of another tenant occupy all slots, so no write-back wakes the writer.
#[test]
fn a_waiting_writer_gets_the_frame_of_a_page_that_another_tenant_takes_over() {
    check_fair("taken over", 1000, || {
        let stuck = Stuck::new();
        let rig = Rig::on(stuck.clone(), None, UmountForm::PerSb, 95);
        let full = rig.engine.memcg_create("full", None, Some(2 * PAGE_BYTES));
        let held = [rig.create("p"), rig.create("q")].map(|inode| write(&inode, &full, 0));
        assert_eq!(
            held[0].write(WriteRequest::at(PAGE_BYTES).wait(WaitFor::Backend), b"x").unwrap(),
            Written::NoFrames
        );
        rig.eventually("their units", || stuck.units() == 2);
        let (a, b) = (rig.engine.memcg_create("a", None, Some(PAGE_BYTES)), rig.tenant("b"));
        let (taken, other) = (rig.create("x"), rig.create("y"));
        drop(write(&taken, &a, 0));
        let writer = {
            let (other, a) = (other.clone(), Arc::clone(&a));
            thread::spawn(move || drop(write(&other, &a, 0)))
        };
        drop(write(&taken, &b, 0));
        writer.join().unwrap();
        stuck.release();
        rig.sync();
        [&full, &a, &b].into_iter().for_each(|memcg| assert!(rig.engine.memcg_offline(memcg)));
        drop((held, full, a, b, taken, other));
        rig.finish();
    });
}

/// When the writers arrive, the file's mode is waiting for write-back, so the file belongs to the root until the mode
/// is written.
#[test]
fn writers_of_two_tenants_open_a_file_on_a_list_of_the_root() {
    check("contested first", 1000, || {
        let rig = Rig::new(UmountForm::PerSb, Answers::Inline);
        let (a, b) = (rig.tenant("a"), rig.tenant("b"));
        let inode = rig.volume.make(&rig.volume.root().unwrap(), "x", NewNode::File, 0o4755).unwrap();
        let file = File::open(&inode).unwrap();
        file.set_len(2 * PAGE_BYTES).unwrap();
        rig.volume.kill_suidgid(&inode).unwrap();
        let writers = [(0, &a), (1, &b)].map(|(index, memcg)| {
            let (inode, memcg) = (inode.clone(), Arc::clone(memcg));
            thread::spawn(move || drop(write(&inode, &memcg, index)))
        });
        file.fsync().unwrap();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        rig.eventually("consistent counts", || rig.engine.check_counts().is_ok());
        assert!(rig.engine.memcg_offline(&a) && rig.engine.memcg_offline(&b));
        drop((a, b, file, inode));
        rig.finish();
    });
}

/// The flusher has used up its slots in the middle of a file that a sync then finishes.
#[test]
fn an_inode_cleaned_while_its_flusher_is_blocked_is_listed_when_dirtied_again() {
    check("blocked", 1000, || {
        let rig = Rig::new(UmountForm::PerSb, Answers::Threaded);
        let a = rig.tenant("a");
        let inode = rig.create("x");
        let file = File::open_for(&inode, &a).unwrap();
        file.write_at(0, &[7; 7 * PAGE_BYTES as usize]).unwrap();
        file.fsync().unwrap();
        drop(write(&inode, &a, 0));
        rig.eventually("consistent counts", || rig.engine.check_counts().is_ok());
        assert!(rig.engine.memcg_offline(&a));
        drop((a, file, inode));
        rig.finish();
    });
}
