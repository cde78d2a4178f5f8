//! The calls of the storage interface: each becomes a function on the tree, or goes to the data of files.
//!
//! A call on names or attributes that finds its keys in memory is answered before [`Calls::submit`] returns. No call is
//! answered under a lock (B1).

#[cfg(test)]
mod tests;

use slackwater::ErrorKind;
use slackwater::backend::{
    Attr, Call, DirEntry, DirEntryPlus, Done, FallocateMode, FileHandle, Found, Limits, MAX_UNIT_BYTES, Node,
};
use slackwater_sync::shim::Arc;
use tokio::runtime::Handle;

use crate::contents::map::{self, Size, Sought, Step};
use crate::contents::{Reader, Writer};
use crate::format::{FILE_BYTES_MAX, Inode};
use crate::names::{self, Numbered};
use crate::nodes::OpenNodes;
use crate::tree::{Stop, Tree, View};

/// Units that are on their way to the store together: enough for every slot of uploads.
const UNITS_IN_FLIGHT: u32 = Writer::IN_FLIGHT_BYTES as u32 / MAX_UNIT_BYTES;
/// A sequential reader is this far ahead of its program.
const READAHEAD_BYTES: u64 = 64 << 20;

/// The limits of every volume.
pub(crate) fn limits() -> Limits {
    Limits {
        max_file_bytes: FILE_BYTES_MAX,
        unit_bytes: MAX_UNIT_BYTES,
        units_in_flight: UNITS_IN_FLIGHT,
        device: None,
        readahead_bytes: READAHEAD_BYTES,
        flushes: false,
        reopens: true,
    }
}

/// The parts that answer the calls of an open volume.
pub(crate) struct Calls {
    tree: Arc<Tree>,
    nodes: Arc<OpenNodes>,
    reader: Arc<Reader>,
    /// `None`: the volume follows a writer elsewhere.
    writer: Option<Arc<Writer>>,
    runtime: Handle,
}

/// How far a call has come that runs in steps.
enum Progress<T> {
    Done(T),
    /// The call goes on at this offset.
    At(u64),
}

impl Calls {
    pub(crate) fn new(
        tree: Arc<Tree>,
        nodes: Arc<OpenNodes>,
        reader: Arc<Reader>,
        writer: Option<Arc<Writer>>,
        runtime: Handle,
    ) -> Self {
        Self { tree, nodes, reader, writer, runtime }
    }

