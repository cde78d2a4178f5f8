//! The trace events of write-back: every event listed in `docs/EVENTS.md`, with its fields.

#![cfg(not(any(slackwater_loom, slackwater_shuttle)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use slackwater::backend::{Backend, Call, Limits, MemBackend, NewNode};
use slackwater::{
    Engine, ErrorKind, File, InodeRef, ManualClock, PAGE_BYTES, SuperBlock, Timestamp, Tunables, UmountOptions,
    WaitFor, WriteRequest, Written,
};
use slackwater_arena::{Arena, ArenaConfig};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const PAGE: usize = PAGE_BYTES as usize;

/// Events and their fields. All have `volume`, by which each test finds its own events.
const CATALOGUE: [(&str, &str); 24] = [
    (
        "bdi_dirty_ratelimit",
        "avg_write_bw_kib_s balanced_dirty_ratelimit_kib_s cgroup dirty_rate_kib_s dirty_ratelimit_kib_s task_ratelimit_kib_s write_bw_kib_s",
    ),
    ("commit_start", "inodes"),
    ("file_check_and_advance_wb_err", "ino kind new old"),
    ("filemap_set_wb_err", "errseq ino kind"),
    ("global_dirty_state", "bg_thresh cgroup dirty limit thresh writeback"),
    ("grace_period_begin", "cgroup contexts"),
    ("grace_period_end", "cgroup contexts"),
    ("balance_dirty_pages", "by_tenant cgroup pause wb_dirty"),
    ("wbc_writepage", "ino len_bytes offset_bytes sync"),
    ("writeback_bdi_register", "frames"),
    ("writeback_dirty_inode_enqueue", "cgroup dirtied_when_ms ino"),
    ("writeback_exec", "cgroup older_ms reason"),
    ("writeback_mark_inode_dirty", "flags ino"),
    ("writeback_pages_written", "ino pages"),
    ("writeback_queue", "cgroup older_ms reason"),
    ("writeback_queue_io", "age_ms cgroup moved older_ms reason"),
    ("writeback_sb_inodes_requeue", "age_ms cgroup dirtied_when_ms ino"),
    ("writeback_single_inode", "cgroup dirtied_when_ms ino stop writeback_index wrote"),
    ("writeback_single_inode_start", "age_ms cgroup ino nr_to_write"),
    ("writeback_start", "cgroup nr_pages reason"),
    ("writeback_wait", "cgroup reason wants"),
    ("writeback_wake_background", "cgroup"),
    ("writeback_write_inode", "ino ok"),
    ("writeback_written", "cgroup reason wrote"),
];

/// All recorded events, as field names and formatted values.
static RECORDED: Mutex<Vec<Recorded>> = Mutex::new(Vec::new());

