//! The header and payload of a request.

use crate::abi;

/// Fields common to all requests.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct RequestHeader {
    /// Identifies the request in its reply and in an INTERRUPT.
    pub unique: u64,
    /// The node that the request is about; the parent if it is about a name.
    pub node_id: u64,
    /// Uid of the caller, in the user namespace of the mount.
    pub uid: u32,
    /// Gid of the caller.
    pub gid: u32,
    /// Thread id of the caller, in the pid namespace of the mount; 0 for the kernel itself, or for a caller outside
    /// that namespace.
    pub pid: u32,
    /// Number of the operation; see [`abi::Opcode`].
    pub opcode: u32,
}

impl RequestHeader {
    /// Whether the kernel sends this request again after [`Notifier::resend`](crate::Notifier::resend). The session
    /// that read it first may have executed it.
    #[must_use]
    pub const fn is_resend(&self) -> bool {
        self.unique & abi::UNIQUE_RESEND != 0
    }
}

/// Payload of a WRITE, in memory of the reading thread. It is page-aligned, and overwritten by a later request after
/// the handler has returned.
#[derive(Copy, Clone, Debug, Default)]
pub struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes: as many as [`WriteIn::size`](abi::WriteIn) says; empty unless the request is a WRITE.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}
