//! A flat file system in memory. The name of a file determines its behaviour.
//!
//! Files called `held*` hold their writes until an interrupt or [`MemFs::release`]. `block*` block the reading thread
//! until the gate opens, `brief*` likewise in calls that are announced as brief, and `panic*` panic when written.
//! `cached*` are read through the kernel's page cache.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use slackwater_fuse::abi::{Attr, AttrOut, EntryOut, Kstatfs, ROOT_ID, fattr, fopen};
use slackwater_fuse::{
    Context, Dirents, Errno, FileSystem, Forgets, HeldReply, Negotiated, Notifier, Operation, Payload, Reply,
    RequestHeader,
};

const HOUR: u64 = 3600;

#[derive(Clone, Default)]
struct Node {
    name: OsString,
    bytes: Vec<u8>,
}

#[derive(Default)]
pub(crate) struct MemFs {
    nodes: Mutex<BTreeMap<u64, Node>>,
    held: Mutex<Vec<HeldReply>>,
    queued: Mutex<Vec<Reply>>,
    is_open: Mutex<bool>,
    gate: Condvar,
    pub(crate) interrupted: std::sync::Arc<AtomicUsize>,
    pub(crate) blocked: AtomicUsize,
    pub(crate) resent: AtomicUsize,
    pub(crate) destroyed: AtomicUsize,
    pub(crate) initialised: AtomicUsize,
    /// Nodes for which the kernel has sent FORGET.
    pub(crate) forgotten: Mutex<Vec<u64>>,
}

impl MemFs {
    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued.lock().unwrap().len()
    }

    /// Answers held and queued replies, and releases the blocked threads.
    pub(crate) fn release(&self) {
        *self.is_open.lock().unwrap() = true;
        self.gate.notify_all();
        for reply in self.queued.lock().unwrap().drain(..) {
            reply.empty();
        }
        for held in self.held.lock().unwrap().drain(..) {
            if let Some(reply) = held.take() {
                reply.write(1);
            }
        }
    }

    /// Changes a file without notifying the kernel.
    pub(crate) fn change(&self, name: &str, bytes: &[u8]) -> u64 {
        let mut nodes = self.nodes.lock().unwrap();
        let (node, found) = nodes.iter_mut().find(|(_, node)| node.name == name).expect("the file exists");
        found.bytes = bytes.to_vec();
        *node
    }

    /// The files of another instance, as if both used the same disk.
    pub(crate) fn with_files_of(other: &Self) -> Self {
        Self { nodes: Mutex::new(other.nodes.lock().unwrap().clone()), ..Self::default() }
    }

    fn attr(&self, node: u64) -> Result<Attr, Errno> {
        let mut attr = Attr { ino: node, nlink: 1, blksize: 4096, ..Attr::default() };
        if node == ROOT_ID {
            return Ok(Attr { mode: 0o040_755, nlink: 2, ..attr });
        }
        attr.mode = 0o100_644;
        attr.size = self.nodes.lock().unwrap().get(&node).ok_or(Errno::NOENT)?.bytes.len() as u64;
        Ok(attr)
    }

    fn entry(&self, node: u64) -> Result<EntryOut, Errno> {
        let attr = self.attr(node)?;
        Ok(EntryOut { nodeid: node, entry_valid: HOUR, attr_valid: HOUR, attr, ..EntryOut::default() })
    }

    fn find(&self, name: &OsStr) -> Option<u64> {
        self.nodes.lock().unwrap().iter().find(|(_, node)| node.name == name).map(|(node, _)| *node)
    }

    fn name_of(&self, node: u64) -> String {
        let nodes = self.nodes.lock().unwrap();
        nodes.get(&node).map_or_else(String::new, |node| node.name.to_string_lossy().into_owned())
    }

    fn open_flags(&self, node: u64) -> u32 {
        if self.name_of(node).starts_with("cached") {
            fopen::KEEP_CACHE
        } else {
            fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES
        }
    }

    fn write(&self, node: u64, offset: usize, bytes: &[u8], is_resend: bool, reply: Reply) {
        let name = self.name_of(node);
        let mut nodes = self.nodes.lock().unwrap();
        let Some(found) = nodes.get_mut(&node) else {
            reply.error(Errno::NOENT);
            return;
        };
        let end = offset + bytes.len();
        if found.bytes.len() < end {
            found.bytes.resize(end, 0);
        }
        found.bytes[offset..end].copy_from_slice(bytes);
        drop(nodes);
        let written = bytes.len() as u32;
        assert!(!name.starts_with("panic"), "requested by the file's name");
        if name.starts_with("held") && !is_resend {
            let interrupted = self.interrupted.clone();
            let held = reply.hold(move |reply| {
                interrupted.fetch_add(1, Ordering::SeqCst);
                reply.write(written);
            });
            self.held.lock().unwrap().push(held);
        } else {
            reply.write(written);
        }
    }

    fn read(&self, cx: &Context<'_>, node: u64, offset: usize, size: usize, reply: Reply) {
        let name = self.name_of(node);
        if name.starts_with("brief") {
            cx.expect_brief();
        }
        if name.starts_with("brief") || name.starts_with("block") {
            let Some(_blocking) = cx.try_block() else { return self.queued.lock().unwrap().push(reply) };
            self.blocked.fetch_add(1, Ordering::SeqCst);
            let mut is_open = self.is_open.lock().unwrap();
            while !*is_open {
                is_open = self.gate.wait(is_open).unwrap();
            }
            self.blocked.fetch_sub(1, Ordering::SeqCst);
        }
        let nodes = self.nodes.lock().unwrap();
        let Some(found) = nodes.get(&node) else {
            reply.error(Errno::NOENT);
            return;
        };
        let bytes = found.bytes.get(offset..).unwrap_or_default();
        reply.bytes(&bytes[..bytes.len().min(size)]);
    }

    fn list(&self, offset: u64, size: u32, is_plus: bool) -> Dirents {
        let mut dirents = Dirents::new(size);
        let nodes = self.nodes.lock().unwrap().clone();
        for (at, (node, found)) in (1..).zip(nodes.iter()).skip(offset as usize) {
            let added = if is_plus {
                let entry = self.entry(*node).expect("nothing is removed");
                dirents.push_plus(&entry, *node, at, 8, &found.name)
            } else {
                dirents.push(*node, at, 8, &found.name)
            };
            if added.is_err() {
                break;
            }
        }
        dirents
    }
}

