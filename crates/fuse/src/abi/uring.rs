//! Requests over io_uring: the commands, and the memory of one entry.
//!
//! An entry is a header and a payload. The header has three parts at fixed places: the [`InHeader`](super::InHeader) of
//! a request or the [`OutHeader`](super::OutHeader) of its reply, the first argument of the operation, and
//! [`UringEntInOut`]. All other arguments and the data of the reply are in the payload.

use super::wire;

/// Requests of the server.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum UringCommand {
    /// Adds an entry to a queue.
    Register = 1,
    /// Replies to the request in an entry, and waits for the next one.
    CommitAndFetch = 2,
}

/// Size of an entry's header.
pub const URING_HEADER_BYTES: usize = 288;
/// Place of the operation's first argument in the header; it has this many bytes at most.
pub const URING_OP_IN: usize = 128;
/// Place of [`UringEntInOut`] in the header.
pub const URING_ENT_IN_OUT: usize = 256;

wire! {
    /// The last part of an entry's header.
    pub struct UringEntInOut {
        pub flags: u64,
        pub commit_id: u64,
        pub payload_sz: u32,
        pub padding: u32,
        pub reserved: u64,
    }

    /// The arguments of a command.
    pub struct UringCmdReq {
        pub flags: u64,
        pub commit_id: u64,
        pub qid: u16,
        pub padding: [u16; 3],
    }
}
