//! The thread of one queue.

use std::io::IoSlice;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use slackwater_sync::shim::Arc;

use super::queue::{Answer, Queue, RingSlot, SlotReply};
use super::sys::{Commands, Completion, OwnedEntry};
use super::workers::Workers;
use crate::parse::{copy_entry, is_write, parse, parse_write_entry};
use crate::pool::Context;
use crate::session::{Ended, Shared};

/// Limit of a queue's entries. Beyond it requests wait.
const ENTRIES_MAX: usize = 16 << 10;
/// Payloads of writes up to this size keep their memory, as over the device.
const SMALL_PAYLOAD: usize = 64 << 10;

/// A queue before its session is known.
pub(super) struct Prepared {
    queue: Arc<Queue>,
    commands: Commands,
    sizes: Sizes,
}

/// Sizes of a queue's entries.
#[derive(Copy, Clone)]
pub(super) struct Sizes {
    /// A multiple of the page size.
    pub(super) payload_bytes: usize,
    /// Entries that are added at once. A request that finds none free waits until another one of its queue is answered,
    /// whatever is added meanwhile. So more are added while half of these are free.
    pub(super) entries: usize,
    /// Entries that keep the memory of a large write for the next one.
    pub(super) kept: usize,
}

/// The entries that keep the memory of a large write (R5 of the ring).
#[derive(Default)]
struct Kept {
    /// Whether each entry is kept, by the entry's number.
    is_kept: Vec<bool>,
    count: usize,
}

impl Kept {
    /// Adds an entry if fewer than `most` are kept. Returns whether it is kept.
    fn keep(&mut self, index: usize, most: usize) -> bool {
        if self.is_kept.len() <= index {
            self.is_kept.resize(index + 1, false);
        }
        if !self.is_kept[index] && self.count < most {
            self.is_kept[index] = true;
            self.count += 1;
        }
        self.is_kept[index]
    }

    fn remove(&mut self, index: usize) {
        if let Some(is_kept) = self.is_kept.get_mut(index)
            && std::mem::take(is_kept)
        {
            self.count -= 1;
        }
    }
}

impl Prepared {
    /// Makes the ring of the calling thread, which stays on the CPU of the queue if it may run there.
    pub(super) fn new(queue: Arc<Queue>, device: RawFd, sizes: Sizes) -> Result<Self, Errno> {
        let mut cpus = CpuSet::new();
        if usize::from(queue.number) < CpuSet::MAX_CPU {
            cpus.set(queue.number.into());
            // In a container the CPU may belong to others. The kernel still needs the queue.
            let _ = sched_setaffinity(None, &cpus);
        }
        let commands = Commands::new(device, queue.number)?;
        Ok(Self { queue, commands, sizes })
    }

    /// Serves the session until it ends.
    pub(super) fn serve(self, session: Arc<Shared>, workers: Arc<Workers>) {
        let Self { queue, commands, sizes } = self;
        queue.make_own();
        let served = Arc::clone(&session);
        let thread = Thread {
            commands,
            sizes,
            writes: Vec::new(),
            new_writes: Vec::new(),
            kept: Kept::default(),
            taken: 0,
            lost: 0,
            has_served: false,
            message: Vec::new(),
            queue: Arc::clone(&queue),
            session,
            workers,
        };
        let ended = catch_unwind(AssertUnwindSafe(|| thread.run()));
        queue.end();
        if let Some(errno) = ended.map_or(Some(Errno::IO), Result::err) {
            // Its requests would wait forever.
            tracing::error!(%errno, queue = queue.number, "a queue of the ring has failed");
            served.end_from_outside(Ended::Failed(errno));
        }
    }
}

/// Whether the kernel has ended the connection.
fn is_end(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED)
}

struct Thread {
    commands: Commands,
    sizes: Sizes,
    /// Entries of WRITE requests, by number, until they are answered.
    writes: Vec<Option<OwnedEntry>>,
    /// Numbers of those whose handlers have returned since the last wait.
    new_writes: Vec<u32>,
    kept: Kept,
    /// Entries with a request that is not answered, and lost ones.
    taken: usize,
    lost: usize,
    /// A request has come.
    has_served: bool,
    message: Vec<u8>,
    queue: Arc<Queue>,
    session: Arc<Shared>,
    workers: Arc<Workers>,
}