    /// Starts a call.
    ///
    /// # Blocking
    /// Never.
    pub(crate) fn submit(&self, call: Call) {
        match call {
            Call::Root { done } => self.find(done, names::root),
            Call::Lookup { dir, name, done } => {
                self.find_from(dir, done, move |view, dir| names::lookup(view, dir, &name));
            }
            Call::Reopen { handle, id, nameless, done } => {
                let nodes = Arc::clone(&self.nodes);
                self.find(done, move |view| {
                    names::reopen(view, nodes.dev(), &handle, id, nameless && nodes.finds_nameless())
                });
            }
            Call::Parent { dir, done } => self.find_from(dir, done, names::parent),
            Call::Make { dir, name, what, mode, creator, done } => {
                self.find_from(dir, done, move |view, dir| names::make(view, dir, &name, &what, mode, creator));
            }
            Call::Tmpfile { dir, mode, creator, done } => {
                self.find_from(dir, done, move |view, dir| names::tmpfile(view, dir, mode, creator));
            }
            Call::Remove { dir, name, removal, done } => {
                self.find_from(dir, done, move |view, dir| names::remove(view, dir, &name, removal));
            }
            Call::Getattr { node, done } => {
                self.attr(node, done, |view, ino| Ok((ino, names::inode(view, ino)?)));
            }
            Call::Setattr { node, change, done } => {
                let dev = self.nodes.dev();
                self.in_steps(node, done, 0, move |view, ino, at| {
                    Ok(match names::setattr(view, ino, change)? {
                        Some((ino, inode)) => Progress::Done(names::attr_of(dev, ino, &inode)),
                        None => Progress::At(at),
                    })
                });
            }
            Call::Link { node, dir, name, done } => match self.nodes.hold(dir) {
                Ok(dir) => self.attr(node, done, move |view, ino| names::link(view, ino, dir.ino(), &name)),
                Err(error) => done.complete(Err(error)),
            },
            Call::Rename { from_dir, from, to_dir, to, mode, done } => match self.nodes.hold(to_dir) {
                Ok(to_dir) => {
                    let nodes = Arc::clone(&self.nodes);
                    self.ask(from_dir, done, move |view, from_dir| {
                        let replaced = names::rename(view, (from_dir, &from), (to_dir.ino(), &to), mode)?;
                        if let Some((ino, inode)) = replaced {
                            drop(nodes.open(ino, &inode)); // it is freed if nothing else has it open
                        }
                        Ok(())
                    });
                }
                Err(error) => done.complete(Err(error)),
            },
            Call::Readlink { node, done } => self.ask(node, done, names::readlink),
            Call::Readdir { node, cookie, done } => {
                self.ask(node, done, move |view, dir| names::readdir(view, dir, cookie));
            }
            Call::ReaddirPlus { node, cookie, done } => {
                let nodes = Arc::clone(&self.nodes);
                self.ask(node, done, move |view, dir| {
                    let plus = |(entry, inode): (DirEntry, Option<Inode>)| DirEntryPlus {
                        found: inode.map(|inode| found(&nodes, (entry.ino, inode))),
                        entry,
                    };
                    Ok(names::readdir_plus(view, dir, cookie)?.into_iter().map(plus).collect())
                });
            }
            Call::Getxattr { node, name, done } => {
                self.ask(node, done, move |view, ino| Ok(names::getxattr(view, ino, &name)?.to_vec()));
            }
            Call::Setxattr { node, name, value, mode, done } => {
                self.attr(node, done, move |view, ino| names::setxattr(view, ino, &name, &value, mode));
            }
            Call::Listxattr { node, done } => self.ask(node, done, names::listxattr),
            Call::Removexattr { node, name, done } => {
                self.attr(node, done, move |view, ino| names::removexattr(view, ino, &name));
            }
            Call::Getflags { node, done } => self.ask(node, done, names::getflags),
            Call::Setflags { node, flags, done } => {
                self.attr(node, done, move |view, ino| names::setflags(view, ino, flags));
            }
            Call::Fallocate { node, mode, offset_bytes, len_bytes, done } => {
                let (dev, end) = (self.nodes.dev(), offset_bytes.checked_add(len_bytes));
                self.in_steps(node, done, offset_bytes, move |view, ino, at| {
                    let step = fallocate(view, ino, mode, at, end)?;
                    Ok(match step {
                        Step::Done => Progress::Done(names::attr_of(dev, ino, &names::inode(view, ino)?)),
                        Step::Rest(at) => Progress::At(at),
                    })
                });
            }
            Call::Seek { node, offset_bytes, whence, done } => {
                self.in_steps(node, done, offset_bytes, move |view, ino, at| {
                    names::check_file(&names::inode(view, ino)?)?;
                    Ok(match map::seek(view, ino, at, whence)? {
                        Sought::Found(found) => Progress::Done(found),
                        Sought::Rest(at) => Progress::At(at),
                    })
                });
            }
            Call::Read(unit) => match self.nodes.file(unit.node()) {
                Ok(ino) => self.reader.read(ino, unit),
                Err(error) => unit.complete(Err(error)),
            },
            Call::Write(unit) => match (&self.writer, self.nodes.file(unit.node())) {
                (None, _) => unit.complete(Err(ErrorKind::ReadOnly.into())),
                (Some(writer), Ok(ino)) => writer.write(ino, unit),
                (Some(_), Err(error)) => unit.complete(Err(error)),
            },
            Call::Sync { node, scope: _, done } => match self.nodes.hold(node) {
                Ok(_) => self.commit(done),
                Err(error) => done.complete(Err(error)),
            },
            Call::SyncVolume { done } => self.commit(done),
            Call::Statfs { done } => self.tree.submit(|view| Ok(names::statfs(view)), |answer| done.complete(answer)),
            call => call.fail(ErrorKind::Unsupported.into()),
        }
    }

