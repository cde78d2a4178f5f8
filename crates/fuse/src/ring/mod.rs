//! FUSE over io_uring: requests of each CPU arrive in a queue of that CPU, whose thread stays there.
//!
//! A client and the thread that serves it run on the same CPU, so neither waits for another CPU to wake up. A reply and
//! the wait for the next request are one system call. Interrupts, forgets, notifications and INIT still use
//! `/dev/fuse`, which the pool reads.
//!
//! # Invariants
//! R1. The kernel waits with all requests of the connection until each CPU that the machine may ever have has an entry
//!     in its queue. So everything that may fail is prepared before INIT is answered.
//! R2. The thread of a queue never blocks in a handler, since no other thread can take the requests in its entries. A call
//!     that may block goes to [`Workers`].
//! R3. A request keeps its entry until it is answered. The thread adds entries before all are used, so a held reply takes
//!     no entry from others.
//! R4. Only the thread of a queue submits to its ring: the kernel completes a command on the thread that submitted it.
//! R5. The payload of a WRITE is used only until its handler returns. If the write then waits, the memory of the payload is
//!     given back. Of the other entries, those with the memory of large writes are limited by [`KEPT_BYTES`].
//!
//! # Lock order
//! The locks of [`Gate`], of a queue and of the workers are leaves.

mod queue;
mod sys;
mod thread;
mod workers;

use std::io::IoSlice;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::{Arc, thread as threads};

use crate::TRANSPORT;
use crate::session::Shared;
use queue::Queue;
use thread::{Prepared, Sizes};

pub(crate) use queue::RingSlot;
pub use workers::Workers;

/// CPUs that the machine may have, in ranges.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";
/// Entries of all queues together, as long as few are in use, and bounds for one queue. Each takes half a KiB of the
/// kernel's memory.
const ENTRIES: usize = 4096;
const ENTRIES_OF_QUEUE: RangeInclusive<usize> = 64..=1024;
/// Memory of large payloads of writes that the entries of all queues together keep for the next ones, and the least number
/// of entries that one queue keeps it for.
const KEPT_BYTES: usize = 64 << 20;
const KEPT_OF_QUEUE: usize = 8;
/// The kernel refuses smaller payloads.
const PAYLOAD_MIN: usize = 8192;

/// Why requests do not come over io_uring.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RingError {
    /// The session did not ask for it.
    #[error("it was not asked for")]
    Unwanted,
    /// The kernel does not offer it.
    #[error(
        "the kernel does not offer it: it needs Linux 6.14 and `echo Y > /sys/module/fuse/parameters/enable_uring`"
    )]
    NotOffered,
    /// The kernel has refused an entry.
    #[error("the kernel has refused it: its log says why")]
    Refused,
    /// The number of CPUs is unknown.
    #[error("cannot read {POSSIBLE_CPUS}")]
    Cpus,
    /// A ring cannot be made.
    #[error("cannot make a ring of io_uring: {0}")]
    Ring(Errno),
    /// A thread cannot be started.
    #[error("cannot start a thread for each CPU")]
    Thread,
}

/// The queues of a session. Dropping it ends their threads, unless they serve.
pub(crate) struct Rings {
    queues: Vec<Arc<Queue>>,
    gate: Arc<Gate>,
}

/// Where the threads wait for their session.
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    ready: usize,
    failed: Option<Errno>,
    session: Option<Arc<Shared>>,
    is_closed: bool,
}

