//! What a request is answered with, and what becomes of it when nobody is there to take it.
//!
//! An answer may hand the kernel something that it gives back later: a lookup, a handle. When the caller was
//! let go meanwhile, or the mount is gone, the kernel never will, so it is taken back here.

use crate::abi::{AttrOut, EntryOut, Kstatfs};
use crate::reply::{Delivery, Reply};
use crate::volume::Volume;
use crate::volume::errno::Failure;
use crate::volume::read_buffer::ReadBuffer;

/// What a request is answered with.
#[derive(Debug)]
pub(super) enum Answer {
    /// Nothing but success.
    Done,
    /// A name, with one lookup for its node; none for node 0.
    Entry(EntryOut),
    /// Attributes.
    Attr(AttrOut),
    /// A handle with its flags.
    Opened(u64, u32),
    /// A name with its lookup, and a handle with its flags.
    Created(EntryOut, u64, u32),
    /// Entries of a directory, each of these nodes with one lookup.
    Entries(Vec<u8>, Vec<u64>),
    /// A link's target or an attribute's value.
    Bytes(Vec<u8>),
    /// Bytes of a file.
    Data(ReadBuffer),
    /// How long the value is that was asked for.
    Size(u32),
    /// How many bytes were taken.
    Written(u32),
    /// A place in a file.
    Offset(u64),
    /// Space and limits.
    Statfs(Kstatfs),
    /// What an ioctl has for its caller.
    Ioctl(Vec<u8>),
}

impl Volume {
    /// Sends an answer; what it hands out comes back if it does not arrive.
    pub(super) fn deliver(&self, reply: Reply, result: Result<Answer, Failure>) {
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

    /// Undoes what an answer would have handed out.
    pub(super) fn take_back(&self, answer: Answer) {
        match answer {
            Answer::Entry(entry) => self.nodes.forget(entry.nodeid, 1),
            Answer::Opened(handle, _) => self.handles.remove(handle),
            Answer::Created(entry, handle, _) => {
                self.handles.remove(handle);
                self.nodes.forget(entry.nodeid, 1);
            }
            Answer::Entries(_, nodes) => nodes.into_iter().for_each(|node| self.nodes.forget(node, 1)),
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