fn answer(reply: Reply, result: Result<AttrOut, Errno>) {
    match result {
        Ok(attr) => reply.attr(&attr),
        Err(errno) => reply.error(errno),
    };
}

impl FileSystem for MemFs {
    fn init(&self, negotiated: &Negotiated, _: &Notifier) {
        assert_eq!(negotiated.max_write, 1 << 20);
        self.initialised.fetch_add(1, Ordering::SeqCst);
    }

    fn forget(&self, _: &Context<'_>, forgets: Forgets<'_>) {
        self.forgotten.lock().unwrap().extend(forgets.map(|(node, _)| node));
    }

    fn handle(&self, cx: &Context<'_>, header: &RequestHeader, op: Operation<'_>, payload: Payload<'_>, reply: Reply) {
        let node = header.node_id;
        if header.is_resend() {
            self.resent.fetch_add(1, Ordering::SeqCst);
        }
        #[allow(clippy::wildcard_enum_match_arm, reason = "a small file system")]
        match op {
            Operation::Lookup { name } => {
                let _ = match self.find(name).ok_or(Errno::NOENT).and_then(|node| self.entry(node)) {
                    Ok(entry) => reply.entry(&entry),
                    Err(errno) => reply.error(errno),
                };
            }
            Operation::Create { name, .. } => {
                let node = self.nodes.lock().unwrap().keys().next_back().map_or(2, |last| last + 1);
                self.nodes.lock().unwrap().insert(node, Node { name: name.to_owned(), bytes: Vec::new() });
                let _ = match self.entry(node) {
                    Ok(entry) => reply.create(&entry, 0, self.open_flags(node)),
                    Err(errno) => reply.error(errno),
                };
            }
            Operation::Open(_) => drop(reply.open(0, self.open_flags(node))),
            Operation::Opendir(_) => drop(reply.open(0, 0)),
            Operation::Getattr(_) => {
                answer(reply, self.attr(node).map(|attr| AttrOut { attr_valid: HOUR, attr, ..AttrOut::default() }))
            }
            Operation::Setattr(args) => {
                if args.valid & fattr::SIZE != 0
                    && let Some(found) = self.nodes.lock().unwrap().get_mut(&node)
                {
                    found.bytes.resize(args.size as usize, 0);
                }
                answer(reply, self.attr(node).map(|attr| AttrOut { attr_valid: HOUR, attr, ..AttrOut::default() }));
            }
            Operation::Write(args) => {
                self.write(node, args.offset as usize, payload.bytes(), header.is_resend(), reply);
            }
            Operation::Read(args) => self.read(cx, node, args.offset as usize, args.size as usize, reply),
            Operation::Readdir(args) => drop(reply.bytes(self.list(args.offset, args.size, false).bytes())),
            Operation::Readdirplus(args) => drop(reply.bytes(self.list(args.offset, args.size, true).bytes())),
            Operation::Statfs => {
                reply.statfs(&Kstatfs { bsize: 4096, frsize: 4096, namelen: 255, ..Kstatfs::default() });
            }
            Operation::Release(_) | Operation::Releasedir(_) | Operation::Flush(_) | Operation::Fsync(_) => {
                reply.empty();
            }
            _ => {
                reply.error(Errno::NOSYS);
            }
        }
    }

    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }
}
