//! Requests that an earlier process read and did not answer. It may have carried them out.
//!
//! # Cases
//! | The earlier process | This one |
//! |---|---|
//! | had not begun | carries the request out |
//! | had recorded the outcome | answers with the outcome |
//! | had recorded that a sync fails | answers with that error, which is then reported (`reported`) |
//! | had opened a handle for the request | answers with that handle |
//! | had begun a change of names | compares the names with what they led to before: a change that is there was made by this request |
//! | had begun another change | carries it out again, which leads to the same |
//!
//! For the last two, a program that changes the source itself at that moment can make a difference
//! (docs/SEMANTICS.md, P9). While a change is unanswered the kernel holds the locks of its directories, so no other
//! request through this mount has changed the names. That holds for all mount points: they are one super block.
//!
//! # Changes of names
//! | Request | Recorded before | Was made if now |
//! |---|---|---|
//! | MKDIR, MKNOD, SYMLINK, CREATE | that there is no such name | there is one |
//! | LINK | that there is no such name | it leads to the file |
//! | UNLINK, RMDIR | | there is no such name |
//! | RENAME, also over another file, onto or into directories, and with a whiteout | the inode of the old name | the new name leads to it |
//! | RENAME with NOREPLACE | the same | that, and the old name does not |
//! | RENAME with EXCHANGE | the same | the new name leads to it |
//! | SETXATTR with CREATE | that there is no such attribute | it has the value |
//! | REMOVEXATTR | that there is such an attribute | there is none |
//!
//! Neither times nor the mere presence of the old name decide: the clock of a source may differ, and a whiteout has the
//! old name. If both names of a rename lead to one file, rename(2) leaves them alone, so it counts as made; with
//! NOREPLACE it is carried out again and fails. Where a source takes names that differ in case for one, the same applies.
//! If nothing is recorded, the change was not carried out. A file without a name (TMPFILE) is made again, and the first
//! one goes with its process.
//!
//! # Invariants
//! X1. A change is recorded before it is carried out, and its outcome before it is answered ([`MountRecord`]).
//! X2. A write whose bytes are taken is recorded as such before its writer is held back or its data made durable. So
//!     it is never repeated over a later write.
//!
//! [`MountRecord`]: crate::takeover::MountRecord

use std::ffi::OsStr;

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use slackwater::backend::NodeKind;
use slackwater::{ErrorKind, InodeRef};
use slackwater_fuse::abi::{CreateIn, WriteIn};
use slackwater_fuse::{Context, Operation, Reply, RequestHeader};
use slackwater_sync::shim::Arc;

use crate::takeover::{self, Outcome, Point};
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::{self, Failure};
use crate::volume::names::RENAME_NOREPLACE;
use crate::volume::nodes::Node;
use crate::volume::open_files::Opener;
use crate::volume::writes::sync_scope;
use crate::volume::xattrs::XATTR_CREATE;

/// Recorded before a change if its name or attribute does not exist.
const NOTHING: u64 = u64::MAX;

impl Volume {
    /// Records a change that is about to be made (X1), and answers a request that an earlier process has carried out.
    /// Returns the reply if the request is to be carried out.
    pub(super) fn admit(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        op: &Operation<'_>,
        is_change: bool,
        mut reply: Reply,
    ) -> Option<Reply> {
        let Some(keeping) = &self.keeping else { return Some(reply) };
        if header.is_resend() && keeping.is_inherited() {
            let _blocking = cx.try_block();
            if let Some(result) = self.earlier_result(cx, header, op) {
                reply.mark();
                self.deliver(reply, result);
                return None;
            }
        }
        if matches!(op, Operation::Fsync(_)) {
            reply.mark(); // if it reports an error
        }
        if is_change {
            keeping.record.begin_change(header.unique, begin_ns());
            takeover::pass(Point::Begun, header.unique, None);
            reply.mark();
        }
        Some(reply)
    }

