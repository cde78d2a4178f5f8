//! Probe of the kernel's page cache: does a cached read see every write that went around the cache?
//!
//! Writers bypass the kernel's page cache and readers use it. That is correct only if the kernel drops a cached page
//! after each write around it. Some kernels do not for a page that is read while the write is in progress: the old page
//! stays cached after the write. So each mount starts with a probe on a one-page file, which exists only during the
//! probe, under an unguessable name, and in no backend. Until the probe has passed, and if it fails, readers bypass the
//! cache as well.
//!
//! # Invariants
//! P1. No request for the probe file reaches the volume: the volume gives its node number to no inode. None of these
//!     requests is answered with ENOSYS, which the kernel would apply to the whole mount.
//! P2. A held write is answered before the probe ends.
//! P3. Closing the file needs no reply. A process that is killed within the probe closes the file when no thread
//!     answers any more.
//! P4. All other calls are made on threads that have no descriptor of the connection ([`own_mount`]).
//!
//! # Lock order
//! The file's lock is a leaf; nothing is sent under it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use slackwater_fuse::abi::{Attr, AttrOut, EntryOut, ROOT_ID, fopen};
use slackwater_fuse::own_mount;
use slackwater_fuse::{Delivery, Operation, Payload, Reply, RequestHeader};
use slackwater_sync::Completion;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};

use crate::lock_order::LAST;

/// Number of the probe file's node. No node of a volume has it.
pub(crate) const NODE: u64 = u64::MAX;
const BYTES: usize = 4096;
/// How long a write may be in progress; only a failing probe takes that long.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The probe file: one page filled with one byte value.
pub(crate) struct ProbeFile {
    name: OsString,
    /// Whether the name exists.
    is_there: AtomicBool,
    state: Mutex<State>,
    /// Completed when a write is held.
    holding: Completion,
    /// Completed when the held write may be answered.
    seen: Completion,
}

struct State {
    value: u8,
    /// Whether to hold the next write.
    holds: bool,
    held: Option<(Reply, u8)>,
}

