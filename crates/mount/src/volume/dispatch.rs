//! Dispatch of each request to the method that answers it.

use std::ffi::OsStr;

use rustix::fs::OFlags;
use rustix::io::Errno;
use slackwater::PAGE_BYTES;
use slackwater::backend::{NewNode, Removal};
use slackwater::{Memcg, Pause};
use slackwater_fuse::abi::{WriteIn, fattr, read_in, write_in};
use slackwater_fuse::{
    Context, FileSystem, Forgets, Landed, LandingMemory, Negotiated, Notification, Notifier, Operation, Payload, Reply,
    RequestHeader,
};
use slackwater_sync::shim::Arc;

use crate::coherence::ProbeFile;
use crate::takeover::{self, Point};
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::by_handle::{PARENT, SELF, is_of_itself};
use crate::volume::change::Change;
use crate::volume::flags::FlagsIoctl;
use crate::volume::lent::Lent;
use crate::volume::names::creator;
use crate::volume::nodes::Node;
use crate::volume::open_files::{OpenFile, Opener};
use crate::volume::pruning::has_prune;
use crate::volume::writes::{Attempt, Write};

/// A volume as the session sees it.
pub(crate) struct Served {
    pub(crate) volume: Arc<Volume>,
    pub(crate) probe: Arc<ProbeFile>,
}

impl FileSystem for Served {
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) {
        // Set once: a volume is served by one session.
        let _ = self.volume.notifier.set(notifier.clone());
        for node in std::mem::take(&mut *self.volume.nodes_to_invalidate.lock()) {
            notifier.queue(Notification::InvalInode { node, offset: 0, len: 0 });
        }
        if has_prune(negotiated) {
            let _ = self.volume.pruner.set(notifier.clone());
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "dispatch has the others")]
    fn handle(&self, cx: &Context<'_>, header: &RequestHeader, op: Operation<'_>, payload: Payload<'_>, reply: Reply) {
        let volume = &self.volume;
        if volume.keeping().is_some() {
            takeover::pass(Point::Read, header.unique, Some(header.opcode));
        }
        match op {
            op if self.probe.matches(header, &op) => self.probe.answer(&op, payload, reply),
            Operation::Write(args) => volume.write(cx, header, &args, payload.bytes(), reply),
            Operation::Release(args) => {
                if let Some(open) = volume.handles.file(args.fh) {
                    volume.note_release(&open);
                }
                volume.handles.remove(args.fh);
                volume.deliver(reply, Ok(Answer::Done));
            }
            Operation::Releasedir(args) => {
                volume.handles.remove(args.fh);
                volume.deliver(reply, Ok(Answer::Done));
            }
            _ if volume.is_refusing() => volume.deliver(reply, Err(Errno::IO.into())),
            op => volume.dispatch(cx, header, op, reply),
        }
    }

    fn lend_memory(&self, len_bytes: usize) -> Option<Box<dyn LandingMemory>> {
        Some(Box::new(Lent(self.volume.sb.landing_frames(len_bytes)?)))
    }

    fn write_landed(&self, cx: &Context<'_>, header: &RequestHeader, args: &WriteIn, landed: Landed<'_>, reply: Reply) {
        if self.volume.keeping().is_some() {
            takeover::pass(Point::Read, header.unique, Some(header.opcode));
        }
        self.volume.write_landed(cx, header, args, landed, reply);
    }

    fn forget(&self, cx: &Context<'_>, forgets: Forgets<'_>) {
        self.volume.forget_all(forgets);
        if self.volume.nodes.has_shrunk() {
            cx.memory_freed();
        }
    }

    fn destroy(&self) {
        if !self.volume.is_handed_over() {
            self.volume.tear_down();
        }
    }
}

