//! The counters of a volume.

use bytes::{BufMut, BytesMut};

use crate::format::{Corrupt, Decode, Encode, Input};

/// The counters of a volume, stored with each commit.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Counters {
    /// The number of the last commit.
    pub(crate) commit: u64,
    /// The epoch of the writer that made the last commit. With `commit` it names one state of the volume.
    pub(crate) writer_epoch: u64,
    pub(crate) next_ino: u64,
    pub(crate) inodes: u64,
    /// Bytes that extents refer to.
    pub(crate) data_bytes: u64,
}

impl Counters {
    /// The counters of a volume without any inode. The root has number 1.
    pub(crate) const EMPTY: Self = Self { commit: 0, writer_epoch: 0, next_ino: 2, inodes: 0, data_bytes: 0 };
}

impl Encode for Counters {
    fn encode_to(&self, out: &mut BytesMut) {
        for number in [self.commit, self.writer_epoch, self.next_ino, self.inodes, self.data_bytes] {
            out.put_u64_le(number);
        }
    }
}

impl Decode for Counters {
    fn decode_from(input: &mut Input<'_>) -> Result<Self, Corrupt> {
        let counters = Self {
            commit: input.u64()?,
            writer_epoch: input.u64()?,
            next_ino: input.u64()?,
            inodes: input.u64()?,
            data_bytes: input.u64()?,
        };
        // Numbers are counted up, and must neither overflow nor be given out again.
        if counters.next_ino < Self::EMPTY.next_ino || counters.commit.max(counters.next_ino) > u64::MAX / 2 {
            return Err(Corrupt("impossible counters"));
        }
        Ok(counters)
    }
}
