//! Parsing messages into typed requests. Pure, allocates nothing, and trusts no length and no name.
//!
//! # Invariants
//! P1. Every field is read through `Fields`, which checks the remaining length.
//! P2. The length in the header is the length of the message.
//! P3. A message may continue after its last known field: later protocols append fields, and extensions follow.

mod entry;
mod operation;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::abi::{self, InHeader, Opcode, Wire, WriteIn};
use crate::request::{Payload, RequestHeader};

pub use entry::parse_entry;
pub(crate) use entry::{copy_entry, is_write, parse_write_entry};
pub use operation::{Forgets, InitRequest, Operation};

/// A request, borrowed from its message.
#[derive(Copy, Clone, Debug)]
pub struct Request<'a> {
    /// The header.
    pub header: RequestHeader,
    /// The operation with its arguments.
    pub operation: Operation<'a>,
    /// The payload of a WRITE.
    pub payload: Payload<'a>,
}

/// Why a message cannot be parsed.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseError {
    /// The message ends inside or before a field.
    #[error("the message ends before the end of `{field}`")]
    Short {
        /// The field.
        field: &'static str,
        /// Number of the request, to answer it; 0 if unknown.
        unique: u64,
    },
    /// The header and the message disagree on its length.
    #[error("the message has {actual} bytes, but its header says {stated}")]
    Length {
        /// Length in the header.
        stated: u32,
        /// Length of the message.
        actual: usize,
        /// Number of the request, to answer it.
        unique: u64,
    },
    /// A name without its NUL, or one that no directory entry can have.
    #[error("`{field}` is not a valid name")]
    Name {
        /// The field.
        field: &'static str,
        /// Number of the request, to answer it.
        unique: u64,
    },
}

impl ParseError {
    /// Number of the request, to answer it; 0 if unknown.
    #[must_use]
    pub const fn unique(&self) -> u64 {
        match self {
            Self::Short { unique, .. } | Self::Length { unique, .. } | Self::Name { unique, .. } => *unique,
        }
    }
}

/// Parses one message as read from the device.
///
/// # Errors
/// A field is missing or cut off, or a name is invalid.
pub fn parse(message: &[u8]) -> Result<Request<'_>, ParseError> {
    let mut fields = Fields { rest: message, unique: 0 };
    let raw: InHeader = fields.record("header")?;
    fields.unique = raw.unique;
    if raw.len as usize != message.len() {
        return Err(ParseError::Length { stated: raw.len, actual: message.len(), unique: raw.unique });
    }
    let InHeader { opcode, unique, nodeid: node_id, uid, gid, pid, .. } = raw;
    let header = RequestHeader { unique, node_id, uid, gid, pid, opcode };
    let operation = match Opcode::from_number(opcode) {
        Some(opcode) => fields.operation(opcode, &header)?,
        None => Operation::Unknown(opcode),
    };
    let mut payload = Payload::default();
    if let Operation::Write(args) = operation {
        payload = Payload::new(fields.bytes("write payload", args.size)?);
    }
    Ok(Request { header, operation, payload })
}

/// Parses a WRITE whose payload, of `payload_bytes`, is not in `head`.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_write(head: &[u8], payload_bytes: usize) -> Result<(RequestHeader, WriteIn), ParseError> {
    let mut fields = Fields { rest: head, unique: 0 };
    let raw: InHeader = fields.record("header")?;
    let InHeader { len, opcode, unique, nodeid: node_id, uid, gid, pid, .. } = raw;
    fields.unique = unique;
    if len as usize != head.len() + payload_bytes {
        return Err(ParseError::Length { stated: len, actual: head.len() + payload_bytes, unique });
    }
    let args: WriteIn = fields.record("write_in")?;
    if args.size as usize > payload_bytes {
        return Err(ParseError::Short { field: "write payload", unique });
    }
    Ok((RequestHeader { unique, node_id, uid, gid, pid, opcode }, args))
}

/// The unparsed rest of a message.
struct Fields<'a> {
    rest: &'a [u8],
    unique: u64,
}

impl<'a> Fields<'a> {
    #[inline]
    fn record<T: Wire>(&mut self, field: &'static str) -> Result<T, ParseError> {
        T::take(&mut self.rest).ok_or(ParseError::Short { field, unique: self.unique })
    }