/// Whether a request usually takes a few system calls on a local directory. The others move data, wait for a disk, or may
/// have to write data back first.
#[allow(clippy::wildcard_enum_match_arm, reason = "the rest waits for data or for a disk")]
fn is_brief(op: &Operation<'_>) -> bool {
    match op {
        Operation::Open(args) => args.flags & OFlags::TRUNC.bits() == 0,
        Operation::Setattr(args) => args.valid & fattr::SIZE == 0,
        Operation::Lookup { .. }
        | Operation::Getattr(_)
        | Operation::Readlink
        | Operation::Symlink { .. }
        | Operation::Mknod { .. }
        | Operation::Mkdir { .. }
        | Operation::Create { .. }
        | Operation::Tmpfile(_)
        | Operation::Unlink { .. }
        | Operation::Rmdir { .. }
        | Operation::Link { .. }
        | Operation::Statfs
        | Operation::Readdir(_)
        | Operation::Readdirplus(_)
        | Operation::Getxattr { .. }
        | Operation::Listxattr { .. }
        | Operation::Setxattr { .. }
        | Operation::Removexattr { .. } => true,
        _ => false,
    }
}

impl Volume {
    #[allow(clippy::wildcard_enum_match_arm, reason = "the rest is about a node: dispatch_on_node lists it")]
    fn dispatch(self: &Arc<Self>, cx: &Context<'_>, header: &RequestHeader, op: Operation<'_>, reply: Reply) {
        let change = Change::of(&op, header.node_id);
        let Some(reply) = self.admit(cx, header, &op, change.is_some(), reply) else { return };
        if is_brief(&op) {
            cx.expect_brief();
        }
        match op {
            Operation::Read(args) => {
                let Some(open) = self.handles.file(args.fh) else {
                    return self.deliver(reply, Err(Errno::BADF.into()));
                };
                if args.read_flags & read_in::LOCKOWNER == 0 && open.node.kernel_pages.can_be_mapped() {
                    // A read for the kernel's page cache: one through a handle that bypasses it has a lock owner.
                    if open
                        .node
                        .kernel_pages
                        .read_for_cache(args.offset..args.offset.saturating_add(u64::from(args.size)))
                    {
                        self.schedule_mapped_flush();
                    }
                }
                let flags = self.read_flags(&open.node, header);
                if let Some(tenancy) = &self.tenancy {
                    open.begin_reading(|| tenancy.existing(header.pid, header.uid));
                }
                if let Some(reply) = Self::read_cached(&open, flags, &args, reply) {
                    let charged = self.charged(header, &open);
                    self.serve(cx, header, change, reply, move |volume| volume.read(&open, &charged, flags, &args));
                }
            }
            Operation::Flush(args) => {
                let Some(open) = self.handles.file(args.fh) else {
                    return self.deliver(reply, Err(Errno::BADF.into()));
                };
                if open.flushes_on_close().is_some() {
                    self.serve(cx, header, change, reply, move |volume| volume.flush(&open));
                } else {
                    self.deliver(reply, self.flush(&open));
                }
            }
            Operation::Fsync(args) => {
                let unique = header.unique;
                self.serve(cx, header, change, reply, move |volume| volume.fsync(&args, unique));
            }
            Operation::Fallocate(args) => {
                let requester = *header;
                self.serve(cx, header, change, reply, move |volume| {
                    volume.fallocate(&*volume.open_file(args.fh)?, &args, &requester)
                });
            }
            Operation::Lseek(args) => {
                self.serve(cx, header, change, reply, move |volume| volume.lseek(&*volume.open_file(args.fh)?, &args));
            }
            Operation::CopyFileRange(args) => {
                let charged = self.handles.file(args.fh_out).map(|open| self.charged(header, &open));
                let requester = *header;
                self.serve(cx, header, change, reply, move |volume| {
                    volume.copy_file_range(&args, &requester, charged.as_ref())
                });
            }
            Operation::Readdir(args) | Operation::Readdirplus(args) => {
                let plus = matches!(op, Operation::Readdirplus(_));
                let Some(directory) = self.handles.directory(args.fh) else {
                    return self.deliver(reply, Err(Errno::BADF.into()));
                };
                self.serve(cx, header, change, reply, move |volume| volume.readdir(&directory, &args, plus));
            }
            Operation::Statfs => self.serve(cx, header, change, reply, |volume| volume.statfs()),
            Operation::Syncfs => self.serve(cx, header, change, reply, |volume| {
                volume.sb.sync()?;
                Ok(Answer::Done)
            }),
            // The kernel handles these itself when it gets ENOSYS, permissions and locks among them. Without STATX it
            // asks for attributes by GETATTR.
            Operation::Access(_)
            | Operation::Bmap(_)
            | Operation::Poll(_)
            | Operation::Statx(_)
            | Operation::Getlk(_)
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::Unknown(_) => self.deliver(reply, Err(Errno::NOSYS.into())),
            op => match self.node(cx, header.node_id) {
                Err(_) if is_of_itself(&op) => {
                    let id = header.node_id;
                    self.serve(cx, header, change, reply, move |volume| volume.find_forgotten(id));
                }
                Ok(node) => self.dispatch_on_node(cx, header, op, change, node, reply),
                Err(failure) => self.deliver(reply, Err(failure)),
            },
        }
    }

