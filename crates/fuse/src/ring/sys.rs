//! The rings of io_uring and the memory of their entries, which the kernel and the session write in turn.
//!
//! # Invariants
//! E1. From the submission of an entry's command to its completion the kernel owns the entry's memory. Otherwise its one
//!     [`OwnedEntry`] does, from [`Commands::wait`] to [`Commands::commit`]. One that is dropped is never used again.
//! E2. The memory of entries lives until the ring is closed and each [`OwnedEntry`] is dropped.

#![allow(unsafe_code, reason = "commands point to memory, and the kernel writes there")]

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::slice;

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use slackwater_sync::shim::Arc;

use super::gather;
use crate::abi::{OutHeader, URING_ENT_IN_OUT, URING_HEADER_BYTES, UringCmdReq, UringCommand, UringEntInOut, Wire};
use crate::sys::Memory;

/// Commands that are submitted at once.
const SUBMISSIONS: u32 = 64;
const COMPLETIONS: u32 = 256;
/// Marks the end of a read of the eventfd.
const WAKE: u64 = u64::MAX;
/// Size of a submission.
const COMMAND_BYTES: usize = 128;
/// Place of a submission's field `len`.
const LEN_AT: usize = 24;
/// Space of a header, so that none shares a cache line with another.
const HEADER_STRIDE: usize = URING_HEADER_BYTES.next_multiple_of(128);

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Memory of some entries, untouched until each is used. The payloads come first, on pages of their own.
struct Chunk {
    memory: Memory,
    entries: usize,
    payload_bytes: usize,
}

// SAFETY: the chunk only gives addresses away; access to an entry is E1.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Reserves memory. `payload_bytes` is a multiple of the page size.
    fn new(entries: usize, payload_bytes: usize) -> Result<Self, Errno> {
        let memory = Memory::reserve(entries * (payload_bytes + HEADER_STRIDE))?;
        Ok(Self { memory, entries, payload_bytes })
    }

    fn payload(&self, number: usize) -> NonNull<u8> {
        assert!(number < self.entries, "entry {number} of {}", self.entries);
        // SAFETY: inside the mapping.
        unsafe { self.memory.start().add(number * self.payload_bytes) }
    }

    fn header(&self, number: usize) -> NonNull<u8> {
        assert!(number < self.entries, "entry {number} of {}", self.entries);
        // SAFETY: inside the mapping, behind the payloads.
        unsafe { self.memory.start().add(self.entries * self.payload_bytes + number * HEADER_STRIDE) }
    }
}

/// Where an entry is.
#[derive(Clone)]
struct Place {
    chunk: Arc<Chunk>,
    number: usize,
}

/// An entry with a request that is not answered.
pub(super) struct OwnedEntry {
    place: Place,
    index: u32,
}

impl OwnedEntry {
    /// The number of the entry in the queue.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// A copy of the header.
    pub(super) fn header(&self) -> [u8; URING_HEADER_BYTES] {
        // SAFETY: mapped, and E1: only the owner of `self` writes.
        unsafe { self.place.chunk.header(self.place.number).cast().read() }
    }

    /// Size of the request's payload, before the reply is written.
    pub(super) fn request_bytes(&self) -> usize {
        UringEntInOut::take(&mut &self.header()[URING_ENT_IN_OUT..]).map_or(0, |ends| ends.payload_sz as usize)
    }

    pub(super) fn payload(&self) -> &[u8] {
        let start = self.place.chunk.payload(self.place.number);
        // SAFETY: mapped, initialised as all anonymous memory, and E1: writing requires `&mut self`.
        unsafe { slice::from_raw_parts(start.as_ptr(), self.place.chunk.payload_bytes) }
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.place.chunk.payload(self.place.number);
        // SAFETY: as above, and `&mut self` excludes every other reference.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.place.chunk.payload_bytes) }
    }

    /// Gives the memory of the payload back to the system. The payload is zeroes then.
    pub(super) fn free_payload(&mut self) {
        let start = self.payload_mut().as_mut_ptr();
        // SAFETY: whole pages, which no other entry uses, and `&mut self` excludes every reference to them. Locked memory is
        // kept.
        let _ = unsafe { madvise(start.cast(), self.place.chunk.payload_bytes, Advice::LinuxDontNeed) };
    }

    /// Writes a reply.
    ///
    /// # Errors
    /// `INVAL` if it is too long.
    pub(super) fn put(&mut self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let bytes = gather(parts, self.payload_mut())?;
        let head = OutHeader { len: (size_of::<OutHeader>() + bytes) as u32, error, unique }.to_bytes();
        let ends = UringEntInOut { commit_id: unique, payload_sz: bytes as u32, ..UringEntInOut::default() };
        let header = self.place.chunk.header(self.place.number);
        // SAFETY: mapped, and `&mut self` excludes every other access.
        let header = unsafe { slice::from_raw_parts_mut(header.as_ptr(), URING_HEADER_BYTES) };
        header[..head.len()].copy_from_slice(&head);
        ends.put(&mut &mut header[URING_ENT_IN_OUT..]);
        Ok(())
    }
}

