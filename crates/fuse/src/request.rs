//! Who asks: the header of a request.

use crate::abi;

/// What every request carries.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct RequestHeader {
    /// Names the request in its reply and in an INTERRUPT.
    pub unique: u64,
    /// The inode that it is about; the parent where it is about a name.
    pub node_id: u64,
    /// Of the caller, in the user namespace of the mount.
    pub uid: u32,
    /// Of the caller.
    pub gid: u32,
    /// Thread that asks, in the pid namespace of the mount; 0 when it is the kernel itself, or in no such namespace.
    pub pid: u32,
    /// Number of the request; see [`abi::Opcode`].
    pub opcode: u32,
}

impl RequestHeader {
    /// Whether the kernel sends this request again after [`Notifier::resend`](crate::Notifier::resend): whoever read it
    /// first may have executed it.
    #[must_use]
    pub const fn is_resend(&self) -> bool {
        self.unique & abi::UNIQUE_RESEND != 0
    }
}

/// Bytes that a WRITE brings, in memory of the reading thread: page-aligned there, and overwritten by a later request once
/// the handler has returned.
#[derive(Copy, Clone, Debug, Default)]
pub struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes; as many as [`WriteIn::size`](abi::WriteIn) says, and none unless the request is a WRITE.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}
