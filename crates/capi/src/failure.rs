//! Errors as C has them: a number that the call returns, and a message that the thread keeps.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int};
use std::io;

use slackwater::{BackendError, ErrorKind, FileError, MountError, UmountError};
use slackwater_arena::ArenaError;
use slackwater_backends::OpenError;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    message: String,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

impl Failure {
    pub(crate) fn new(errno: c_int, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    /// Keeps the message for this thread. Returns the negative errno.
    pub(crate) fn report(self) -> c_int {
        let message = CString::new(self.message.replace('\0', "?")).unwrap_or_default();
        LAST.with_borrow_mut(|last| *last = message);
        -self.errno
    }
}

/// Passes the message of the last failure of this thread to `f`; it is empty before the first one.
pub(crate) fn with_last<T>(f: impl FnOnce(&CStr) -> T) -> T {
    LAST.with_borrow(|last| f(last))
}

fn errno_of(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::Quota => libc::EDQUOT,
        ErrorKind::ReadOnly => libc::EROFS,
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::Exists => libc::EEXIST,
        ErrorKind::NotDirectory => libc::ENOTDIR,
        ErrorKind::IsDirectory => libc::EISDIR,
        ErrorKind::TooLarge => libc::EFBIG,
        ErrorKind::NameTooLong => libc::ENAMETOOLONG,
        ErrorKind::Permission => libc::EACCES,
        ErrorKind::NotPermitted => libc::EPERM,
        ErrorKind::Stale => libc::ESTALE,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::TextBusy => libc::ETXTBSY,
        ErrorKind::TooManyFiles => libc::EMFILE,
        ErrorKind::TooManyOpen => libc::ENFILE,
        ErrorKind::NoMemory => libc::ENOMEM,
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::Loop => libc::ELOOP,
        ErrorKind::NoDevice => libc::ENXIO,
        ErrorKind::Interrupted => libc::EINTR,
        ErrorKind::NotMounted => libc::ESHUTDOWN,
        ErrorKind::NotEmpty => libc::ENOTEMPTY,
        ErrorKind::CrossDevice => libc::EXDEV,
        ErrorKind::TooManyLinks => libc::EMLINK,
        ErrorKind::NoData => libc::ENODATA,
        ErrorKind::OutOfRange => libc::ERANGE,
        ErrorKind::TooBig => libc::E2BIG,
        ErrorKind::Io | ErrorKind::Lost | ErrorKind::Abandoned => libc::EIO,
        // The enum may grow; a new kind is EIO until it has a line here.
        _ => libc::EIO,
    }
}

fn errno_in(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::new(errno_of(error.kind()), error.to_string())
    }
}

impl From<ErrorKind> for Failure {
    fn from(kind: ErrorKind) -> Self {
        FileError::Writeback(kind).into()
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        let of = |backend: &BackendError| errno_of(backend.kind());
        let errno = match &error {
            MountError::Root(backend) | MountError::Survivor { source: backend, .. } => of(backend),
            MountError::NameTaken(_) => libc::EBUSY,
            MountError::BadName(_) => libc::EINVAL,
            MountError::TooManyVolumes => libc::ENOSPC,
            MountError::InsideScan(_) | _ => libc::EDEADLK,
        };
        Self::new(errno, error.to_string())
    }
}

impl From<UmountError> for Failure {
    fn from(error: UmountError) -> Self {
        let errno = match &error {
            UmountError::Busy { .. } | UmountError::InProgress => libc::EBUSY,
            UmountError::Deadline { .. } => libc::ETIMEDOUT,
            UmountError::NotMounted => libc::ESHUTDOWN,
            UmountError::InsideScan(_) => libc::EDEADLK,
            UmountError::BusyInodes(_) | _ => libc::EIO,
        };
        Self::new(errno, error.to_string())
    }
}

impl From<ArenaError> for Failure {
    fn from(error: ArenaError) -> Self {
        let errno = match &error {
            ArenaError::TooLarge { .. } => libc::ENOMEM,
            ArenaError::NoSpace { .. } => libc::ENOSPC,
            ArenaError::InUse => libc::EBUSY,
            ArenaError::NotPrivate(_) => libc::EACCES,
            ArenaError::Os { source, .. } => errno_in(source),
            ArenaError::Config(_)
            | ArenaError::FileSystem { .. }
            | ArenaError::GivenUp
            | ArenaError::Foreign(_)
            | ArenaError::Version(_)
            | ArenaError::Length(_)
            | ArenaError::Damaged(_)
            | _ => libc::EINVAL,
        };
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        let message = format!("{error}{cause}");
        Self::new(errno, message)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let errno = match &error {
            OpenError::Root { source, .. } | OpenError::Limits { source, .. } | OpenError::NoProc { source } => {
                errno_in(source)
            }
            _ => libc::EIO,
        };
        Self::new(errno, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_last_message() {
        assert_eq!(Failure::new(libc::EINVAL, "first").report(), -libc::EINVAL);
        assert_eq!(Failure::from(ErrorKind::NoSpace).report(), -libc::ENOSPC);
        with_last(|message| assert!(message.to_str().expect("ASCII").contains("no space")));
        std::thread::spawn(|| with_last(|message| assert!(message.is_empty()))).join().expect("the other thread");
    }
}
