//! The one table from engine errors to errno values.

use rustix::io::Errno;
use slackwater::{ErrorKind, FileError};

/// The errno of a kind of error.
pub(super) fn of(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::Quota => Errno::DQUOT,
        ErrorKind::ReadOnly => Errno::ROFS,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::Exists => Errno::EXIST,
        ErrorKind::NotDirectory => Errno::NOTDIR,
        ErrorKind::IsDirectory => Errno::ISDIR,
        ErrorKind::NotEmpty => Errno::NOTEMPTY,
        ErrorKind::TooLarge => Errno::FBIG,
        ErrorKind::NameTooLong => Errno::NAMETOOLONG,
        ErrorKind::Permission => Errno::ACCESS,
        ErrorKind::NotPermitted => Errno::PERM,
        ErrorKind::Stale => Errno::STALE,
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
        ErrorKind::CrossDevice => Errno::XDEV,
        ErrorKind::Busy => Errno::BUSY,
        ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::TimedOut => Errno::TIMEDOUT,
        ErrorKind::TooManyLinks => Errno::MLINK,
        ErrorKind::NoData => Errno::NODATA,
        ErrorKind::OutOfRange => Errno::RANGE,
        ErrorKind::TooBig => Errno::TOOBIG,
        ErrorKind::TextBusy => Errno::TXTBSY,
        ErrorKind::TooManyFiles => Errno::MFILE,
        ErrorKind::TooManyOpen => Errno::NFILE,
        ErrorKind::NoMemory => Errno::NOMEM,
        ErrorKind::WouldBlock => Errno::AGAIN,
        ErrorKind::Loop => Errno::LOOP,
        ErrorKind::NoDevice => Errno::NXIO,
        ErrorKind::Interrupted => Errno::INTR,
        // The volume is unmounted or is being unmounted by force: remaining handles get nothing else.
        ErrorKind::Io | ErrorKind::Lost | ErrorKind::Abandoned | ErrorKind::NotMounted => Errno::IO,
        // The enum may grow; a new kind is EIO until it has a line here.
        _ => Errno::IO,
    }
}

/// The errno with which a request fails.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Failure(pub(super) Errno);

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self(of(error.kind()))
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}