    /// Requests on a node, most of them about a name in it.
    fn dispatch_on_node(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        op: Operation<'_>,
        change: Option<Change>,
        node: Arc<Node>,
        reply: Reply,
    ) {
        let (own, unique) = (OsStr::to_os_string, header.unique);
        match op {
            Operation::Lookup { name } => {
                let name = own(name);
                self.serve(cx, header, change, reply, move |volume| match name.as_encoded_bytes() {
                    SELF => volume.lookup_self(&node),
                    PARENT => volume.lookup_parent(&node),
                    _ => volume.lookup(&node, &name),
                });
            }
            Operation::Getattr(_) => match self.known_attr(&node) {
                Some(answer) => self.deliver(reply, Ok(answer)),
                None => self.serve(cx, header, change, reply, move |volume| volume.getattr(&node)),
            },
            Operation::Setattr(args) => {
                self.serve(cx, header, change, reply, move |volume| volume.setattr(&node, &args))
            }
            Operation::Readlink => self.serve(cx, header, change, reply, move |volume| volume.readlink(&node)),
            Operation::Symlink { name, target } => {
                let (name, what, creator) = (own(name), NewNode::Symlink(own(target)), creator(header, 0));
                self.serve(cx, header, change, reply, move |volume| {
                    volume.note_name(unique, &node, &name)?;
                    volume.make(&node, &name, &what, 0o777, creator)
                });
            }
            Operation::Mknod { args, name } => {
                let (name, what, creator) = (own(name), Self::new_node(&args), creator(header, args.umask));
                self.serve(cx, header, change, reply, move |volume| {
                    volume.note_name(unique, &node, &name)?;
                    volume.make(&node, &name, &what, args.mode, creator)
                });
            }
            Operation::Mkdir { args, name } => {
                let (name, creator) = (own(name), creator(header, args.umask));
                let what = NewNode::Directory;
                self.serve(cx, header, change, reply, move |volume| {
                    volume.note_name(unique, &node, &name)?;
                    volume.make(&node, &name, &what, args.mode, creator)
                });
            }
            Operation::Create { args, name } => {
                let (name, creator) = (own(name), creator(header, args.umask));
                let opener = self.opener(header);
                self.serve(cx, header, change, reply, move |volume| {
                    volume.note_name(unique, &node, &name)?;
                    volume.create(&node, &name, &args, creator, &opener)
                });
            }
            Operation::Tmpfile(args) => {
                let (creator, opener) = (creator(header, args.umask), self.opener(header));
                self.serve(cx, header, change, reply, move |volume| volume.tmpfile(&node, &args, creator, &opener));
            }
            Operation::Unlink { name } | Operation::Rmdir { name } => {
                let is_directory = matches!(op, Operation::Rmdir { .. });
                let removal = if is_directory { Removal::Directory } else { Removal::File };
                let (name, memcg) = (own(name), self.tenant(header));
                self.serve(cx, header, change, reply, move |volume| volume.remove(&memcg, &node, &name, removal));
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let to_dir = match self.node(cx, new_parent) {
                    Ok(to_dir) => to_dir,
                    Err(failure) => return self.deliver(reply, Err(failure)),
                };
                let (from, to, memcg) = (own(name), own(new_name), self.tenant(header));
                self.serve(cx, header, change, reply, move |volume| {
                    volume.note_name(unique, &node, &from)?;
                    volume.rename(&memcg, (&node, &from), (&to_dir, &to), flags)
                });
            }
            Operation::Link { node: linked, name } => {
                let linked = match self.node(cx, linked) {
                    Ok(linked) => linked,
                    Err(failure) => return self.deliver(reply, Err(failure)),
                };
                let name = own(name);
                self.serve(cx, header, change, reply, move |volume| {
                    volume.note_name(unique, &node, &name)?;
                    volume.link(&linked, &node, &name)
                });
            }
            Operation::Open(args) => {
                let opener = self.opener(header);
                self.serve(cx, header, change, reply, move |volume| volume.open(&node, &args, &opener));
            }
            Operation::Opendir(_) => self.deliver(reply, self.opendir(&node, header.unique)),
            Operation::Fsyncdir(args) => {
                self.serve(cx, header, change, reply, move |volume| volume.fsyncdir(&node, &args))
            }
            Operation::Getxattr { size, name } => {
                let name = own(name);
                self.serve(cx, header, change, reply, move |volume| volume.getxattr(&node, &name, size));
            }
            Operation::Listxattr { size } => {
                self.serve(cx, header, change, reply, move |volume| volume.listxattr(&node, size));
            }
            Operation::Setxattr { args, name, value } => {
                let (name, value) = (own(name), value.to_vec());
                self.serve(cx, header, change, reply, move |volume| {
                    volume.note_attribute(unique, &node, &name);
                    volume.setxattr(&node, &name, &value, &args)
                });
            }
            Operation::Ioctl { args, input } => match FlagsIoctl::parse(args.cmd, input) {
                Some(ioctl) => self.serve(cx, header, change, reply, move |volume| volume.ioctl(&node, ioctl)),
                None => self.deliver(reply, Err(Errno::NOTTY.into())),
            },
            Operation::Removexattr { name } => {
                let name = own(name);
                self.serve(cx, header, change, reply, move |volume| {
                    volume.note_attribute(unique, &node, &name);
                    volume.removexattr(&node, &name)
                });
            }
            // The session, `handle` and `dispatch` answer these.
            Operation::Forget(_)
            | Operation::Init(_)
            | Operation::Interrupt { .. }
            | Operation::Destroy
            | Operation::Write(_)
            | Operation::Release(_)
            | Operation::Releasedir(_)
            | Operation::Read(_)
            | Operation::Flush(_)
            | Operation::Fsync(_)
            | Operation::Fallocate(_)
            | Operation::Lseek(_)
            | Operation::CopyFileRange(_)
            | Operation::Readdir(_)
            | Operation::Readdirplus(_)
            | Operation::Statfs
            | Operation::Syncfs
            | Operation::Access(_)
            | Operation::Bmap(_)
            | Operation::Poll(_)
            | Operation::Statx(_)
            | Operation::Getlk(_)
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::Unknown(_) => self.deliver(reply, Err(Errno::NOSYS.into())),
        }
    }

