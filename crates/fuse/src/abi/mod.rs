//! The FUSE protocol of the kernel, version 7.45: numbers, flags and records.
//!
//! Names are the kernel's (`linux/fuse.h`) without their prefixes. Every record is `repr(C)` without hidden padding, in
//! native byte order. Records are converted field by field: without casts or `unsafe`.

#![allow(missing_docs, reason = "fields and constants have the kernel's names and meanings")]

mod flags;
mod notify;
mod opcode;
mod reply;
mod request;
mod uring;

pub use flags::{fattr, fopen, fsync, getattr, init, lk, open, open_in, read_in, release, setxattr, write_in};
pub use notify::{InvalEntryOut, InvalInodeOut, NotifyCode, NotifyDeleteOut, NotifyPruneOut};
pub use opcode::Opcode;
pub use reply::{
    Attr, AttrOut, BmapOut, DirentHead, EntryOut, FileLock, GetxattrOut, InitOut, IoctlOut, Kstatfs, LkOut, LseekOut,
    OpenOut, OutHeader, Statx, StatxOut, SxTime, WriteOut,
};
pub use request::{
    AccessIn, BatchForgetIn, BmapIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, ForgetIn, ForgetOne, FsyncIn,
    GetattrIn, GetxattrIn, InHeader, InitExtIn, InitIn, InterruptIn, IoctlIn, LinkIn, LkIn, LseekIn, MkdirIn, MknodIn,
    OpenIn, PollIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, StatxIn, SyncfsIn, WriteIn,
};
pub use uring::{URING_ENT_IN_OUT, URING_HEADER_BYTES, URING_OP_IN, UringCmdReq, UringCommand, UringEntInOut};

/// The protocol's major version.
pub const KERNEL_VERSION: u32 = 7;
/// The minor version of these records.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// Node number of the root directory.
pub const ROOT_ID: u64 = 1;
/// The bit in [`InHeader::unique`] of a request that the kernel sends again.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// The bit in the `unique` of an INTERRUPT.
pub const INT_REQ_BIT: u64 = 1;

/// A record of fixed size in native byte order.
pub trait Wire: Sized {
    /// Size in bytes.
    const SIZE: usize;

    /// Takes the record from the front of `bytes`; `None` if they are too few.
    fn take(bytes: &mut &[u8]) -> Option<Self>;

    /// Writes the record to the front of `out` and moves past it.
    ///
    /// # Panics
    /// If `out` is shorter than [`SIZE`](Self::SIZE).
    fn put(&self, out: &mut &mut [u8]);
}

macro_rules! wire_number {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            const SIZE: usize = size_of::<$number>();

            #[inline]
            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (head, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_ne_bytes(*head))
            }

            #[inline]
            fn put(&self, out: &mut &mut [u8]) {
                let (head, rest) = std::mem::take(out).split_at_mut(Self::SIZE);
                head.copy_from_slice(&self.to_ne_bytes());
                *out = rest;
            }
        }
    )*};
}
wire_number!(u16, u32, u64, i32, i64);

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    const SIZE: usize = N * T::SIZE;

    #[inline]
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut array = [T::default(); N];
        for element in &mut array {
            *element = T::take(bytes)?;
        }
        Some(array)
    }

    #[inline]
    fn put(&self, out: &mut &mut [u8]) {
        self.iter().for_each(|element| element.put(out));
    }
}

/// Declares records.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $kind:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $kind,)*
        }

        impl $crate::abi::Wire for $name {
            const SIZE: usize = size_of::<$name>();

            #[inline]
            fn take(bytes: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: $crate::abi::Wire::take(bytes)?,)* })
            }

            #[inline]
            fn put(&self, out: &mut &mut [u8]) {
                $(self.$field.put(out);)*
            }
        }

        impl $name {
            /// The record's bytes.
            #[inline]
            #[must_use]
            pub fn to_bytes(&self) -> [u8; size_of::<$name>()] {
                let mut bytes = [0; size_of::<$name>()];
                $crate::abi::Wire::put(self, &mut &mut bytes[..]);
                bytes
            }
        }

        const _: () = assert!(
            size_of::<$name>() == 0 $(+ <$kind as $crate::abi::Wire>::SIZE)*,
            "hidden padding"
        );
    )*};
}
use wire;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_the_kernels() {
        assert_eq!((InHeader::SIZE, OutHeader::SIZE), (40, 16));
        assert_eq!((WriteIn::SIZE, ReadIn::SIZE, SetattrIn::SIZE), (40, 40, 88));
        assert_eq!((Attr::SIZE, EntryOut::SIZE, AttrOut::SIZE, OpenOut::SIZE), (88, 128, 104, 16));
        assert_eq!((InitIn::SIZE + InitExtIn::SIZE, InitOut::SIZE), (64, 64));
        assert_eq!((Kstatfs::SIZE, LkIn::SIZE, LkOut::SIZE), (80, 48, 24));
        assert_eq!((Statx::SIZE, StatxOut::SIZE, StatxIn::SIZE), (256, 288, 24));
        assert_eq!((CopyFileRangeIn::SIZE, IoctlIn::SIZE, DirentHead::SIZE), (56, 32, 24));
        assert_eq!((InvalInodeOut::SIZE, InvalEntryOut::SIZE, NotifyDeleteOut::SIZE), (24, 16, 24));
        assert_eq!(NotifyPruneOut::SIZE, 16);
    }

    #[test]
    fn a_record_survives_conversion_to_bytes_and_back() {
        let record = WriteIn { fh: 1, offset: 2, size: 3, write_flags: 4, lock_owner: 5, flags: 6, padding: 7 };
        let bytes = record.to_bytes();
        assert_eq!(WriteIn::take(&mut &bytes[..]), Some(record));
        assert_eq!(WriteIn::take(&mut &bytes[..39]), None);
    }
}