    #[inline]
    fn bytes(&mut self, field: &'static str, len: u32) -> Result<&'a [u8], ParseError> {
        let (bytes, rest) =
            self.rest.split_at_checked(len as usize).ok_or(ParseError::Short { field, unique: self.unique })?;
        self.rest = rest;
        Ok(bytes)
    }

    /// A non-empty string that ends with a NUL.
    fn string(&mut self, field: &'static str) -> Result<&'a OsStr, ParseError> {
        let error = ParseError::Name { field, unique: self.unique };
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or(error)?;
        let (string, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        if string.is_empty() { Err(error) } else { Ok(OsStr::from_bytes(string)) }
    }

    /// The name of an entry: a string without a slash.
    fn name(&mut self, field: &'static str) -> Result<&'a OsStr, ParseError> {
        let name = self.string(field)?;
        if name.as_bytes().contains(&b'/') {
            return Err(ParseError::Name { field, unique: self.unique });
        }
        Ok(name)
    }

    fn operation(&mut self, opcode: Opcode, header: &RequestHeader) -> Result<Operation<'a>, ParseError> {
        Ok(match opcode {
            Opcode::Lookup => Operation::Lookup { name: self.name("name")? },
            Opcode::Forget => {
                let args: abi::ForgetIn = self.record("forget_in")?;
                Operation::Forget(Forgets::single(header.node_id, args.nlookup))
            }
            Opcode::BatchForget => {
                let args: abi::BatchForgetIn = self.record("batch_forget_in")?;
                let (records, _) = self.rest.as_chunks();
                let short = ParseError::Short { field: "forget_one", unique: self.unique };
                Operation::Forget(Forgets::batch(records.get(..args.count as usize).ok_or(short)?))
            }
            Opcode::Getattr => Operation::Getattr(self.record("getattr_in")?),
            Opcode::Statx => Operation::Statx(self.record("statx_in")?),
            Opcode::Setattr => Operation::Setattr(self.record("setattr_in")?),
            Opcode::Readlink => Operation::Readlink,
            Opcode::Symlink => Operation::Symlink { name: self.name("name")?, target: self.string("target")? },
            Opcode::Mknod => Operation::Mknod { args: self.record("mknod_in")?, name: self.name("name")? },
            Opcode::Mkdir => Operation::Mkdir { args: self.record("mkdir_in")?, name: self.name("name")? },
            Opcode::Unlink => Operation::Unlink { name: self.name("name")? },
            Opcode::Rmdir => Operation::Rmdir { name: self.name("name")? },
            Opcode::Rename => {
                let args: abi::RenameIn = self.record("rename_in")?;
                self.rename(args.newdir, 0)?
            }
            Opcode::Rename2 => {
                let args: abi::Rename2In = self.record("rename2_in")?;
                self.rename(args.newdir, args.flags)?
            }
            Opcode::Link => {
                let args: abi::LinkIn = self.record("link_in")?;
                Operation::Link { node: args.oldnodeid, name: self.name("name")? }
            }
            Opcode::Open => Operation::Open(self.record("open_in")?),
            Opcode::Read => Operation::Read(self.record("read_in")?),
            Opcode::Write => Operation::Write(self.record("write_in")?),
            Opcode::Statfs => Operation::Statfs,
            Opcode::Release => Operation::Release(self.record("release_in")?),
            Opcode::Fsync => Operation::Fsync(self.record("fsync_in")?),
            Opcode::Setxattr => {
                let args: abi::SetxattrIn = self.record("setxattr_in")?;
                Operation::Setxattr { args, name: self.string("name")?, value: self.bytes("value", args.size)? }
            }
            Opcode::Getxattr => {
                let args: abi::GetxattrIn = self.record("getxattr_in")?;
                Operation::Getxattr { size: args.size, name: self.string("name")? }
            }
            Opcode::Listxattr => {
                let args: abi::GetxattrIn = self.record("getxattr_in")?;
                Operation::Listxattr { size: args.size }
            }
            Opcode::Removexattr => Operation::Removexattr { name: self.string("name")? },
            Opcode::Flush => Operation::Flush(self.record("flush_in")?),
            Opcode::Init => Operation::Init(self.init()?),
            Opcode::Opendir => Operation::Opendir(self.record("open_in")?),
            Opcode::Readdir => Operation::Readdir(self.record("read_in")?),
            Opcode::Readdirplus => Operation::Readdirplus(self.record("read_in")?),
            Opcode::Releasedir => Operation::Releasedir(self.record("release_in")?),
            Opcode::Fsyncdir => Operation::Fsyncdir(self.record("fsync_in")?),
            Opcode::Getlk => Operation::Getlk(self.record("lk_in")?),
            Opcode::Setlk => Operation::Setlk(self.record("lk_in")?),
            Opcode::Setlkw => Operation::Setlkw(self.record("lk_in")?),
            Opcode::Access => Operation::Access(self.record("access_in")?),
            Opcode::Create => Operation::Create { args: self.record("create_in")?, name: self.name("name")? },
            Opcode::Tmpfile => {
                let args = self.record("create_in")?;
                self.string("name")?; // a slash, since the file has no name
                Operation::Tmpfile(args)
            }
            Opcode::Interrupt => {
                let args: abi::InterruptIn = self.record("interrupt_in")?;
                Operation::Interrupt { unique: args.unique }
            }
            Opcode::Bmap => Operation::Bmap(self.record("bmap_in")?),
            Opcode::Destroy => Operation::Destroy,
            Opcode::Ioctl => {
                let args: abi::IoctlIn = self.record("ioctl_in")?;
                Operation::Ioctl { args, input: self.bytes("ioctl input", args.in_size)? }
            }
            Opcode::Poll => Operation::Poll(self.record("poll_in")?),
            Opcode::Fallocate => Operation::Fallocate(self.record("fallocate_in")?),
            Opcode::Lseek => Operation::Lseek(self.record("lseek_in")?),
            Opcode::CopyFileRange => Operation::CopyFileRange(self.record("copy_file_range_in")?),
            Opcode::Syncfs => {
                let _: abi::SyncfsIn = self.record("syncfs_in")?;
                Operation::Syncfs
            }
            // Opcodes that are never negotiated, and the 64-bit copy, for which the kernel falls back to the old one.
            Opcode::NotifyReply | Opcode::SetupMapping | Opcode::RemoveMapping | Opcode::CopyFileRange64 => {
                Operation::Unknown(header.opcode)
            }
        })
    }

    fn rename(&mut self, new_parent: u64, flags: u32) -> Result<Operation<'a>, ParseError> {
        Ok(Operation::Rename { name: self.name("name")?, new_parent, new_name: self.name("new name")?, flags })
    }

    fn init(&mut self) -> Result<InitRequest, ParseError> {
        let abi::InitIn { major, minor, max_readahead, flags } = self.record("init_in")?;
        let mut flags = u64::from(flags);
        if flags & abi::init::INIT_EXT != 0 {
            let more: abi::InitExtIn = self.record("init_in extension")?;
            flags |= u64::from(more.flags2) << 32;
        }
        Ok(InitRequest { major, minor, max_readahead, flags })
    }
}
