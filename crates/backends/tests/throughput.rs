//! Write throughput of a directory by units in flight, beside a plain loop of direct writes.
//!
//! `cargo test --release -p slackwater-backends --test throughput -- --ignored --nocapture`

#[allow(dead_code, reason = "shared with the conformance suite, which uses all of it")]
mod fixture;

use std::io::IoSlice;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use fixture::TempDir;
use rustix::fs::{CWD, Mode, OFlags, fdatasync, openat};
use rustix::io::{ReadWriteFlags, pwritev2};
use slackwater::BackendError;
use slackwater::backend::{Backend, Call, Done, SyncScope, WriteUnit};
use slackwater_arena::{Arena, ArenaConfig, FrameId, Gather, Pool};
use slackwater_backends::DirBackend;
use slackwater_testkit::conformance::Volume;

const UNIT: usize = 1 << 20;
const UNITS: u64 = 512;
const FRAMES: usize = UNIT / slackwater_arena::FRAME_BYTES;

/// A unit's worth of frames, held for reading; they may be held any number of times at once.
fn gather(arena: &Arc<Arena>, frames: &[FrameId]) -> Gather {
    let mut gather = Gather::new(arena.clone(), frames.len());
    assert!(frames.iter().all(|frame| gather.push(*frame)));
    gather
}

/// MB/s of `UNITS` units and a sync, `in_flight` at once.
fn through_calls(path: &Path, arena: &Arc<Arena>, frames: &[FrameId], in_flight: u64) -> u64 {
    let backend = Arc::new(DirBackend::open(path).expect("a directory can be opened"));
    let volume = Volume::new(backend.clone());
    let file = volume.file(&volume.root(), format!("{in_flight} in flight"));
    let (send, answers) = mpsc::channel::<Result<usize, BackendError>>();
    let start = Instant::now();
    for unit in 0..UNITS + in_flight {
        if unit >= in_flight {
            assert_eq!(answers.recv().expect("answered").ok(), Some(UNIT));
        }
        if unit < UNITS {
            let send = send.clone();
            let done = Done::new(move |written| send.send(written).expect("the test waits"));
            let frames = gather(arena, frames);
            let unit = WriteUnit::detached(file.clone(), unit * UNIT as u64, frames, UNIT, done);
            backend.submit(Call::Write(unit));
        }
    }
    volume.sync(&file, SyncScope::Data).expect("it can be synced");
    let stats = backend.stats();
    assert_eq!(stats.direct_writes + stats.dontcache_writes + stats.plain_writes, UNITS);
    per_second(start)
}

/// The same by one thread that makes the system call itself.
fn in_a_loop(path: &Path, arena: &Arc<Arena>, frames: &[FrameId]) -> u64 {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT;
    let file = openat(CWD, path.join("loop"), flags, Mode::RUSR | Mode::WUSR).expect("direct I/O on this disk");
    let frames = gather(arena, frames);
    let slices: Vec<_> = frames.slices(UNIT).map(IoSlice::new).collect();
    let start = Instant::now();
    for unit in 0..UNITS {
        let written = pwritev2(&file, &slices, unit * UNIT as u64, ReadWriteFlags::empty());
        assert_eq!(written, Ok(UNIT));
    }
    fdatasync(&file).expect("it can be synced");
    per_second(start)
}

fn per_second(start: Instant) -> u64 {
    (UNITS as f64 * UNIT as f64 / 1e6 / start.elapsed().as_secs_f64()) as u64
}

#[test]
#[ignore = "long: writes 512 MiB sixteen times"]
fn throughput_by_units_in_flight_is_printed() {
    let arena = Arena::create(&ArenaConfig::memfd(16 << 20)).expect("memory for an arena");
    let mut frames = Vec::new();
    assert_eq!(arena.alloc_many(Pool::Normal, FRAMES, &mut frames), FRAMES);
    for round in 0..4 {
        let dir = TempDir::new();
        let rate = |in_flight| through_calls(dir.path(), &arena, &frames, in_flight);
        let alone = in_a_loop(dir.path(), &arena, &frames);
        println!("round {round}, MB/s: loop {alone}, 1 in flight {}, 4: {}, 8: {}", rate(1), rate(4), rate(8));
    }
}
