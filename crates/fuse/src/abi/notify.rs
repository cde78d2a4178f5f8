//! What a server tells the kernel unasked. A notification is an [`OutHeader`](super::OutHeader) with `unique` 0 and
//! the code in `error`, and a record.

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
    /// Forget cached pages of an inode from `off` on; attributes in any case. `len` 0 is "to the end", a negative
    /// `off` "attributes only".
    pub struct InvalInodeOut {
        pub ino: u64,
        pub off: i64,
        pub len: i64,
    }

    /// Forget a name; the name and a NUL follow.
    pub struct InvalEntryOut {
        pub parent: u64,
        pub namelen: u32,
        pub flags: u32,
    }

    /// A name is gone together with its inode; the name and a NUL follow.
    pub struct NotifyDeleteOut {
        pub parent: u64,
        pub child: u64,
        pub namelen: u32,
        pub padding: u32,
    }

    /// Give up what is not in use of some nodes; `count` numbers of 64 bits follow. From minor version 45 on.
    pub struct NotifyPruneOut {
        pub count: u32,
        pub padding: u32,
        pub spare: u64,
    }
}