    /// Answers with the node that `find` finds.
    fn find(&self, done: Done<Found>, mut find: impl FnMut(&mut View<'_>) -> Result<Numbered, Stop> + Send + 'static) {
        let nodes = Arc::clone(&self.nodes);
        self.tree.submit(move |view| Ok(found(&nodes, find(view)?)), |answer| done.complete(answer));
    }

    /// Answers with the node that `find` finds from `node`.
    fn find_from(
        &self,
        node: Node,
        done: Done<Found>,
        mut find: impl FnMut(&mut View<'_>, u64) -> Result<Numbered, Stop> + Send + 'static,
    ) {
        let nodes = Arc::clone(&self.nodes);
        self.ask(node, done, move |view, ino| Ok(found(&nodes, find(view, ino)?)));
    }

    /// Answers with the attributes that `change` leaves.
    fn attr(
        &self,
        node: Node,
        done: Done<Attr>,
        mut change: impl FnMut(&mut View<'_>, u64) -> Result<Numbered, Stop> + Send + 'static,
    ) {
        let dev = self.nodes.dev();
        self.ask(node, done, move |view, ino| {
            let (ino, inode) = change(view, ino)?;
            Ok(names::attr_of(dev, ino, &inode))
        });
    }

    /// Answers with what `question` returns for `node`.
    fn ask<T: Send + 'static>(
        &self,
        node: Node,
        done: Done<T>,
        mut question: impl FnMut(&mut View<'_>, u64) -> Result<T, Stop> + Send + 'static,
    ) {
        match self.nodes.hold(node) {
            Ok(node) => self.tree.submit(move |view| question(view, node.ino()), |answer| done.complete(answer)),
            Err(error) => done.complete(Err(error)),
        }
    }

    /// Runs `step` from the offset `first` on until the call is done. All steps but the first run in the runtime, so
    /// that other calls come between them.
    fn in_steps<T: Send + 'static>(
        &self,
        node: Node,
        done: Done<T>,
        first: u64,
        mut step: impl FnMut(&mut View<'_>, u64, u64) -> Result<Progress<T>, Stop> + Clone + Send + 'static,
    ) {
        let node = match self.nodes.hold(node) {
            Ok(node) => Arc::new(node),
            Err(error) => return done.complete(Err(error)),
        };
        let mut rest = (Arc::clone(&node), step.clone());
        let (tree, runtime) = (Arc::clone(&self.tree), self.runtime.clone());
        let then = move |answer| {
            let mut at = match answer {
                Ok(Progress::Done(answer)) => return done.complete(Ok(answer)),
                Ok(Progress::At(at)) => at,
                Err(error) => return done.complete(Err(error)),
            };
            runtime.spawn(async move {
                let (node, step) = &mut rest;
                loop {
                    match tree.run(|view| step(view, node.ino(), at)).await {
                        Ok(Progress::Done(answer)) => return done.complete(Ok(answer)),
                        Ok(Progress::At(next)) => at = next,
                        Err(error) => return done.complete(Err(error)),
                    }
                }
            });
        };
        self.tree.submit(move |view| step(view, node.ino(), first), then);
    }

    fn commit(&self, done: Done<()>) {
        let tree = Arc::clone(&self.tree);
        self.runtime.spawn(async move { done.complete(tree.commit().await) });
    }
}

/// Opens a node that a call has found.
fn found(nodes: &Arc<OpenNodes>, (ino, inode): Numbered) -> Found {
    let attr = names::attr_of(nodes.dev(), ino, &inode);
    Found { node: nodes.open(ino, &inode), handle: FileHandle::from_number(ino), attr }
}

/// Makes a step of a call to allocate or free a range, from `at` to `end`; `None` if no number says where it ends.
fn fallocate(view: &mut View<'_>, ino: u64, mode: FallocateMode, at: u64, end: Option<u64>) -> Result<Step, Stop> {
    let inode = names::inode(view, ino)?;
    names::check_file(&inode)?;
    names::check_unprotected(&inode)?;
    let len_bytes = end.ok_or(ErrorKind::TooLarge)? - at;
    match mode {
        FallocateMode::Allocate => map::allocate(view, ino, at, len_bytes, Size::Extend),
        FallocateMode::AllocateKeepSize => map::allocate(view, ino, at, len_bytes, Size::Keep),
        FallocateMode::PunchHole => map::punch(view, ino, at, len_bytes),
        FallocateMode::Zero => map::zero(view, ino, at, len_bytes, Size::Extend),
        FallocateMode::ZeroKeepSize => map::zero(view, ino, at, len_bytes, Size::Keep),
    }
}
