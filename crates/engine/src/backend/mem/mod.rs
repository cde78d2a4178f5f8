//! A backend in memory: the reference for the storage interface, and the disk of the engine's tests.
//!
//! `MemBackend` does only what a backend has to do: `submit` decodes the call, asks the volume and completes the call.
//! Nothing here waits, so every call completes inside `submit`. Layers around it add delays, failures and other orders.
//!
//! Reading order: this file, `volume` (what each call does; new nodes, extended attributes and ranges have files of
//! their own), `durability` (what a crash leaves), and `node` and `blocks`, of which a node consists.

mod blocks;
mod create;
mod durability;
mod node;
mod ranges;
#[cfg(test)]
mod tests;
mod volume;
mod xattrs;

use slackwater_sync::lock::Mutex;

use crate::backend::mem::volume::{ROOT, VOLUME_BLOCKS, Volume};
use crate::backend::{Backend, Call, Limits, MAX_UNIT_BYTES};
use crate::lock_order::LEAVES;
use crate::units::{NodeId, PAGE_BYTES};

/// Files in memory, which survive [`MemBackend::crash`] as far as they were synced.
///
/// Like a disk with a volatile cache, it has two states. Calls change one. [`Call::Sync`] and [`Call::SyncVolume`] copy
/// it to the other, and a crash reverts to that. A sync of a file makes its bytes durable, and its name if the file is
/// new. A sync of a directory makes its names durable. After a crash, nodes that never became durable are `Stale`, and
/// the next sync of each node that lost something fails once with `Lost`.
///
/// Calls complete inside `submit`. Times are counts of changes and not read from a clock, so two runs of a test see the
/// same times.
///
/// # Examples
/// ```
/// use std::sync::mpsc;
/// use slackwater::backend::{Backend, Call, Done, MemBackend, NewNode};
///
/// let backend = MemBackend::new();
/// let (send, answers) = mpsc::channel();
/// let then = move |found| send.send(found).expect("the receiver lives");
/// backend.submit(Call::Root { done: Done::new(then.clone()) });
/// let root = answers.recv()?.expect("a volume has a root").node;
///
/// let (name, what, done) = ("log".into(), NewNode::File, Done::new(then));
/// backend.submit(Call::Make { dir: root, name, what, mode: 0o644, creator: None, done });
/// assert_eq!(answers.recv()?.expect("the name is free").attr.size_bytes, 0);
/// assert_eq!(backend.volatile_file("log"), Some(Vec::new()));
///
/// backend.crash(); // the name was never made durable
/// assert_eq!(backend.volatile_file("log"), None);
/// # Ok::<(), mpsc::RecvError>(())
/// ```
pub struct MemBackend {
    volume: Mutex<Volume>,
    limits: Limits,
}

impl MemBackend {
    /// An empty volume for files of up to 16 TiB in units of up to 1 MiB.
    pub fn new() -> Self {
        Self::with_limits(Limits {
            max_file_bytes: 1 << 44,
            unit_bytes: MAX_UNIT_BYTES,
            units_in_flight: 8,
            device: None,
            readahead_bytes: 0,
            flushes: false,
            reopens: true,
        })
    }

    /// An empty volume with these limits. `limits.device`, or 0 if that is `None`, is the device number of its nodes.
    pub fn with_limits(limits: Limits) -> Self {
        Self::with_space(limits, VOLUME_BLOCKS * PAGE_BYTES)
    }

    /// Makes a backend as [`MemBackend::with_limits`] does, with space for this many bytes, in whole pages.
    /// [`MemBackend::new`] has 1 TiB.
    pub fn with_space(limits: Limits, space_bytes: u64) -> Self {
        let volume = Volume::new(limits.device.unwrap_or(0), limits.max_file_bytes, space_bytes / PAGE_BYTES);
        Self { volume: Mutex::new(LEAVES, volume), limits }
    }

    /// Loses everything that is not durable, as a crash of the storage would.
    pub fn crash(&self) {
        self.volume.lock().crash();
    }

    /// The bytes of a file as calls see them; `None` if it does not exist.
    pub fn volatile_file<'a>(&self, file: impl Into<MemFile<'a>>) -> Option<Vec<u8>> {
        let volume = self.volume.lock();
        volume.live_file(match file.into() {
            MemFile::Path(path) => volume.live_ino(path)?,
            MemFile::Id(id) => volume.live_ino_of(id)?,
        })
    }

    /// The bytes of a file as a crash would leave them; `None` if it would not exist.
    pub fn durable_file<'a>(&self, file: impl Into<MemFile<'a>>) -> Option<Vec<u8>> {
        let volume = self.volume.lock();
        volume.durable_file(match file.into() {
            MemFile::Path(path) => volume.durable_ino(path)?,
            MemFile::Id(id) => volume.durable_ino_of(id)?,
        })
    }

    /// Asks the volume. Its lock is released before the call is completed, because the completion may make the next
    /// call.
    fn ask<T>(&self, question: impl FnOnce(&mut Volume) -> T) -> T {
        question(&mut self.volume.lock())
    }
}

