//! The layout of requests, written a second time from the kernel's header, against which the parser is checked.

use slackwater_fuse::abi::{self, Opcode, Wire};

/// A part of a request after its header.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Part {
    /// A record of numbers with this many bytes.
    Record(usize),
    /// The name of an entry, followed by a NUL.
    Name,
    /// Any other string, followed by a NUL.
    Text,
    /// Bytes, whose number is in the record at this offset.
    Bytes { size_at: usize },
    /// Records of 16 bytes, whose number is at the start of the record.
    Forgets,
    /// 48 bytes, if the record has the flag for them.
    MoreOfInit,
}
use Part::{Bytes, Forgets, MoreOfInit, Name, Record, Text};

/// The parts of a request; `None` for unknown opcodes.
pub(crate) fn parts(opcode: Opcode) -> Option<&'static [Part]> {
    Some(match opcode {
        Opcode::Lookup | Opcode::Unlink | Opcode::Rmdir => &[Name],
        Opcode::Removexattr => &[Text],
        Opcode::Symlink => &[Name, Text],
        Opcode::Forget | Opcode::Open | Opcode::Opendir | Opcode::Access | Opcode::Interrupt => &[Record(8)],
        Opcode::Listxattr | Opcode::Syncfs => &[Record(8)],
        Opcode::Getattr | Opcode::Fsync | Opcode::Fsyncdir | Opcode::Bmap => &[Record(16)],
        Opcode::Statx | Opcode::Release | Opcode::Releasedir | Opcode::Flush | Opcode::Poll | Opcode::Lseek => {
            &[Record(24)]
        }
        Opcode::Fallocate => &[Record(32)],
        Opcode::Read | Opcode::Readdir | Opcode::Readdirplus => &[Record(40)],
        Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => &[Record(48)],
        Opcode::CopyFileRange => &[Record(56)],
        Opcode::Setattr => &[Record(88)],
        Opcode::Mkdir | Opcode::Link => &[Record(8), Name],
        Opcode::Mknod | Opcode::Create => &[Record(16), Name],
        Opcode::Tmpfile => &[Record(16), Text],
        Opcode::Rename => &[Record(8), Name, Name],
        Opcode::Rename2 => &[Record(16), Name, Name],
        Opcode::Getxattr => &[Record(8), Text],
        Opcode::Setxattr => &[Record(16), Text, Bytes { size_at: 0 }],
        Opcode::Write => &[Record(40), Bytes { size_at: 16 }],
        Opcode::Ioctl => &[Record(32), Bytes { size_at: 24 }],
        Opcode::BatchForget => &[Record(8), Forgets],
        Opcode::Init => &[Record(16), MoreOfInit],
        Opcode::Readlink | Opcode::Statfs | Opcode::Destroy => &[],
        Opcode::NotifyReply | Opcode::SetupMapping | Opcode::RemoveMapping | Opcode::CopyFileRange64 => return None,
    })
}

/// The parts of one request.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Pieces<'a> {
    pub(crate) record: &'a [u8],
    /// Names, strings and bytes in order.
    pub(crate) rest: Vec<&'a [u8]>,
}

/// Splits a body into its parts; `None` if something is missing or a name is invalid.
pub(crate) fn take_apart<'a>(parts: &[Part], body: &'a [u8]) -> Option<Pieces<'a>> {
    let (mut pieces, mut left) = (Pieces::default(), body);
    for part in parts {
        let number_at = |at: usize| Some(u32::from_ne_bytes(pieces.record.get(at..at + 4)?.try_into().ok()?));
        let (piece, skipped) = match part {
            Record(len) => {
                pieces.record = left.get(..*len)?;
                left = &left[*len..];
                continue;
            }
            Name | Text => {
                let string = left.split(|byte| *byte == 0).next()?;
                let is_ended = string.len() < left.len();
                let is_fit = !string.is_empty() && (matches!(part, Text) || !string.contains(&b'/'));
                if !is_ended || !is_fit {
                    return None;
                }
                (string, 1)
            }
            Bytes { size_at } => (left.get(..number_at(*size_at)? as usize)?, 0),
            Forgets => (left.get(..(number_at(0)? as usize).checked_mul(16)?)?, 0),
            MoreOfInit => {
                let has_more = number_at(12)? & abi::init::INIT_EXT as u32 != 0;
                (if has_more { left.get(..abi::InitExtIn::SIZE)? } else { &left[..0] }, 0)
            }
        };
        pieces.rest.push(piece);
        left = &left[piece.len() + skipped..];
    }
    Some(pieces)
}
