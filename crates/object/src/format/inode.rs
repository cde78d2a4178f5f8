//! An inode.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use bytes::{BufMut, Bytes, BytesMut};
use slackwater::Timestamp;

use crate::format::chunk::FILE_BYTES_MAX;
use crate::format::codec::{Corrupt, Decode, Encode, Input, put_bytes, put_varint};

/// The number of the root directory.
pub(crate) const ROOT: u64 = 1;

/// The stored form of a node: everything but its names and its data.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) struct Inode {
    /// Type and permission bits as in `st_mode`.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) rdev: u64,
    pub(crate) size_bytes: u64,
    /// Bytes of the file that have extents.
    pub(crate) allocated_bytes: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) created: Timestamp,
    /// The bits of `FS_IOC_GETFLAGS`.
    pub(crate) flags: u32,
    /// The parent of a directory: the one that has its name; itself at the root.
    pub(crate) parent: u64,
    /// The target of a symbolic link.
    pub(crate) target: OsString,
    pub(crate) xattrs: Vec<(OsString, Xattr)>,
    /// The number of the next large attribute.
    pub(crate) next_xattr: u64,
}

/// The value of an extended attribute.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) enum Xattr {
    Here(Bytes),
    /// At [`Key::Xattr`](super::Key::Xattr) with this number.
    Apart(u64),
}

/// An inode without a name.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Orphan {
    /// Whether it was made without a name, and may get one.
    pub(crate) never_named: bool,
}

impl Encode for Orphan {
    fn encode_to(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.never_named));
    }
}

impl Decode for Orphan {
    fn decode_from(input: &mut Input<'_>) -> Result<Self, Corrupt> {
        match input.u8()? {
            0 => Ok(Self { never_named: false }),
            1 => Ok(Self { never_named: true }),
            _ => Err(Corrupt("unknown kind of orphan")),
        }
    }
}

impl Inode {
    /// An empty node of root without a name, made `now`. `mode` has the type bits.
    pub(crate) fn new(mode: u32, now: Timestamp) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
            nlink: 0,
            rdev: 0,
            size_bytes: 0,
            allocated_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            created: now,
            flags: 0,
            parent: 0,
            target: OsString::new(),
            xattrs: Vec::new(),
            next_xattr: 0,
        }
    }
}

impl Encode for Inode {
    fn encode_to(&self, out: &mut BytesMut) {
        for number in [self.mode, self.uid, self.gid, self.nlink, self.flags] {
            put_varint(out, u64::from(number));
        }
        for number in [self.rdev, self.size_bytes, self.allocated_bytes, self.parent, self.next_xattr] {
            put_varint(out, number);
        }
        for time in [self.atime, self.mtime, self.ctime, self.created] {
            out.put_i64_le(time.0);
        }
        put_bytes(out, self.target.as_bytes());
        put_varint(out, self.xattrs.len() as u64);
        for (name, value) in &self.xattrs {
            put_bytes(out, name.as_bytes());
            match value {
                Xattr::Here(value) => {
                    out.put_u8(0);
                    put_bytes(out, value);
                }
                Xattr::Apart(number) => {
                    out.put_u8(1);
                    put_varint(out, *number);
                }
            }
        }
    }
}

impl Decode for Inode {
    fn decode_from(input: &mut Input<'_>) -> Result<Self, Corrupt> {
        let [mode, uid, gid, nlink, flags] = [(); 5].map(|()| input.varint_u32());
        let [rdev, size_bytes, allocated_bytes, parent, next_xattr] = [(); 5].map(|()| input.varint());
        let (size_bytes, allocated_bytes, next_xattr) = (size_bytes?, allocated_bytes?, next_xattr?);
        if size_bytes.max(allocated_bytes).max(next_xattr) > FILE_BYTES_MAX {
            return Err(Corrupt("a size that no file can have"));
        }
        let [atime, mtime, ctime, created] = [(); 4].map(|()| input.i64().map(Timestamp));
        let target = OsString::from_vec(input.bytes()?.to_vec());
        let mut xattrs = Vec::new();
        for _ in 0..input.varint()? {
            let name = OsString::from_vec(input.bytes()?.to_vec());
            let value = match input.u8()? {
                0 => Xattr::Here(Bytes::copy_from_slice(input.bytes()?)),
                1 => Xattr::Apart(input.varint()?),
                _ => return Err(Corrupt("unknown kind of attribute")),
            };
            xattrs.push((name, value));
        }
        Ok(Self {
            mode: mode?,
            uid: uid?,
            gid: gid?,
            nlink: nlink?,
            rdev: rdev?,
            size_bytes,
            allocated_bytes,
            atime: atime?,
            mtime: mtime?,
            ctime: ctime?,
            created: created?,
            flags: flags?,
            parent: parent?,
            target,
            xattrs,
            next_xattr,
        })
    }
}