impl Default for MemBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for MemBackend {
    fn submit(&self, call: Call) {
        match call {
            Call::Root { done } => done.complete(self.ask(|volume| volume.found(ROOT))),
            Call::Lookup { dir, name, done } => done.complete(self.ask(|volume| volume.lookup(&dir, &name))),
            Call::Reopen { handle, id, nameless, done } => {
                done.complete(self.ask(|volume| volume.reopen(&handle, id, nameless)));
            }
            Call::Parent { dir, done } => done.complete(self.ask(|volume| volume.parent(&dir))),
            Call::Getattr { node, done } => done.complete(self.ask(|volume| volume.getattr(&node))),
            Call::Setattr { node, change, done } => done.complete(self.ask(|volume| volume.setattr(&node, change))),
            Call::Make { dir, name, what, mode, creator, done } => {
                done.complete(self.ask(|volume| volume.make(&dir, &name, what, mode, creator)));
            }
            Call::Tmpfile { dir, mode, creator, done } => {
                done.complete(self.ask(|volume| volume.tmpfile(&dir, mode, creator)));
            }
            Call::Link { node, dir, name, done } => {
                done.complete(self.ask(|volume| volume.link(&node, &dir, &name)));
            }
            Call::Remove { dir, name, removal, done } => {
                done.complete(self.ask(|volume| volume.remove(&dir, &name, removal)));
            }
            Call::Rename { from_dir, from, to_dir, to, mode, done } => {
                done.complete(self.ask(|volume| volume.rename((&from_dir, &from), (&to_dir, &to), mode)));
            }
            Call::Readlink { node, done } => done.complete(self.ask(|volume| volume.readlink(&node))),
            Call::Readdir { node, cookie, done } => {
                done.complete(self.ask(|volume| volume.readdir(&node, cookie)));
            }
            Call::ReaddirPlus { node, cookie, done } => {
                done.complete(self.ask(|volume| volume.readdir_plus(&node, cookie)));
            }
            Call::Getxattr { node, name, done } => done.complete(self.ask(|volume| volume.getxattr(&node, &name))),
            Call::Setxattr { node, name, value, mode, done } => {
                done.complete(self.ask(|volume| volume.setxattr(&node, name, value, mode)));
            }
            Call::Listxattr { node, done } => done.complete(self.ask(|volume| volume.listxattr(&node))),
            Call::Removexattr { node, name, done } => {
                done.complete(self.ask(|volume| volume.removexattr(&node, &name)));
            }
            call @ (Call::Getflags { .. } | Call::Setflags { .. }) => {
                call.fail(crate::error::ErrorKind::Unsupported.into())
            }
            Call::Fallocate { node, mode, offset_bytes, len_bytes, done } => {
                done.complete(self.ask(|volume| volume.fallocate(&node, mode, offset_bytes, len_bytes)));
            }
            Call::Seek { node, offset_bytes, whence, done } => {
                done.complete(self.ask(|volume| volume.seek(&node, offset_bytes, whence)));
            }
            Call::Read(mut unit) => {
                let read = self.ask(|volume| volume.read(&mut unit));
                unit.complete(read);
            }
            Call::Write(unit) => {
                let written = self.ask(|volume| volume.write(&unit));
                unit.complete(written);
            }
            Call::Sync { node, scope, done } => done.complete(self.ask(|volume| volume.sync(&node, scope))),
            Call::SyncVolume { done } => done.complete(self.ask(Volume::sync_volume)),
            Call::Statfs { done } => done.complete(self.ask(|volume| volume.statfs())),
        }
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }
}

/// The argument of [`MemBackend::volatile_file`] and [`MemBackend::durable_file`]: a path such as `"a/b"`, or a
/// [`NodeId`].
#[derive(Copy, Clone, Debug)]
pub enum MemFile<'a> {
    /// Names from the root, with slashes between them.
    Path(&'a str),
    /// Identity, which also finds files without a name.
    Id(NodeId),
}

impl<'a> From<&'a str> for MemFile<'a> {
    fn from(path: &'a str) -> Self {
        Self::Path(path)
    }
}

impl From<NodeId> for MemFile<'_> {
    fn from(id: NodeId) -> Self {
        Self::Id(id)
    }
}
