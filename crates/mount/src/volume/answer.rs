//! Answers to requests, and undoing those that do not arrive.
//!
//! An answer may hand the kernel a lookup or a handle, which the kernel returns later. If the caller was released
//! meanwhile, or the mount is gone, the kernel never returns it, so it is taken back here.

use slackwater_fuse::abi::{AttrOut, EntryOut, Kstatfs};
use slackwater_fuse::{Delivery, Reply};

use crate::takeover::{self, Outcome, Point};
use crate::volume::Volume;
use crate::volume::errno::Failure;
use crate::volume::read_buffer::ReadBuffer;

/// The answer to a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// Success, without data.
    Done,
    /// A name, with one lookup of its node; no lookup if the node is 0.
    Entry(EntryOut),
    /// Attributes.
    Attr(AttrOut),
    /// A handle with its flags.
    Opened(u64, u32),
    /// A name with its lookup, and a handle with its flags.
    Created(EntryOut, u64, u32),
    /// Directory entries, and the nodes that get one lookup each.
    Entries(Vec<u8>, Vec<u64>),
    /// A link's target or an attribute's value.
    Bytes(Vec<u8>),
    /// Bytes of a file.
    Data(ReadBuffer),
    /// Length of the requested value.
    Size(u32),
    /// Number of bytes taken.
    Written(u32),
    /// An offset in a file.
    Offset(u64),
    /// Space and limits.
    Statfs(Kstatfs),
    /// Output of an ioctl.
    Ioctl(Vec<u8>),
}

/// The entry in the record of a kept mount for a result. The handle of an opened file has its own entry there.
fn outcome_of(result: &Result<Answer, Failure>) -> Outcome {
    match result {
        Err(Failure(errno)) => Outcome::Failed(*errno),
        Ok(Answer::Entry(entry)) => Outcome::Entry(entry.nodeid),
        Ok(Answer::Attr(_)) => Outcome::Attr,
        Ok(Answer::Written(bytes)) => Outcome::Written(*bytes),
        Ok(
            Answer::Done
            | Answer::Opened(..)
            | Answer::Created(..)
            | Answer::Entries(..)
            | Answer::Bytes(_)
            | Answer::Data(_)
            | Answer::Size(_)
            | Answer::Offset(_)
            | Answer::Statfs(_)
            | Answer::Ioctl(_),
        ) => Outcome::Done,
    }
}

impl Volume {
    /// Sends an answer. If it does not arrive, takes back what it hands out.
    pub(super) fn deliver(&self, reply: Reply, result: Result<Answer, Failure>) {
        let Some(keeping) = &self.keeping else { return self.send(reply, result) };
        let (unique, is_change) = (reply.unique(), reply.is_marked());
        takeover::pass(Point::CarriedOut, unique, None);
        if is_change {
            keeping.record.complete_change(unique, outcome_of(&result));
            takeover::pass(Point::Recorded, unique, None);
        }
        self.send(reply, result);
        takeover::pass(Point::Answered, unique, None);
        if is_change {
            keeping.record.end_change(unique);
        }
    }

    fn send(&self, reply: Reply, result: Result<Answer, Failure>) {
        let answer = match result {
            Ok(answer) => answer,
            Err(Failure(errno)) => {
                let _ = reply.error(errno);
                return;
            }
        };
        let delivery = match &answer {
            Answer::Done => reply.empty(),
            Answer::Entry(entry) => reply.entry(entry),
            Answer::Attr(attr) => reply.attr(attr),
            Answer::Opened(handle, flags) => reply.open(*handle, *flags),
            Answer::Created(entry, handle, flags) => reply.create(entry, *handle, *flags),
            Answer::Entries(bytes, _) | Answer::Bytes(bytes) => reply.bytes(bytes),
            Answer::Data(buffer) => reply.bytes(buffer),
            Answer::Size(size) => reply.xattr_size(*size),
            Answer::Written(bytes) => reply.write(*bytes),
            Answer::Offset(offset) => reply.lseek(*offset),
            Answer::Statfs(statfs) => reply.statfs(statfs),
            Answer::Ioctl(output) => reply.ioctl(output),
        };
        if delivery == Delivery::Gone {
            self.take_back(answer);
        }
    }

    /// Takes back the lookups and handles of an answer.
    pub(super) fn take_back(&self, answer: Answer) {
        match answer {
            Answer::Entry(entry) => self.forget(entry.nodeid, 1),
            Answer::Opened(handle, _) => self.handles.remove(handle),
            Answer::Created(entry, handle, _) => {
                self.handles.remove(handle);
                self.forget(entry.nodeid, 1);
            }
            Answer::Entries(_, nodes) => nodes.into_iter().for_each(|node| self.forget(node, 1)),
            Answer::Done
            | Answer::Attr(_)
            | Answer::Bytes(_)
            | Answer::Data(_)
            | Answer::Size(_)
            | Answer::Written(_)
            | Answer::Offset(_)
            | Answer::Statfs(_)
            | Answer::Ioctl(_) => {}
        }
    }
}