/// The end of a command.
pub(super) enum Completion {
    Woken,
    /// A request has arrived.
    Request(OwnedEntry),
    /// A command has failed; its entry is lost.
    Failed(Errno),
}

/// The ring of one queue, for the thread that made it.
pub(super) struct Commands {
    /// The ring is closed first: the memory below is the kernel's until then.
    ring: Ring,
    entries: Vec<Place>,
    woken: Box<[u8; 8]>,
    /// The device. It stays open as long as the session, which the thread has.
    device: RawFd,
    queue: u16,
}

impl Commands {
    /// A ring that only the calling thread may use.
    pub(super) fn new(device: RawFd, queue: u16) -> Result<Self, Errno> {
        let mut builder = Ring::builder();
        builder.setup_coop_taskrun().setup_cqsize(COMPLETIONS);
        let ring = builder.build(SUBMISSIONS).map_err(|error| errno_of(&error))?;
        Ok(Self { ring, entries: Vec::new(), woken: Box::default(), device, queue })
    }

    /// Number of entries.
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Adds entries. `payload_bytes` is a multiple of the page size.
    ///
    /// # Errors
    /// There is no memory. Refusals by the kernel are reported as failed completions.
    pub(super) fn add(&mut self, entries: usize, payload_bytes: usize) -> Result<(), Errno> {
        let chunk = Arc::new(Chunk::new(entries, payload_bytes)?);
        let part = |start: NonNull<u8>, bytes| libc::iovec { iov_base: start.as_ptr().cast(), iov_len: bytes };
        let parts: Vec<[libc::iovec; 2]> = (0..entries)
            .map(|number| [part(chunk.header(number), URING_HEADER_BYTES), part(chunk.payload(number), payload_bytes)])
            .collect();
        for (number, parts) in parts.iter().enumerate() {
            let at = parts.as_ptr().expose_provenance() as u64;
            let command = self.command(UringCommand::Register, 0).addr(Some(at)).build();
            let command = command.user_data(self.entries.len() as u64);
            // SAFETY: a submission is this many bytes, all of them initialised.
            let mut bytes: [u8; COMMAND_BYTES] = unsafe { std::mem::transmute(command) };
            // The library does not offer this field.
            bytes[LEN_AT..LEN_AT + 4].copy_from_slice(&(parts.len() as u32).to_ne_bytes());
            // SAFETY: as above, in the other direction: all fields are numbers.
            let command: squeue::Entry128 = unsafe { std::mem::transmute(bytes) };
            self.entries.push(Place { chunk: Arc::clone(&chunk), number });
            // SAFETY: the kernel reads `parts` during the submission, which is complete below. The entry is E1 and E2.
            unsafe { self.push(&command) }?;
        }
        self.submit()
    }

    /// Passes the reply in an entry to the kernel, and waits for the next request in it. Submitted with the next wait.
    pub(super) fn commit(&mut self, entry: OwnedEntry, unique: u64) -> Result<(), Errno> {
        let command = self.command(UringCommand::CommitAndFetch, unique).build().user_data(entry.index.into());
        drop(entry);
        // SAFETY: E1 and E2.
        unsafe { self.push(&command) }
    }

    /// Waits for an eventfd too, once.
    pub(super) fn expect_wake(&mut self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let (fd, at) = (Fd(eventfd.as_raw_fd()), self.woken.as_mut_ptr());
        let read = opcode::Read::new(fd, at, self.woken.len() as u32).build().user_data(WAKE);
        // SAFETY: the bytes are on the heap until the ring is closed.
        unsafe { self.push(&read.into()) }
    }

    /// Submits all commands, and waits until something is completed.
    pub(super) fn wait(&mut self, completed: &mut Vec<Completion>) -> Result<(), Errno> {
        match self.ring.submit_and_wait(1).map_err(|error| errno_of(&error)) {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
            Err(errno) => return Err(errno),
        }
        for done in self.ring.completion() {
            completed.push(match (done.user_data(), done.result()) {
                (WAKE, _) => Completion::Woken,
                (_, result) if result < 0 => Completion::Failed(Errno::from_raw_os_error(-result)),
                (index, _) => {
                    Completion::Request(OwnedEntry { place: self.entries[index as usize].clone(), index: index as u32 })
                }
            });
        }
        Ok(())
    }

    fn command(&self, command: UringCommand, unique: u64) -> opcode::UringCmd80 {
        let request = UringCmdReq { commit_id: unique, qid: self.queue, ..UringCmdReq::default() };
        let mut bytes = [0; 80];
        request.put(&mut &mut bytes[..]);
        opcode::UringCmd80::new(Fd(self.device), command as u32).cmd(bytes)
    }

    /// # Safety
    /// The memory that the command points to stays valid until the kernel has completed it.
    unsafe fn push(&mut self, command: &squeue::Entry128) -> Result<(), Errno> {
        loop {
            // SAFETY: the caller's guarantee.
            if unsafe { self.ring.submission().push(command) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
    }

    fn submit(&self) -> Result<(), Errno> {
        loop {
            match self.ring.submit().map_err(|error| errno_of(&error)) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
