//! Records that the server sends.

use super::wire;

wire! {
    /// The header of every reply.
    pub struct OutHeader {
        pub len: u32,
        /// 0, or an errno as a negative number.
        pub error: i32,
        pub unique: u64,
    }

    pub struct Attr {
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub atime: u64,
        pub mtime: u64,
        pub ctime: u64,
        pub atimensec: u32,
        pub mtimensec: u32,
        pub ctimensec: u32,
        pub mode: u32,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        pub rdev: u32,
        pub blksize: u32,
        pub flags: u32,
    }

    /// A name that was found or made. `nodeid` 0: there is none, and that may be cached.
    pub struct EntryOut {
        pub nodeid: u64,
        pub generation: u64,
        /// Seconds for which the name may be cached.
        pub entry_valid: u64,
        /// Seconds for which the attributes may be cached.
        pub attr_valid: u64,
        pub entry_valid_nsec: u32,
        pub attr_valid_nsec: u32,
        pub attr: Attr,
    }

    pub struct AttrOut {
        pub attr_valid: u64,
        pub attr_valid_nsec: u32,
        pub dummy: u32,
        pub attr: Attr,
    }

    pub struct SxTime {
        pub tv_sec: i64,
        pub tv_nsec: u32,
        pub reserved: i32,
    }

    pub struct Statx {
        pub mask: u32,
        pub blksize: u32,
        pub attributes: u64,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        pub mode: u16,
        pub spare0: u16,
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub attributes_mask: u64,
        pub atime: SxTime,
        pub btime: SxTime,
        pub ctime: SxTime,
        pub mtime: SxTime,
        pub rdev_major: u32,
        pub rdev_minor: u32,
        pub dev_major: u32,
        pub dev_minor: u32,
        pub spare2: [u64; 14],
    }

    pub struct StatxOut {
        pub attr_valid: u64,
        pub attr_valid_nsec: u32,
        pub flags: u32,
        pub spare: [u64; 2],
        pub stat: Statx,
    }

    pub struct OpenOut {
        pub fh: u64,
        pub open_flags: u32,
        pub backing_id: i32,
    }

    pub struct WriteOut {
        pub size: u32,
        pub padding: u32,
    }

    pub struct IoctlOut {
        pub result: i32,
        pub flags: u32,
        pub in_iovs: u32,
        pub out_iovs: u32,
    }

    pub struct Kstatfs {
        pub blocks: u64,
        pub bfree: u64,
        pub bavail: u64,
        pub files: u64,
        pub ffree: u64,
        pub bsize: u32,
        pub namelen: u32,
        pub frsize: u32,
        pub padding: u32,
        pub spare: [u32; 6],
    }

    pub struct GetxattrOut {
        pub size: u32,
        pub padding: u32,
    }

    pub struct FileLock {
        pub start: u64,
        pub end: u64,
        pub kind: u32,
        pub pid: u32,
    }

    pub struct LkOut {
        pub lk: FileLock,
    }

    pub struct BmapOut {
        pub block: u64,
    }

    pub struct LseekOut {
        pub offset: u64,
    }

    pub struct InitOut {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
        pub max_background: u16,
        pub congestion_threshold: u16,
        pub max_write: u32,
        pub time_gran: u32,
        pub max_pages: u16,
        pub map_alignment: u16,
        pub flags2: u32,
        pub max_stack_depth: u32,
        pub request_timeout: u16,
        pub unused: [u16; 11],
    }

    /// The head of a directory entry; the name follows, padded to 8 bytes.
    pub struct DirentHead {
        pub ino: u64,
        /// Where to go on after this entry.
        pub off: u64,
        pub namelen: u32,
        /// `DT_*`: the file type bits of the mode, shifted right by 12.
        pub kind: u32,
    }
}
