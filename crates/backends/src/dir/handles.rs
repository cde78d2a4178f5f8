//! Handles for files that survive renames, and opening files by them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstat;
use rustix::io::{self, Errno};
use slackwater::backend::FileHandle;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::{Arc, Weak, thread};

use super::descriptors::{self, NodeFd};
use super::file_system::FileSystem;
use super::numbers::Numbers;
use super::sys::{KernelHandle, handle_of, open_handle};
use crate::BACKEND;

/// First byte of a handle that holds a kernel handle: its type follows, then its bytes.
const KERNEL: u8 = 1;
/// First byte of a handle that holds a node number, which identifies a descriptor kept open.
const PINNED: u8 = 2;

/// The maximum number of nodes that a volume keeps open, whatever the limit of the process.
const PINS_MAX: usize = 65_536;
/// The number that it keeps open, however few descriptors are left.
const PINS_MIN: usize = 64;

/// How nodes are reopened.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Reopening {
    /// By kernel handles.
    ByKernel,
    /// By descriptors that stay open.
    ByDescriptor,
}

/// The handles of one volume.
pub(super) struct Handles {
    reopening: Reopening,
    /// Whether the file system has persistent handles, if only to distinguish generations.
    has_kernel_handles: bool,
    /// `None` if kernel handles have another form, or nodes are not opened by them.
    numbers: Option<Numbers>,
    pins: Mutex<Pins>,
}

impl Handles {
    /// Tests what works on the file system of `root`. Uses `wanted` if it works.
    pub(super) fn probe(root: &OwnedFd, file_system: FileSystem, wanted: Reopening) -> Self {
        let kernel_handle = file_system.has_lasting_handles().then(|| handle_of(root.as_fd()).ok()).flatten();
        let has_kernel_handles = kernel_handle.is_some();
        let reopens = kernel_handle.as_ref().is_some_and(|handle| open_handle(root.as_fd(), handle).is_ok());
        let reopening = if reopens { wanted } else { Reopening::ByDescriptor };
        let numbers = kernel_handle.filter(|_| reopening == Reopening::ByKernel);
        let numbers = numbers.and_then(|handle| Numbers::like(root, &handle));
        Self { reopening, has_kernel_handles, numbers, pins: Mutex::new(BACKEND, Pins::new()) }
    }

    /// The kernel's handle of the node open at `fd`, if the file system has them.
    pub(super) fn kernel_handle(&self, fd: &NodeFd) -> io::Result<Option<KernelHandle>> {
        self.has_kernel_handles.then(|| handle_of(fd.as_fd())).transpose()
    }

    /// Whether a node can be found again only while it is kept open.
    pub(super) fn keep_nodes_open(&self) -> bool {
        self.reopening != Reopening::ByKernel
    }

    /// Generation and handle of node `ino`, open at `fd`. A node without a name is not kept open.
    pub(super) fn describe(
        &self,
        kernel_handle: Option<KernelHandle>,
        fd: &Arc<NodeFd>,
        ino: u64,
        has_name: bool,
    ) -> (u64, FileHandle) {
        let generation = kernel_handle.as_ref().map_or(0, fingerprint);
        let by_kernel = kernel_handle.filter(|_| self.reopening == Reopening::ByKernel);
        let numbered = |handle: &KernelHandle| self.numbers.as_ref().and_then(|numbers| numbers.short(handle));
        let encoded = |handle: KernelHandle| encode(KERNEL, &handle.kind.to_le_bytes(), &handle.bytes);
        if let Some(handle) = by_kernel.and_then(|handle| numbered(&handle).or_else(|| encoded(handle))) {
            return (generation, handle);
        }
        // Also for a kernel handle that leaves no space for our header.
        match has_name {
            true => self.pin(ino, fd),
            false => self.name_removed(ino),
        }
        let handle = encode(PINNED, &ino.to_le_bytes(), &[]).expect("nine bytes are not too many");
        (generation, handle)
    }

    /// A path descriptor of the file of `handle`. The caller checks that it is still the intended file.
    pub(super) fn open(&self, root: &OwnedFd, handle: &FileHandle) -> io::Result<Arc<NodeFd>> {
        if let Some(number) = handle.number() {
            let numbers = self.numbers.as_ref().ok_or(Errno::STALE)?;
            return open_settled(root, &numbers.whole(root, number)?);
        }
        let (&tag, body) = handle.as_bytes().split_first().ok_or(Errno::STALE)?;
        match tag {
            KERNEL => {
                let (kind, bytes) = body.split_first_chunk().ok_or(Errno::STALE)?;
                let handle = KernelHandle { kind: i32::from_le_bytes(*kind), bytes: bytes.to_vec() };
                open_settled(root, &handle)
            }
            PINNED => {
                let ino = body.try_into().map_err(|_| Errno::STALE)?;
                self.pins.lock().get(u64::from_le_bytes(ino)).ok_or(Errno::STALE)
            }
            _ => Err(Errno::STALE),
        }
    }