impl ProbeFile {
    pub(crate) fn new() -> Self {
        let random = || RandomState::new().hash_one(NODE);
        Self {
            name: format!(".slackwater-probe-{:016x}{:016x}", random(), random()).into(),
            is_there: AtomicBool::new(true),
            state: Mutex::new(LAST, State { value: 0, holds: false, held: None }),
            holding: Completion::new(),
            seen: Completion::new(),
        }
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Whether a request is about this file.
    #[inline]
    pub(crate) fn matches(&self, header: &RequestHeader, op: &Operation<'_>) -> bool {
        match header.node_id {
            // It cannot be found by a forged file handle.
            NODE => !matches!(op, Operation::Lookup { .. }),
            ROOT_ID => {
                matches!(op, Operation::Lookup { name } if *name == self.name) && self.is_there.load(Ordering::Acquire)
            }
            _ => false,
        }
    }

    /// Answers a request about this file. If the answer does not arrive, nothing needs to be undone.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the probe asks for no more")]
    pub(crate) fn answer(&self, op: &Operation<'_>, payload: Payload<'_>, reply: Reply) {
        let _: Delivery = match op {
            Operation::Lookup { .. } => reply.entry(&EntryOut { nodeid: NODE, attr: attr(), ..EntryOut::default() }),
            Operation::Getattr(_) => reply.attr(&AttrOut { attr: attr(), ..AttrOut::default() }),
            Operation::Open(args) => {
                let is_writable = OFlags::from_bits_retain(args.flags).intersects(OFlags::WRONLY | OFlags::RDWR);
                let direct = if is_writable { fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES } else { 0 };
                reply.open(0, direct | fopen::NOFLUSH) // P3
            }
            Operation::Read(args) => {
                let value = self.state.lock().value;
                let rest = BYTES.saturating_sub(args.offset as usize).min(args.size as usize);
                reply.bytes(&[value; BYTES][..rest])
            }
            Operation::Write(_) => return self.write(payload.bytes(), reply),
            Operation::Release(_) => reply.empty(),
            Operation::Getxattr { .. } => reply.error(Errno::NODATA),
            _ => reply.error(Errno::OPNOTSUPP),
        };
    }

    fn write(&self, bytes: &[u8], reply: Reply) {
        let value = bytes.first().copied().unwrap_or_default();
        let mut state = self.state.lock();
        if std::mem::take(&mut state.holds) {
            state.held = Some((reply, value));
            drop(state);
            self.holding.complete_all();
            return;
        }
        state.value = value;
        drop(state);
        let _ = reply.write(bytes.len() as u32);
    }

    fn hold_next_write(&self) {
        self.state.lock().holds = true;
    }

    /// Answers the held write (P2).
    fn release(&self) {
        let mut state = self.state.lock();
        state.holds = false;
        let held = state.held.take();
        if let Some((_, value)) = &held {
            state.value = *value;
        }
        drop(state);
        if let Some((reply, _)) = held {
            let _ = reply.write(BYTES as u32);
        }
    }

    /// Runs the probe in a mount at `mountpoint` whose requests for the file come here. Returns true if the cache is
    /// coherent; the file's name does not exist afterwards.
    ///
    /// # Errors
    /// The probe could not be run.
    ///
    /// # Blocking
    /// For the threads that serve the mount; the caller is not one of them.
    pub(crate) fn run(self: &Arc<Self>, mountpoint: &Path) -> io::Result<bool> {
        let (probe, path) = (Arc::clone(self), mountpoint.join(&self.name));
        let seen = Seen(Arc::clone(self));
        let outcome = own_mount::start(move || {
            let _seen = seen;
            probe.read_around_writes(&path)
        })
        .and_then(|reading| {
            self.seen.wait();
            self.release();
            reading.join()
        });
        self.end();
        outcome
    }

    /// Makes the name again, for a probe that has not run.
    pub(crate) fn begin(&self) {
        self.is_there.store(true, Ordering::Release);
    }

    /// Removes the name.
    pub(crate) fn end(&self) {
        self.is_there.store(false, Ordering::Release);
    }

    fn read_around_writes(&self, path: &Path) -> io::Result<bool> {
        let reader = File::open(path)?;
        let writer = File::options().write(true).open(path)?;
        let read = || -> io::Result<u8> {
            let mut page = [0; BYTES];
            reader.read_exact_at(&mut page, 0)?;
            Ok(page[0])
        };
        // A page that is cached when it is written.
        read()?;
        writer.write_all_at(&[1; BYTES], 0)?;
        if read()? != 1 {
            return Ok(false);
        }
        // A page that is cached again while it is written.
        self.hold_next_write();
        let written = Arc::new(Completion::new());
        let done = Arc::clone(&written);
        let write = move || {
            let outcome = writer.write_all_at(&[2; BYTES], 0);
            drop(writer);
            done.complete_all();
            outcome
        };
        let thread = own_mount::start_beside(write)?;
        if self.holding.wait_timeout(TIMEOUT) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let before = read()?;
        self.seen.complete_all();
        if written.wait_timeout(TIMEOUT) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(before == 1 && read()? == 2)
    }
}

/// Completes at its end, however the probe ends (P2).
struct Seen(Arc<ProbeFile>);

impl Drop for Seen {
    fn drop(&mut self) {
        self.0.seen.complete_all();
    }
}

fn attr() -> Attr {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    Attr { ino: NODE, size: BYTES as u64, mode: 0o100_600, nlink: 1, uid, gid, blksize: 4096, ..Attr::default() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use std::fs;

    use slackwater_fuse::mount::{MountOptions, mount, unmount};
    use slackwater_sync::shim::atomic::AtomicUsize;

    use super::*;
    use slackwater_fuse::{Context, DevFuse, FileSystem, InitOptions, Pool, PoolOptions, Session};

    /// A root with the probe file. Reads from number `stale_from` on return `stale_value`, as from a kernel that has
    /// kept a page.
    struct ProbeOnly {
        probe: Arc<ProbeFile>,
        reads: AtomicUsize,
        stale_from: usize,
        stale_value: u8,
        flushes: Arc<AtomicUsize>,
    }

    impl FileSystem for ProbeOnly {
        #[allow(clippy::wildcard_enum_match_arm, reason = "the probe asks for no more")]
        fn handle(
            &self,
            _: &Context<'_>,
            header: &RequestHeader,
            op: Operation<'_>,
            payload: Payload<'_>,
            reply: Reply,
        ) {
            if matches!(op, Operation::Flush(_)) {
                self.flushes.fetch_add(1, Ordering::SeqCst);
            }
            let is_read = matches!(op, Operation::Read(_));
            if is_read && self.reads.fetch_add(1, Ordering::SeqCst) >= self.stale_from {
                let _ = reply.bytes(&[self.stale_value; BYTES]);
            } else if self.probe.matches(header, &op) {
                self.probe.answer(&op, payload, reply);
            } else if matches!(op, Operation::Getattr(_)) {
                let _ =
                    reply.attr(&AttrOut { attr: Attr { mode: 0o040_755, nlink: 2, ..attr() }, ..AttrOut::default() });
            } else {
                let _ = reply.error(Errno::NOENT);
            }
        }
    }

    fn probe(number: u32, stale_from: usize, stale_value: u8) -> bool {
        let path = std::env::temp_dir().join(format!("slackwater-probe-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let pool = Pool::new(PoolOptions::default()).unwrap();
        let device = mount(&path, &MountOptions::default()).expect("this test mounts: run it as root, with /dev/fuse");
        let probe = Arc::new(ProbeFile::new());
        let (reads, flushes) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let fs = ProbeOnly { probe: Arc::clone(&probe), reads, stale_from, stale_value, flushes: Arc::clone(&flushes) };
        let transport = DevFuse::new(device).unwrap();
        let session = Session::start(&pool, transport, &InitOptions::default(), Arc::new(fs)).unwrap();
        let outcome = probe.run(&path);
        let gone = File::open(path.join(probe.name())).is_err();
        unmount(&path, true).unwrap();
        let _ = session.wait_ended();
        fs::remove_dir(&path).unwrap();
        assert!(gone, "the probe is over");
        assert_eq!(flushes.load(Ordering::SeqCst), 0); // P3
        outcome.unwrap()
    }

    #[test]
    fn a_cache_that_follows_every_write_passes() {
        assert!(probe(0, usize::MAX, 0));
    }

    #[test]
    fn a_page_kept_after_a_write_is_detected() {
        assert!(!probe(1, 1, 0));
    }

    #[test]
    fn a_page_cached_again_during_a_write_is_detected() {
        assert!(!probe(2, 3, 1));
    }
}