    /// WRITE: at once if the cache can take it.
    fn write(self: &Arc<Self>, cx: &Context<'_>, header: &RequestHeader, args: &WriteIn, bytes: &[u8], reply: Reply) {
        if args.write_flags & write_in::CACHE != 0 {
            return self.write_mapped(args, bytes, reply);
        }
        if self.is_refusing() {
            return self.deliver(reply, Err(Errno::IO.into()));
        }
        let Some(open) = self.handles.file(args.fh) else { return self.deliver(reply, Err(Errno::BADF.into())) };
        let Some(reply) = self.admit_write(cx, header, args, reply) else { return };
        let mut write = self.new_write(header, open, args);
        if write.must_queue() {
            return self.park(self.hold_reply(header.pid, reply), write, bytes);
        }
        match write.attempt(bytes, false) {
            Attempt::Done if write.is_async() => self.answer_write(header, write, reply),
            Attempt::Failed(failure) => self.deliver(reply, Err(failure)),
            attempt @ (Attempt::Done | Attempt::NoFrames | Attempt::NoSpace | Attempt::WouldBlock) => {
                let rest = &bytes[write.taken..];
                self.defer_write(cx, header, write, attempt, rest, reply);
            }
        }
    }

    /// A large WRITE: its frames become the file's pages if the cache can take them at once.
    fn write_landed(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        args: &WriteIn,
        mut landed: Landed<'_>,
        reply: Reply,
    ) {
        let is_plain = args.write_flags & write_in::CACHE == 0 && args.offset.is_multiple_of(PAGE_BYTES);
        let open = self.handles.file(args.fh).filter(|_| is_plain && !self.is_refusing());
        let mut write = match open.map(|open| self.new_write(header, open, args)).filter(|write| !write.must_queue()) {
            Some(write) => write,
            None => return self.write(cx, header, args, landed.into_bytes(0), reply),
        };
        let Some(reply) = self.admit_write(cx, header, args, reply) else { return };
        match write.attempt_landed(&mut landed) {
            Attempt::Done if write.is_async() => self.answer_write(header, write, reply),
            Attempt::Failed(failure) => self.deliver(reply, Err(failure)),
            attempt @ (Attempt::Done | Attempt::NoFrames | Attempt::NoSpace | Attempt::WouldBlock) => {
                let rest = landed.into_bytes(write.taken);
                self.defer_write(cx, header, write, attempt, rest, reply);
            }
        }
    }

