//! Writes: at once if possible, on a blocking thread if the backend must be asked, parked if no frame is free.

use rustix::io::Errno;
use slackwater::backend::SyncScope;
use slackwater::{ErrorKind, FileError, Memcg, Pause, WaitFor, WriteFlags, WriteRequest, Written};
use slackwater_fuse::Landed;
use slackwater_fuse::abi::{WriteIn, open, write_in};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::takeover::Outcome;
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::callers::PendingCall;
use crate::volume::errno::Failure;
use crate::volume::kernel_pages::bytes_of;
use crate::volume::lent::Lent;
use crate::volume::open_files::OpenFile;

/// A write without its payload.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) open: Arc<OpenFile>,
    /// The tenant it is charged to.
    pub(super) memcg: Arc<Memcg>,
    flags: WriteFlags,
    /// Offset of the next byte.
    offset_bytes: u64,
    /// Bytes taken so far.
    pub(super) taken: usize,
    kills_suidgid: bool,
    /// The scope that must be durable before the reply.
    sync: Option<SyncScope>,
    /// Numbers of the open file and of the request.
    handle: u64,
    unique: u64,
}

/// How far a write got.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Attempt {
    /// The write got to its end, or to a failure after some bytes.
    Done,
    /// No frame is free.
    NoFrames,
    /// The backend may be full.
    NoSpace,
    /// The backend must be asked first.
    WouldBlock,
    /// The write failed before the first byte.
    Failed(Failure),
}

/// The scope that a write makes durable before it returns.
pub(super) fn sync_scope(args: &WriteIn) -> Option<SyncScope> {
    // The kernel adds RWF_SYNC and RWF_DSYNC of this write to the flags of the open file.
    match args.flags & open::SYNC {
        open::SYNC => Some(SyncScope::All),
        flags if flags & open::DSYNC != 0 => Some(SyncScope::Data),
        _ => None,
    }
}

impl Write {
    /// The write that a request describes.
    pub(super) fn new(open: Arc<OpenFile>, memcg: Arc<Memcg>, flags: WriteFlags, args: &WriteIn, unique: u64) -> Self {
        let sync = sync_scope(args);
        let kills_suidgid = args.write_flags & write_in::KILL_SUIDGID != 0;
        Self { open, memcg, flags, offset_bytes: args.offset, taken: 0, kills_suidgid, sync, handle: args.fh, unique }
    }

    /// Whether the write is complete once its bytes are taken.
    pub(super) fn is_async(&self) -> bool {
        self.sync.is_none()
    }

    /// How long its writer must pause. A synchronous write has already waited for the backend.
    pub(super) fn pause(&self) -> Pause {
        if self.is_async() { self.open.file.balance_dirty_pages(&self.memcg) } else { Pause::None }
    }

    /// Whether earlier writes to the file are parked.
    pub(super) fn must_queue(&self) -> bool {
        self.open.node.parked.load(Ordering::Acquire) != 0
    }

    /// Takes as much of `rest`, the remaining bytes, as possible.
    pub(super) fn attempt(&mut self, rest: &[u8], may_block: bool) -> Attempt {
        let begun = self.taken;
        let wait = if may_block { WaitFor::Backend } else { WaitFor::Nothing };
        self.attempt_with(begun + rest.len(), may_block, |write| {
            write.open.file.write(write.request().wait(wait), &rest[write.taken - begun..])
        })
    }

    /// Takes as much of a landed payload as possible without blocking.
    pub(super) fn attempt_landed(&mut self, landed: &mut Landed<'_>) -> Attempt {
        let len = landed.len();
        self.attempt_with(len, false, |write| {
            write.open.file.write_landed(write.request(), Lent::frames(landed), write.taken..len)
        })
    }

    /// The engine's request for the rest of the bytes.
    fn request(&self) -> WriteRequest<'_> {
        WriteRequest::at(self.offset_bytes).memcg(&self.memcg).flags(self.flags)
    }

    fn attempt_with(
        &mut self,
        len: usize,
        may_block: bool,
        mut put: impl FnMut(&Self) -> Result<Written, FileError>,
    ) -> Attempt {
        if self.kills_suidgid {
            if !may_block && self.open.node.inode.attr().mode & 0o6000 != 0 {
                return Attempt::WouldBlock;
            }
            if let Err(error) = self.open.node.inode.super_block().kill_suidgid(&self.open.node.inode) {
                return self.failed(error);
            }
            self.kills_suidgid = false;
        }
        while self.taken < len {
            match self.open.node.kernel_pages.write(self.offset_bytes, || put(self), bytes_of) {
                Ok(Written::Bytes(bytes)) => {
                    self.taken += bytes;
                    self.offset_bytes += bytes as u64;
                }
                Ok(Written::NoSpace) => return Attempt::NoSpace,
                // Any answer that the engine may add is a reason to wait.
                Ok(_) => return Attempt::NoFrames,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Attempt::WouldBlock,
                Err(error) => return self.failed(error),
            }
        }
        self.done()
    }

    /// The bytes are taken: a process that takes the mount over must not write them again (X2 of `repeated`).
    fn done(&self) -> Attempt {
        if let Some(keeping) = &self.open.keeping {
            keeping.record.complete_change(self.unique, Outcome::Written(self.taken as u32));
        }
        Attempt::Done
    }

    fn failed(&self, error: FileError) -> Attempt {
        if matches!(error, FileError::NotMounted) {
            Attempt::WouldBlock // usually frozen; a thread that may wait finds out
        } else if self.taken > 0 {
            self.done()
        } else {
            Attempt::Failed(error.into())
        }
    }
}

impl Volume {
    /// Writes `rest` on a thread that may wait for the backend, or parks it.
    pub(super) fn write_blocking(self: &Arc<Self>, waiting: PendingCall, mut write: Write, rest: &[u8]) {
        if !waiting.begin_change(self.sb.now()) {
            return;
        }
        let begun = write.taken;
        let mut is_confirmed = false;
        let failure = loop {
            let attempt = write.attempt(&rest[write.taken - begun..], true);
            match attempt {
                Attempt::Done => break None,
                Attempt::NoFrames => {
                    let left = &rest[write.taken - begun..];
                    self.park(waiting, write, left);
                    return;
                }
                Attempt::NoSpace if is_confirmed => break Some(Failure(Errno::NOSPC)),
                Attempt::NoSpace => {
                    // Dirty pages are assumed to need new space, though they may overwrite allocated space. After
                    // write-back the free space is known. If write-back fails, the files concerned report it.
                    let _ = self.sb.sync();
                    is_confirmed = true;
                }
                // For a thread that may wait, only a freeze is in the way.
                Attempt::WouldBlock if self.wait_until_thawed() => {}
                Attempt::WouldBlock => break Some(Failure(Errno::IO)),
                Attempt::Failed(failure) => break Some(failure),
            }
        };
        match failure {
            Some(failure) if write.taken == 0 => {
                self.finish(waiting, Err(failure));
            }
            Some(_) | None if write.is_async() => self.finish_write(waiting, write),
            Some(_) | None => {
                self.finish(waiting, self.complete(&write));
            }
        }
    }

    /// The answer to a write whose bytes are taken, after making them as durable as requested.
    pub(super) fn complete(&self, write: &Write) -> Result<Answer, Failure> {
        if let Some(scope) = write.sync {
            self.sync_file(&write.open, scope, (write.handle, write.unique))?;
        }
        // At most one request, which is far below 4 GiB.
        Ok(Answer::Written(write.taken as u32))
    }
}
