//! A minimal FUSE server: every write lands in memory and is answered at once.
//!
//! This is the upper bound of this transport's throughput on the machine. Without arguments it mounts on a temporary
//! directory, measures for about two seconds, and unmounts. With a directory it serves there until that is unmounted.
//! With the word `uring` before that, requests come over io_uring. Its only file is called `bare`. Needs root or
//! fusermount3.

use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use slackwater_fuse::abi::{Attr, AttrOut, EntryOut, ROOT_ID, fopen, init};
use slackwater_fuse::mount::{MountOptions, mount, unmount};
use slackwater_fuse::{
    Context, DevFuse, Errno, FileSystem, InitOptions, Operation, Payload, Pool, PoolOptions, Reply, RequestHeader,
    Session,
};

/// Payloads rotate through this much memory, so that they do not stay in the CPU's cache.
const RING: usize = 64 << 20;
const FILE: u64 = 2;
const FILE_BYTES: u64 = 1 << 30;
const DAY: u64 = 86_400;

/// A file system with one file, which accepts every write.
struct Bare;

fn attr(node: u64) -> Attr {
    let (mode, size) = if node == ROOT_ID { (0o040_755, 0) } else { (0o100_666, FILE_BYTES) };
    Attr { ino: node, mode, size, nlink: 1, blksize: 4096, ..Attr::default() }
}

impl FileSystem for Bare {
    fn handle(&self, _: &Context<'_>, header: &RequestHeader, op: Operation<'_>, payload: Payload<'_>, reply: Reply) {
        #[allow(clippy::wildcard_enum_match_arm, reason = "a minimal server")]
        let _ = match op {
            Operation::Write(_) => reply.write(payload.bytes().len() as u32),
            Operation::Lookup { name } if name == "bare" => {
                let entry = EntryOut { nodeid: FILE, entry_valid: DAY, attr_valid: DAY, ..EntryOut::default() };
                reply.entry(&EntryOut { attr: attr(FILE), ..entry })
            }
            Operation::Lookup { .. } => reply.error(Errno::NOENT),
            Operation::Getattr(_) => {
                reply.attr(&AttrOut { attr_valid: DAY, attr: attr(header.node_id), ..AttrOut::default() })
            }
            Operation::Open(_) => reply.open(0, fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES),
            Operation::Flush(_) | Operation::Release(_) => reply.empty(),
            _ => reply.error(Errno::NOSYS),
        };
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let pool = Pool::new(PoolOptions { landing_ring: RING, ..PoolOptions::default() })?;
    let mut words = std::env::args_os().skip(1).peekable();
    let uring = words.next_if(|word| word == "uring").is_some();
    if let Some(mountpoint) = words.next() {
        let session = serve(&pool, Path::new(&mountpoint), uring)?;
        println!("{:?}", session.wait_ended());
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("slackwater-bare-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let session = serve(&pool, &folder, uring).inspect_err(|_| drop(fs::remove_dir(&folder)))?;
    let measured = measure(&folder.join("bare"));
    unmount(&folder, false)?;
    println!("{:?}", session.wait_ended());
    fs::remove_dir(&folder)?;
    measured
}

fn serve(pool: &Pool, mountpoint: &Path, uring: bool) -> Result<Session, Box<dyn Error>> {
    let transport = DevFuse::new(mount(mountpoint, &MountOptions::default())?)?;
    let default = InitOptions::default();
    let wanted = default.wanted | if uring { init::OVER_IO_URING } else { 0 };
    let session = Session::start(pool, transport, &InitOptions { wanted, ..default }, Arc::new(Bare))?;
    if uring && let Err(error) = session.rings() {
        unmount(mountpoint, true)?;
        return Err(error.into());
    }
    Ok(session)
}

fn measure(path: &Path) -> Result<(), Box<dyn Error>> {
    for (size, clients) in [(4096, 1), (4096, 2), (1 << 20, 1), (1 << 20, 2)] {
        let client = || {
            let path = path.to_owned();
            thread::spawn(move || write_for(&path, size, Duration::from_millis(500)))
        };
        let clients: Vec<_> = (0..clients).map(|_| client()).collect();
        let number = clients.len();
        let mut times = Vec::new();
        for client in clients {
            times.extend(client.join().expect("a client")?);
        }
        times.sort();
        let (count, median) = (times.len() as f64 * 2.0, times[times.len() / 2]);
        let megabytes = count * size as f64 / 1e6;
        println!("{:5} KiB x {number}: p50 {median:>9.1?} {count:>8.0}/s {megabytes:>7.0} MB/s", size >> 10);
    }
    Ok(())
}

/// Durations of the writes.
fn write_for(path: &Path, size: usize, time: Duration) -> std::io::Result<Vec<Duration>> {
    let file = File::options().write(true).open(path)?;
    let bytes = vec![7; size];
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let before = Instant::now();
        file.write_all_at(&bytes, (times.len() * size) as u64 % FILE_BYTES)?;
        times.push(before.elapsed());
    }
    Ok(times)
}