#[derive(Clone, Debug, Default)]
struct Recorded(BTreeMap<&'static str, String>);

impl Recorded {
    fn get(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    fn number(&self, field: &str) -> u64 {
        self.get(field).parse().unwrap()
    }
}

impl Visit for Recorded {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "slackwater::writeback"
    }

    fn event(&self, event: &Event<'_>) {
        let mut heard = Recorded::default();
        event.record(&mut heard);
        RECORDED.lock().unwrap().push(heard);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A memory backend that holds or refuses units while told to.
#[derive(Default)]
struct FlakyBackend {
    inner: MemBackend,
    holds: AtomicBool,
    refuses: AtomicBool,
    held: Mutex<Vec<Call>>,
}

impl FlakyBackend {
    fn release(&self) {
        self.holds.store(false, Ordering::SeqCst);
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.into_iter().for_each(|call| self.inner.submit(call));
    }
}

impl Backend for FlakyBackend {
    fn submit(&self, call: Call) {
        let Call::Write(unit) = call else { return self.inner.submit(call) };
        if self.refuses.load(Ordering::SeqCst) {
            unit.complete(Err(ErrorKind::Io.into()));
        } else if self.holds.load(Ordering::SeqCst) {
            self.held.lock().unwrap().push(Call::Write(unit));
        } else {
            self.inner.submit(Call::Write(unit));
        }
    }

    fn limits(&self) -> Limits {
        let mut limits = self.inner.limits();
        limits.units_in_flight = 4;
        limits
    }
}

/// A volume stepped by hand, except grace periods. Its name is in all its events.
struct Rig {
    name: &'static str,
    engine: Engine,
    clock: Arc<ManualClock>,
    backend: Arc<FlakyBackend>,
    volume: Arc<SuperBlock>,
}

impl Rig {
    fn new(name: &'static str) -> Self {
        static LISTENS: Once = Once::new();
        LISTENS.call_once(|| tracing::subscriber::set_global_default(Listener).unwrap());
        let arena = Arena::create(&ArenaConfig::memfd(16 << 20)).unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
        let engine = Engine::new(arena, clock.clone(), tunables);
        let backend = Arc::new(FlakyBackend::default());
        let volume = engine.mount(name, backend.clone()).unwrap();
        Self { name, engine, clock, backend, volume }
    }

    fn create(&self) -> InodeRef {
        self.volume.make(&self.volume.root().unwrap(), "file", NewNode::File, 0o644).unwrap()
    }

    fn pass_time(&self, seconds: u64) {
        for _ in 0..2 * seconds {
            self.clock.advance(Duration::from_millis(500));
            let _ = self.engine.step();
        }
    }

    /// The volume's events of this name, in order. Checks that each has the fields of the catalogue.
    fn all(&self, name: &str) -> Vec<Recorded> {
        let heard = RECORDED.lock().unwrap();
        let ours = |heard: &&Recorded| heard.get("volume") == self.name && heard.get("message") == name;
        let found: Vec<Recorded> = heard.iter().filter(ours).cloned().collect();
        let (_, fields) = CATALOGUE.iter().find(|(known, _)| *known == name).unwrap();
        for event in &found {
            let names: Vec<&str> =
                event.0.keys().copied().filter(|name| !["message", "volume"].contains(name)).collect();
            assert_eq!(names.join(" "), *fields, "{name}");
        }
        found
    }

    fn one(&self, name: &str, is_it: impl Fn(&Recorded) -> bool) -> Recorded {
        let all = self.all(name);
        all.iter().find(|event| is_it(event)).unwrap_or_else(|| panic!("no matching {name} in {all:?}")).clone()
    }

    fn any(&self, name: &str) -> Recorded {
        self.one(name, |_| true)
    }

    fn umount(self) {
        self.volume.umount(UmountOptions::default()).unwrap();
    }
}

#[test]
fn a_file_is_traced_from_its_first_dirty_page_until_it_is_durable() {
    let rig = Rig::new("flush");
    let inode = rig.create();
    let ino = inode.id().ino.to_string();
    let file = File::open(&inode).unwrap();
    file.write_at(0, &[1; 3 * PAGE]).unwrap();
    file.write_at(PAGE_BYTES, &[2; PAGE]).unwrap();
    assert_eq!(rig.all("writeback_mark_inode_dirty").len(), 1, "once, not for each write");
    assert_eq!(rig.any("writeback_dirty_inode_enqueue").get("ino"), ino);
    rig.pass_time(45);
    assert_eq!(rig.volume.status().bytes_left(), 0);
    let moved = rig.one("writeback_queue_io", |event| event.get("moved") == "1");
    assert_eq!((moved.get("reason"), moved.get("age_ms")), ("periodic", "30000"));
    assert_eq!(rig.any("writeback_bdi_register").get("volume"), "flush");
    assert!(rig.any("writeback_single_inode_start").number("age_ms") >= 30_000);
    let single = rig.any("writeback_single_inode");
    assert_eq!((single.get("wrote"), single.get("writeback_index"), single.get("ino")), ("3", "3", ino.as_str()));
    assert_eq!(rig.any("wbc_writepage").get("len_bytes"), (3 * PAGE).to_string());
    assert_eq!(rig.any("writeback_pages_written").get("pages"), "3");
    assert_eq!(rig.any("writeback_write_inode").get("ok"), "true");
    assert!(rig.one("writeback_written", |event| event.get("wrote") == "3").get("reason") == "periodic");
    assert_eq!(rig.all("writeback_start").len(), rig.all("writeback_written").len(), "each pass that begins also ends");
    assert!(rig.one("commit_start", |event| event.get("inodes") == "1").get("volume") == "flush");
    drop((file, inode));
    rig.umount();
}

#[test]
fn a_sync_is_queued_executed_and_ended() {
    let rig = Rig::new("sync");
    let file = File::open(&rig.create()).unwrap();
    file.write_at(0, &[1; PAGE]).unwrap();
    rig.volume.sync().unwrap();
    for name in ["writeback_queue", "writeback_exec", "writeback_start"] {
        assert_eq!(rig.any(name).get("reason"), "sync", "{name}");
    }
    let written = rig.any("writeback_written");
    assert_eq!((written.get("reason"), written.get("wrote")), ("sync", "1"));
    drop(file);
    rig.umount();
}

#[test]
fn an_error_is_traced_when_latched_and_when_reported() {
    let rig = Rig::new("error");
    let file = File::open(&rig.create()).unwrap();
    file.write_at(0, &[1; PAGE]).unwrap();
    rig.backend.refuses.store(true, Ordering::SeqCst);
    file.fsync().unwrap_err();
    let latched = rig.any("filemap_set_wb_err");
    assert_eq!(latched.get("kind"), ErrorKind::Io.to_string());
    let told = rig.any("file_check_and_advance_wb_err");
    assert_eq!(told.get("kind"), latched.get("kind"));
    assert_ne!(told.get("old"), told.get("new"));
    rig.backend.refuses.store(false, Ordering::SeqCst);
    file.fsync().unwrap();
    assert_eq!(rig.all("file_check_and_advance_wb_err").len(), 1, "reported only once");
    drop(file);
    rig.umount();
}

#[test]
fn a_throttled_writer_and_a_waiting_flusher_are_traced_with_the_reason() {
    let rig = Rig::new("throttle");
    let file = File::open(&rig.create()).unwrap();
    rig.backend.holds.store(true, Ordering::SeqCst);
    // 16 MiB are 4096 pages: writers run freely up to 30 % of them, and the limit is 50 %.
    let chunk = vec![1; 32 * PAGE];
    for n in 0..56 {
        let at = n * chunk.len() as u64;
        assert_eq!(
            file.write(WriteRequest::at(at).wait(WaitFor::Backend), &chunk).unwrap(),
            Written::Bytes(chunk.len())
        );
        let _ = file.balance_dirty_pages(file.memcg());
        if n >= 48 {
            rig.clock.advance(Duration::from_millis(100));
        }
    }
    let state = rig.any("global_dirty_state");
    assert!(state.number("bg_thresh") < state.number("thresh") && state.number("thresh") <= state.number("limit"));
    assert_eq!(rig.any("balance_dirty_pages").get("by_tenant"), "false");
    let rates = rig.any("bdi_dirty_ratelimit");
    assert!(rates.number("dirty_rate_kib_s") > 0 && rates.number("dirty_ratelimit_kib_s") > 0, "{rates:?}");
    assert!((1..=4).contains(&rig.all("bdi_dirty_ratelimit").len()), "every 200 ms, not at each poll");
    let _ = rig.any("writeback_wake_background");

    let _ = rig.engine.step();
    assert_eq!(rig.any("writeback_wait").get("reason"), "background");
    let _ = rig.any("writeback_sb_inodes_requeue");
    rig.backend.release();
    rig.volume.sync().unwrap();
    drop(file);
    rig.umount();
}

#[test]
fn a_switch_traces_its_grace_period() {
    let rig = Rig::new("switch");
    let (a, b) = (rig.engine.memcg_create("a", None, None), rig.engine.memcg_create("b", None, None));
    let inode = rig.create();
    for (memcg, rounds) in [(&a, 1), (&b, 10)] {
        for round in 0..rounds {
            let file = File::open_for(&inode, memcg).unwrap();
            file.write_at(round * PAGE_BYTES, &[7; PAGE]).unwrap();
            file.fsync().unwrap();
        }
    }
    let began = Instant::now();
    while inode.memcg().id() != b.id() {
        assert!(began.elapsed() < Duration::from_secs(60), "timed out waiting for the switch");
        let _ = rig.engine.step();
        std::thread::yield_now();
    }
    let (begin, end) = (rig.any("grace_period_begin"), rig.any("grace_period_end"));
    assert_eq!(begin.get("cgroup"), b.id().to_string());
    assert_eq!((begin.get("contexts"), end.get("contexts")), ("1", "1"));
    drop(inode);
    rig.umount();
}

#[test]
fn the_documentation_lists_every_event() {
    let catalogue = include_str!("../../../docs/EVENTS.md");
    for (name, fields) in CATALOGUE {
        let line = catalogue.lines().find(|line| line.starts_with('|') && line.contains(&format!("`{name}`")));
        let line = line.unwrap_or_else(|| panic!("{name} is not documented"));
        for field in fields.split(' ') {
            assert!(line.contains(&format!("`{field}`")) || field == "cgroup", "{name}: {field} in {line}");
        }
    }
}