    /// Keeps a node open that now has a name, if nodes are reopened that way.
    pub(super) fn name_given(&self, ino: u64, fd: &Arc<NodeFd>) {
        if self.are_pinned() {
            self.pin(ino, fd);
        }
    }

    /// Lets a node be reopened while `fd` exists, if nodes are reopened that way.
    pub(super) fn adopt(&self, ino: u64, fd: &Arc<NodeFd>) {
        if self.are_pinned() {
            self.pins.lock().adopted.insert(ino, Arc::downgrade(fd));
        }
    }

    fn pin(&self, ino: u64, fd: &Arc<NodeFd>) {
        // At most as many as are left, so that no volume takes all descriptors from the others.
        let unpinned = self.pins.lock().pin(ino, Arc::clone(fd), descriptors::left().clamp(PINS_MIN, PINS_MAX));
        drop(unpinned); // may close nodes
    }

    /// Whether the caller must report nodes that lose a name.
    pub(super) fn are_pinned(&self) -> bool {
        self.reopening == Reopening::ByDescriptor
    }

    /// Closes a node that may just have lost its last name, so that its space is freed.
    pub(super) fn name_removed(&self, ino: u64) {
        let unpinned = self.pins.lock().unpin_if_nameless(ino);
        drop(unpinned);
    }
}

/// Opens by handle. The kernel answers ENOMEM for a number that a new file is just being created with (`iget_locked`
/// finds the unfinished inode and returns nothing). A second attempt then answers stale, whereas a real lack of memory
/// persists.
fn open_settled(root: &OwnedFd, handle: &KernelHandle) -> io::Result<Arc<NodeFd>> {
    let open = || open_handle(root.as_fd(), handle).map(|fd| Arc::new(NodeFd::new(fd)));
    for _ in 0..IN_THE_MAKING {
        match open() {
            Err(Errno::NOMEM) => thread::yield_now(),
            settled => return settled,
        }
    }
    open()
}

/// The number of further attempts while a file is being created with that number.
const IN_THE_MAKING: u32 = 1000;

fn encode(tag: u8, head: &[u8], body: &[u8]) -> Option<FileHandle> {
    FileHandle::new(&[&[tag], head, body].concat())
}

/// FNV-1a over type and bytes. A kernel handle holds number and generation of an inode, so successive files with one
/// number have different fingerprints; it serves no other purpose.
fn fingerprint(handle: &KernelHandle) -> u64 {
    let bytes = handle.kind.to_le_bytes().into_iter().chain(handle.bytes.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Descriptors kept open by node number. An open descriptor keeps its inode, so its number is not reused.
struct Pins {
    fds: HashMap<u64, Arc<NodeFd>>,
    /// Oldest first. May contain nodes that were unpinned since.
    order: VecDeque<u64>,
    /// Nodes of an earlier process, whether or not they have a name, while another part of the process has them open.
    adopted: HashMap<u64, Weak<NodeFd>>,
}

impl Pins {
    fn new() -> Self {
        Self { fds: HashMap::new(), order: VecDeque::new(), adopted: HashMap::new() }
    }

    fn get(&mut self, ino: u64) -> Option<Arc<NodeFd>> {
        let pinned = self.fds.get(&ino).cloned();
        let found = pinned.or_else(|| self.adopted.get(&ino)?.upgrade());
        if found.is_none() {
            self.adopted.remove(&ino);
        }
        found
    }

    /// Keeps a node open. Beyond `max`, removes the oldest and returns them.
    fn pin(&mut self, ino: u64, fd: Arc<NodeFd>, max: usize) -> Vec<Arc<NodeFd>> {
        let mut unpinned = Vec::new();
        match self.fds.insert(ino, fd) {
            Some(earlier) => unpinned.push(earlier),
            None => self.order.push_back(ino),
        }
        while self.fds.len() > max || self.order.len() > 2 * self.fds.len().max(PINS_MIN) {
            let Some(oldest) = self.order.pop_front() else { break };
            unpinned.extend(self.fds.remove(&oldest));
        }
        unpinned
    }

    fn unpin_if_nameless(&mut self, ino: u64) -> Option<Arc<NodeFd>> {
        let is_nameless = fstat(self.fds.get(&ino)?).is_ok_and(|stat| stat.st_nlink == 0);
        is_nameless.then(|| self.fds.remove(&ino)).flatten()
    }
}