    /// The same for WRITE.
    pub(super) fn admit_write(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        args: &WriteIn,
        mut reply: Reply,
    ) -> Option<Reply> {
        let Some(keeping) = &self.keeping else { return Some(reply) };
        if header.is_resend() && keeping.is_inherited() {
            match keeping.record.change(header.unique).and_then(|change| change.outcome) {
                None => {}
                Some(Outcome::Failed(errno) | Outcome::Reported(errno)) => {
                    self.finish_report(keeping, header.unique, args.fh);
                    reply.mark();
                    self.deliver(reply, Err(errno.into()));
                    return None;
                }
                Some(outcome) => {
                    let taken = if let Outcome::Written(bytes) = outcome { bytes } else { 0 };
                    let (args, unique) = (*args, header.unique);
                    reply.mark();
                    self.serve(cx, header, None, reply, move |volume| volume.finish_earlier(&args, taken, unique));
                    return None;
                }
            }
        }
        if reply.mark() {
            keeping.record.begin_change(header.unique, begin_ns());
            takeover::pass(Point::Begun, header.unique, None);
        }
        Some(reply)
    }

    /// Records to which inode a name leads before a change, without which the source does not show whether it was made.
    ///
    /// # Blocking
    /// For the backend.
    pub(super) fn note_name(&self, unique: u64, dir: &Node, name: &OsStr) -> Result<(), Failure> {
        let Some(keeping) = &self.keeping else { return Ok(()) };
        keeping.record.note_before(unique, self.present(dir, name)?.map_or(NOTHING, |inode| inode.id().ino));
        Ok(())
    }

    /// The same for an attribute.
    ///
    /// # Blocking
    /// For the backend.
    pub(super) fn note_attribute(&self, unique: u64, node: &Node, name: &OsStr) {
        let Some(keeping) = &self.keeping else { return };
        match self.sb.getxattr(&node.inode, name) {
            Ok(_) => keeping.record.note_before(unique, node.inode.id().ino),
            Err(error) if errno::of(error.kind()) == Errno::NODATA => keeping.record.note_before(unique, NOTHING),
            // The change fails in the same way.
            Err(_) => {}
        }
    }

    /// The result that an earlier process reached. `None` if the request is to be carried out.
    fn earlier_result(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        op: &Operation<'_>,
    ) -> Option<Result<Answer, Failure>> {
        let keeping = self.keeping.as_ref()?;
        let change = keeping.record.change(header.unique);
        if let Some(Outcome::Failed(errno) | Outcome::Reported(errno)) = change.and_then(|change| change.outcome) {
            if let Operation::Fsync(args) = op {
                self.finish_report(keeping, header.unique, args.fh);
            }
            return Some(Err(errno.into()));
        }
        if let Some(handle) = keeping.opened_by(header.unique) {
            return self.earlier_handle(handle, op, change.is_some_and(|change| change.outcome.is_none()));
        }
        let change = change?;
        let result = match change.outcome {
            // The node of an entry is recorded last (`MountRecord::complete_change`).
            None | Some(Outcome::Entry(NOTHING)) => self.look_for(cx, header, op, change.before).transpose()?,
            Some(Outcome::Failed(errno) | Outcome::Reported(errno)) => Err(errno.into()),
            Some(Outcome::Done) => Ok(Answer::Done),
            Some(Outcome::Written(bytes)) => Ok(Answer::Written(bytes)),
            Some(Outcome::Attr) => self.node(cx, header.node_id).and_then(|node| self.getattr(&node)),
            Some(Outcome::Entry(number)) => self.entry_again(cx, number),
        };
        Some(result)
    }

    fn entry_again(&self, cx: &Context<'_>, number: u64) -> Result<Answer, Failure> {
        let node = self.node(cx, number)?;
        let node = self.know(node.inode.clone()).ok_or(Failure(Errno::STALE))?;
        Ok(Answer::Entry(self.entry_out(&node)))
    }

    /// The answer with a handle that an earlier process opened. `None` if that cannot be found any more.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the rest opens nothing")]
    fn earlier_handle(
        &self,
        (number, open_flags): (u64, u32),
        op: &Operation<'_>,
        is_unfinished: bool,
    ) -> Option<Result<Answer, Failure>> {
        let entry = |node: &Arc<Node>| {
            let node = self.know(node.inode.clone()).ok_or(Failure(Errno::STALE))?;
            Ok(Answer::Created(self.entry_out(&node), number, open_flags))
        };
        match op {
            Operation::Opendir(_) => Some(Ok(Answer::Opened(number, open_flags))),
            Operation::Open(args) => {
                let open = self.handles.file(number)?;
                let truncated = if is_unfinished { self.truncate(&open.node, args) } else { Ok(()) };
                Some(truncated.map(|()| Answer::Opened(number, open_flags)).map_err(Failure::from))
            }
            Operation::Create { .. } | Operation::Tmpfile(_) => Some(entry(&self.handles.file(number)?.node)),
            _ => None,
        }
    }