impl Thread {
    fn run(mut self) -> Result<(), Errno> {
        self.commands.expect_wake(self.queue.wake_fd())?;
        self.commands.add(self.sizes.entries, self.sizes.payload_bytes)?;
        let (mut answers, mut completed) = (Vec::new(), Vec::new());
        loop {
            self.queue.take_answers(&mut answers);
            answers.drain(..).try_for_each(|answer| self.send(answer))?;
            self.free_waiting_payloads();
            self.commands.wait(&mut completed)?;
            for completion in completed.drain(..) {
                if self.session.has_ended() {
                    return Ok(());
                }
                match completion {
                    Completion::Woken => self.commands.expect_wake(self.queue.wake_fd())?,
                    Completion::Request(entry) => self.handle(entry),
                    Completion::Failed(errno) if is_end(errno) => return Ok(()),
                    Completion::Failed(errno) if !self.has_served => {
                        // The kernel has gone back to the device, for all queues.
                        tracing::warn!(%errno, "the kernel refused an entry of the ring: requests come over /dev/fuse");
                        self.queue.refuse();
                        return Ok(());
                    }
                    Completion::Failed(errno) => self.lose_entry(errno)?,
                }
            }
            self.add_entries();
        }
    }

    /// The kernel has refused a command of an entry, for example because it has no memory. Others go on.
    fn lose_entry(&mut self, errno: Errno) -> Result<(), Errno> {
        tracing::error!(%errno, queue = self.queue.number, "an entry of the ring is lost");
        self.taken += 1;
        self.lost += 1;
        if self.lost == self.commands.entries() { Err(errno) } else { Ok(()) }
    }

    /// Adds entries if few are free.
    fn add_entries(&mut self) {
        let entries = self.commands.entries();
        if entries - self.taken >= self.sizes.entries / 2 || entries >= ENTRIES_MAX {
            return;
        }
        if let Err(errno) = self.commands.add(self.sizes.entries, self.sizes.payload_bytes) {
            tracing::warn!(%errno, queue = self.queue.number, "no memory for more requests at once");
        }
        if self.commands.entries() >= ENTRIES_MAX {
            tracing::warn!(queue = self.queue.number, "{ENTRIES_MAX} requests of one CPU are unanswered; others wait");
        }
    }

    /// Passes an answer to the kernel, with the next wait.
    fn send(&mut self, answer: Answer) -> Result<(), Errno> {
        let Answer { unique, reply } = answer;
        let entry = match reply {
            SlotReply::InEntry(entry) => entry,
            SlotReply::OfWrite { index, error, count } => {
                let place = index as usize;
                let Some(mut entry) = self.writes.get_mut(place).and_then(Option::take) else { return Ok(()) };
                if entry.request_bytes() > SMALL_PAYLOAD && !self.kept.keep(place, self.sizes.kept) {
                    entry.free_payload();
                }
                entry.put(unique, error, &[IoSlice::new(count.bytes())])?;
                entry
            }
        };
        self.commands.commit(entry, unique)?;
        self.taken -= 1;
        Ok(())
    }

    /// Frees the payloads of writes that wait: their handlers have kept a copy of what they may keep.
    fn free_waiting_payloads(&mut self) {
        for index in self.new_writes.drain(..) {
            let place = index as usize;
            if let Some(entry) = &mut self.writes[place] {
                entry.free_payload();
                self.kept.remove(place);
            }
        }
    }

    /// Handles the request in an entry.
    fn handle(&mut self, entry: OwnedEntry) {
        self.taken += 1;
        self.has_served = true;
        if !self.session.enter() {
            return self.session.leave();
        }
        let header = entry.header();
        let cx = Context::in_ring(&self.workers);
        let index = entry.index();
        if is_write(&header) {
            // Its handler reads the payload, perhaps after another thread has answered.
            let slot = RingSlot::of_write(Arc::clone(&self.queue), index);
            self.session.dispatch_entry(&cx, parse_write_entry(&header, entry.payload()), slot);
            let place = index as usize;
            if self.writes.len() <= place {
                self.writes.resize_with(place + 1, || None);
            }
            self.writes[place] = Some(entry);
            self.new_writes.push(index);
        } else {
            let request = copy_entry(&header, entry.payload(), &mut self.message).and_then(parse);
            let slot = RingSlot::with_entry(Arc::clone(&self.queue), entry);
            self.session.dispatch_entry(&cx, request, slot);
        }
        self.session.leave();
    }
}