    fn new_write(&self, header: &RequestHeader, open: Arc<OpenFile>, args: &WriteIn) -> Write {
        let (memcg, flags) = (self.charged(header, &open), self.write_flags(&open.node, header));
        Write::new(open, memcg, flags, args, header.unique)
    }

    /// The tenant for which a request opens or removes files.
    fn tenant(&self, header: &RequestHeader) -> Arc<Memcg> {
        let tenant = self.tenancy.as_ref().and_then(|tenancy| tenancy.memcg(header.pid, header.uid));
        tenant.unwrap_or_else(|| Arc::clone(self.sb.root_memcg()))
    }

    pub(super) fn opener(&self, header: &RequestHeader) -> Opener {
        Opener { memcg: self.tenant(header), dontcache: self.tenant_dontcache(header), unique: header.unique }
    }

    /// The tenant charged for the pages that a request writes to `open` or brings into the cache.
    fn charged(&self, header: &RequestHeader, open: &OpenFile) -> Arc<Memcg> {
        match &self.tenancy {
            None => Arc::clone(open.file.memcg()),
            Some(tenancy) => tenancy.memcg(header.pid, header.uid).unwrap_or_else(|| open.node.inode.memcg()),
        }
    }

    /// Answers a write whose bytes were taken at once: now, or when its writer may continue.
    fn answer_write(self: &Arc<Self>, header: &RequestHeader, write: Write, reply: Reply) {
        match write.pause() {
            Pause::None => self.deliver(reply, Ok(Answer::Written(write.taken as u32))),
            pause @ (Pause::For(_) | Pause::RetryAfter(_)) => {
                self.pause_write(self.hold_reply(header.pid, reply), write, pause)
            }
        }
    }

    /// Parks a write or continues it on a thread that may block, with the rest of its bytes.
    fn defer_write(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        write: Write,
        attempt: Attempt,
        rest: &[u8],
        reply: Reply,
    ) {
        let waiting = self.hold_reply(header.pid, reply);
        if attempt == Attempt::NoFrames {
            self.park(waiting, write, rest);
        } else {
            self.serve_write(cx, waiting, write, rest);
        }
    }
}
