//! Notifications from the server. A notification is an [`OutHeader`](super::OutHeader) with `unique` 0 and the code in
//! `error`, followed by a record.

use super::wire;

/// Kind of a notification.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(i32)]
pub enum NotifyCode {
    Poll = 1,
    InvalInode = 2,
    InvalEntry = 3,
    Store = 4,
    Retrieve = 5,
    Delete = 6,
    Resend = 7,
    IncEpoch = 8,
    Prune = 9,
}

wire! {
    /// Drops cached attributes of an inode, and its cached pages from `off` on. `len` 0 means to the end, a negative
    /// `off` attributes only.
    pub struct InvalInodeOut {
        pub ino: u64,
        pub off: i64,
        pub len: i64,
    }

    /// Drops a cached name; the name and a NUL follow.
    pub struct InvalEntryOut {
        pub parent: u64,
        pub namelen: u32,
        pub flags: u32,
    }

    /// A name was removed together with its inode; the name and a NUL follow.
    pub struct NotifyDeleteOut {
        pub parent: u64,
        pub child: u64,
        pub namelen: u32,
        pub padding: u32,
    }

    /// Drops the unused ones among some nodes; `count` numbers of 64 bits follow. Needs minor version 45.
    pub struct NotifyPruneOut {
        pub count: u32,
        pub padding: u32,
        pub spare: u64,
    }
}