    /// Whether a change that an earlier process began is there. `before` is what that process has recorded; 0 if nothing.
    /// `None` if it is to be made, perhaps again.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the rest has the same effect when it is repeated")]
    fn look_for(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        op: &Operation<'_>,
        before: u64,
    ) -> Result<Option<Answer>, Failure> {
        let dir = || self.node(cx, header.node_id);
        let made = |name: &OsStr| match before {
            NOTHING => self.present(&*dir()?, name),
            _ => Ok(None),
        };
        match op {
            Operation::Mkdir { name, .. } | Operation::Mknod { name, .. } | Operation::Symlink { name, .. } => {
                let Some(inode) = made(name)? else { return Ok(None) };
                let dir = dir()?;
                Ok(Some(Answer::Entry(self.entry(&dir, inode)?)))
            }
            Operation::Create { args, name } => match made(name)? {
                Some(inode) if inode.kind() == NodeKind::File => {
                    self.open_made(&*dir()?, header, args, inode).map(Some)
                }
                Some(_) | None => Ok(None),
            },
            Operation::Link { node: linked, name } => {
                let Some(inode) = made(name)? else { return Ok(None) };
                let is_it = self.node(cx, *linked)?.inode.id() == inode.id();
                if is_it { Ok(Some(Answer::Entry(self.entry(&*dir()?, inode)?))) } else { Ok(None) }
            }
            Operation::Unlink { name } | Operation::Rmdir { name } => {
                Ok(self.present(&*dir()?, name)?.is_none().then_some(Answer::Done))
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let is_there = |found: Option<InodeRef>| found.is_some_and(|inode| inode.id().ino == before);
                let is_moved = is_there(self.present(&*self.node(cx, *new_parent)?, new_name)?)
                    && (*flags != RENAME_NOREPLACE || !is_there(self.present(&*dir()?, name)?));
                Ok(is_moved.then_some(Answer::Done))
            }
            Operation::Setxattr { args, name, value } if args.flags & XATTR_CREATE != 0 && before == NOTHING => {
                let has = self.sb.getxattr(&self.node(cx, header.node_id)?.inode, name);
                Ok(has.is_ok_and(|has| has == *value).then_some(Answer::Done))
            }
            Operation::Removexattr { name } if ![0, NOTHING].contains(&before) => {
                match self.sb.getxattr(&self.node(cx, header.node_id)?.inode, name) {
                    Err(error) if errno::of(error.kind()) == Errno::NODATA => Ok(Some(Answer::Done)),
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// The inode that a name leads to, if there is one.
    fn present(&self, dir: &Node, name: &OsStr) -> Result<Option<InodeRef>, Failure> {
        match self.sb.lookup_unchecked(&dir.inode, name) {
            Ok(inode) => Ok(Some(inode)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn open_made(
        &self,
        dir: &Node,
        header: &RequestHeader,
        args: &CreateIn,
        inode: InodeRef,
    ) -> Result<Answer, Failure> {
        let opener = Opener { dontcache: None, ..self.opener(header) };
        self.open_new(dir, inode, args.flags, &opener)
    }

    /// Completes a write whose bytes an earlier process took.
    fn finish_earlier(&self, args: &WriteIn, taken: u32, unique: u64) -> Result<Answer, Failure> {
        if let Some(scope) = sync_scope(args) {
            self.sync_file(&*self.open_file(args.fh)?, scope, (args.fh, unique))?;
        }
        Ok(Answer::Written(taken))
    }
}

/// The time at which a change begins, by which the oldest of too many gives way.
pub(super) fn begin_ns() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    (now.tv_sec * 1_000_000_000 + now.tv_nsec).cast_unsigned()
}