impl Rings {
    /// Prepares a queue for each CPU (R1). `max_write` is the largest payload of a WRITE, and `threads_max` limits the
    /// threads for calls that block.
    pub(crate) fn prepare(device: BorrowedFd<'_>, max_write: u32, threads_max: usize) -> Result<Self, RingError> {
        let cpus = possible_cpus().ok_or(RingError::Cpus)?;
        let gate = Arc::new(Gate { state: Mutex::new(TRANSPORT, GateState::default()), changed: Condvar::new() });
        let workers = Arc::new(Workers::new(threads_max));
        let mut rings = Self { queues: Vec::new(), gate };
        let payload_bytes = (max_write as usize).max(PAYLOAD_MIN).next_multiple_of(rustix::param::page_size());
        let entries = (ENTRIES / usize::from(cpus)).clamp(*ENTRIES_OF_QUEUE.start(), *ENTRIES_OF_QUEUE.end());
        let kept = (KEPT_BYTES / payload_bytes / usize::from(cpus)).max(KEPT_OF_QUEUE);
        let sizes = Sizes { payload_bytes, entries, kept };
        for number in 0..cpus {
            let queue = Arc::new(Queue::new(number).map_err(RingError::Ring)?);
            rings.queues.push(Arc::clone(&queue));
            let (gate, workers, device) = (Arc::clone(&rings.gate), Arc::clone(&workers), device.as_raw_fd());
            let work = move || {
                let prepared = Prepared::new(queue, device, sizes);
                if let Some((prepared, session)) = gate.pass(prepared) {
                    prepared.serve(session, workers);
                }
            };
            let started = threads::Builder::new().name(format!("sw-ring-{number}")).spawn(work);
            started.map_err(|_| RingError::Thread)?;
        }
        rings.gate.wait(rings.queues.len())?;
        Ok(rings)
    }

    /// Number of queues.
    ///
    /// # Errors
    /// `Refused`: requests come over the device.
    pub(crate) fn queues(&self) -> Result<usize, RingError> {
        let is_refused = self.queues.iter().any(|queue| queue.is_refused());
        if is_refused { Err(RingError::Refused) } else { Ok(self.queues.len()) }
    }

    /// Lets the threads serve `session`. INIT has been answered.
    pub(crate) fn start(&self, session: &Arc<Shared>) {
        self.gate.state.lock().session = Some(Arc::clone(session));
        self.gate.changed.notify_all();
    }

    /// The session has ended: the threads end too.
    pub(crate) fn end(&self) {
        self.gate.close();
        for queue in &self.queues {
            queue.end();
            queue.wake();
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        self.gate.close();
    }
}

impl Gate {
    /// Waits until `threads` are ready.
    fn wait(&self, threads: usize) -> Result<(), RingError> {
        let mut state = self.state.lock();
        loop {
            if let Some(errno) = state.failed {
                return Err(RingError::Ring(errno));
            }
            if state.ready == threads {
                return Ok(());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Announces the calling thread, and waits for the session. `None` if there will be none.
    fn pass(&self, prepared: Result<Prepared, Errno>) -> Option<(Prepared, Arc<Shared>)> {
        let mut state = self.state.lock();
        let prepared = match prepared {
            Ok(prepared) => {
                state.ready += 1;
                Some(prepared)
            }
            Err(errno) => {
                state.failed = Some(errno);
                None
            }
        };
        self.changed.notify_all();
        let prepared = prepared?;
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(session) = &state.session {
                return Some((prepared, Arc::clone(session)));
            }
            self.changed.wait(&mut state);
        }
    }

    fn close(&self) {
        let session = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.session.take()
        };
        drop(session);
        self.changed.notify_all();
    }
}

/// Copies `parts` to the front of `to`, and returns their length.
///
/// # Errors
/// `INVAL` if they are longer.
fn gather(parts: &[IoSlice<'_>], to: &mut [u8]) -> Result<usize, Errno> {
    let mut len = 0;
    for part in parts {
        to.get_mut(len..len + part.len()).ok_or(Errno::INVAL)?.copy_from_slice(part);
        len += part.len();
    }
    Ok(len)
}

/// The number of CPUs that the machine may ever have: the kernel wants as many queues.
fn possible_cpus() -> Option<u16> {
    count_of(&std::fs::read_to_string(POSSIBLE_CPUS).ok()?)
}

/// The number of CPUs in a list of ranges such as `0-3,8`.
fn count_of(list: &str) -> Option<u16> {
    list.trim().split(',').try_fold(0_u16, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::count_of;

    #[test]
    fn ranges_of_cpus_are_counted() {
        assert_eq!((count_of("0\n"), count_of("0-1\n"), count_of("0-3,8,10-11")), (Some(1), Some(2), Some(7)));
        assert_eq!((count_of(""), count_of("3-1"), count_of("0-65535"), count_of("x")), (None, None, None, None));
    }
}
