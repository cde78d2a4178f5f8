//! The meaning of a file system's errno to the engine: the only table.

use rustix::io::Errno;
use slackwater::{BackendError, ErrorKind};

/// Converts the errno of the system call `call` into a backend error, for `map_err`.
pub(super) fn failed(call: &'static str) -> impl Fn(Errno) -> BackendError {
    move |errno| BackendError::new(kind_of(errno), format!("{call}: {errno}"))
}

fn kind_of(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOSPC => ErrorKind::NoSpace,
        Errno::DQUOT => ErrorKind::Quota,
        Errno::ROFS => ErrorKind::ReadOnly,
        Errno::NOENT => ErrorKind::NotFound,
        Errno::EXIST => ErrorKind::Exists,
        Errno::NOTDIR => ErrorKind::NotDirectory,
        Errno::ISDIR => ErrorKind::IsDirectory,
        Errno::NOTEMPTY => ErrorKind::NotEmpty,
        Errno::FBIG | Errno::OVERFLOW => ErrorKind::TooLarge,
        Errno::NAMETOOLONG => ErrorKind::NameTooLong,
        Errno::ACCESS => ErrorKind::Permission,
        Errno::PERM => ErrorKind::NotPermitted,
        Errno::STALE => ErrorKind::Stale,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => ErrorKind::Unsupported,
        Errno::XDEV => ErrorKind::CrossDevice,
        // EAGAIN is not `WouldBlock`: there is nothing that a caller could wait for.
        Errno::BUSY | Errno::AGAIN => ErrorKind::Busy,
        Errno::TXTBSY => ErrorKind::TextBusy,
        Errno::MFILE | Errno::NFILE => ErrorKind::TooManyFiles,
        Errno::NOMEM => ErrorKind::NoMemory,
        Errno::INVAL => ErrorKind::Invalid,
        Errno::TIMEDOUT => ErrorKind::TimedOut,
        Errno::MLINK => ErrorKind::TooManyLinks,
        Errno::LOOP => ErrorKind::Loop,
        Errno::NODATA => ErrorKind::NoData,
        Errno::RANGE => ErrorKind::OutOfRange,
        Errno::TOOBIG => ErrorKind::TooBig,
        Errno::NXIO => ErrorKind::NoDevice,
        Errno::INTR => ErrorKind::Interrupted,
        // EIO, ENODEV, ESHUTDOWN, EUCLEAN and all others: the storage has failed.
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The FUSE front end converts kinds back into an errno, and programs distinguish these.
    #[test]
    fn errnos_that_programs_distinguish_stay_distinct() {
        let kinds = [
            (Errno::ACCESS, ErrorKind::Permission),
            (Errno::PERM, ErrorKind::NotPermitted),
            (Errno::NODATA, ErrorKind::NoData),
            (Errno::RANGE, ErrorKind::OutOfRange),
            (Errno::TOOBIG, ErrorKind::TooBig),
            (Errno::FBIG, ErrorKind::TooLarge),
            (Errno::TXTBSY, ErrorKind::TextBusy),
            (Errno::BUSY, ErrorKind::Busy),
            (Errno::MFILE, ErrorKind::TooManyFiles),
            (Errno::NOMEM, ErrorKind::NoMemory),
            (Errno::LOOP, ErrorKind::Loop),
            (Errno::MLINK, ErrorKind::TooManyLinks),
            (Errno::NXIO, ErrorKind::NoDevice),
            (Errno::INTR, ErrorKind::Interrupted),
            (Errno::OPNOTSUPP, ErrorKind::Unsupported),
        ];
        for (errno, kind) in kinds {
            assert_eq!(kind_of(errno), kind, "{errno}");
        }
    }

    #[test]
    fn an_error_names_its_system_call() {
        let error = failed("pwritev2")(Errno::NOSPC);
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("pwritev2: No space left on device"), "{error}");
        assert_eq!(failed("read")(Errno::NODEV).kind(), ErrorKind::Io);
    }
}
