//! INIT: the protocol version and features that kernel and session agree on.

use rustix::param::page_size;

use crate::abi::{self, InitOut, init};
use crate::parse::InitRequest;

/// Oldest supported protocol: Linux 6.9, the first where parallel direct writes work beside cached opens.
const MINOR_MIN: u32 = 40;

struct Feature {
    flag: u64,
    name: &'static str,
    affects: &'static str,
}

impl Feature {
    fn missing(&self) -> MissingFeature {
        MissingFeature { feature: self.name, affects: self.affects }
    }
}

const fn feature(flag: u64, name: &'static str, affects: &'static str) -> Feature {
    Feature { flag, name, affects }
}

/// Required features, and what each is needed for.
const REQUIRED: [Feature; 3] = [
    feature(init::INIT_EXT, "INIT_EXT", "half of the features"),
    feature(init::MAX_PAGES, "MAX_PAGES", "writes of more than 128 KiB"),
    feature(init::SETXATTR_EXT, "SETXATTR_EXT", "the form of SETXATTR that is parsed"),
];

/// Features requested by default, and what each is needed for.
const WANTED: [Feature; 14] = [
    feature(init::ASYNC_READ, "ASYNC_READ", "several reads of one file at a time"),
    feature(init::ATOMIC_O_TRUNC, "ATOMIC_O_TRUNC", "opening and truncating in one request"),
    feature(init::BIG_WRITES, "BIG_WRITES", "writes of more than a page"),
    feature(init::DONT_MASK, "DONT_MASK", "default ACLs, which replace the umask"),
    feature(init::POSIX_ACL, "POSIX_ACL", "ACLs: access is by mode alone, which may allow more than an ACL does"),
    feature(init::DO_READDIRPLUS, "DO_READDIRPLUS", "listing with attributes in one request"),
    feature(init::READDIRPLUS_AUTO, "READDIRPLUS_AUTO", "listing without attributes that are not used"),
    feature(init::PARALLEL_DIROPS, "PARALLEL_DIROPS", "several lookups in one directory at a time"),
    feature(init::ABORT_ERROR, "ABORT_ERROR", "distinguishing an aborted connection from an unmount"),
    feature(init::CACHE_SYMLINKS, "CACHE_SYMLINKS", "symbolic links in the kernel's cache"),
    feature(init::EXPLICIT_INVAL_DATA, "EXPLICIT_INVAL_DATA", "keeping cached pages when only the mtime changes"),
    feature(init::HANDLE_KILLPRIV_V2, "HANDLE_KILLPRIV_V2", "writes without a query for capabilities before each"),
    feature(init::DIRECT_IO_ALLOW_MMAP, "DIRECT_IO_ALLOW_MMAP", "shared mappings of files open for writing"),
    feature(init::HAS_RESEND, "HAS_RESEND", "taking over a connection with requests in flight"),
];

/// Parameters requested by the session.
#[derive(Copy, Clone, Debug)]
pub struct InitOptions {
    /// Bits of [`init`] to request, besides the required ones. By default, as far as the kernel supports them:
    /// ASYNC_READ, ATOMIC_O_TRUNC, BIG_WRITES, DONT_MASK, POSIX_ACL, DO_READDIRPLUS, READDIRPLUS_AUTO, PARALLEL_DIROPS,
    /// ABORT_ERROR, CACHE_SYMLINKS, EXPLICIT_INVAL_DATA, HANDLE_KILLPRIV_V2, DIRECT_IO_ALLOW_MMAP, HAS_RESEND.
    ///
    /// Five of them are promises by the file system. ATOMIC_O_TRUNC: OPEN truncates. DONT_MASK: it applies the umask.
    /// POSIX_ACL: it keeps mode and ACL consistent; the kernel checks both, whatever the mount's `default_permissions`.
    /// HANDLE_KILLPRIV_V2: it clears set-user-id bits when a request says so. EXPLICIT_INVAL_DATA: it reports changes
    /// from outside the mount.
    pub wanted: u64,
    /// Largest payload of a WRITE. The kernel's `max_pages_limit` bounds it too.
    pub max_write: u32,
    /// Bytes of readahead; the kernel usually offers less.
    pub max_readahead: u32,
    /// Limit of the kernel's own requests (readahead, write-back) in flight.
    pub max_background: u16,
    /// Granularity of timestamps in nanoseconds.
    pub time_gran: u32,
}

impl Default for InitOptions {
    fn default() -> Self {
        Self {
            wanted: WANTED.iter().fold(0, |flags, feature| flags | feature.flag),
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: u16::MAX,
            time_gran: 1,
        }
    }
}

/// A requested feature that the kernel does not support.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct MissingFeature {
    /// The kernel's name of the feature, or a description.
    pub feature: &'static str,
    /// The uses that its absence affects.
    pub affects: &'static str,
}

/// The agreed parameters. A session that adopts the connection needs the same.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Negotiated {
    /// Minor version in use.
    pub minor: u32,
    /// Bits of [`init`] in use.
    pub flags: u64,
    /// Largest payload of a WRITE.
    pub max_write: u32,
    /// Bytes of readahead.
    pub max_readahead: u32,
    /// Limit of the kernel's own requests in flight.
    pub max_background: u16,
    /// Requested but unsupported features.
    pub missing: Vec<MissingFeature>,
}

impl Negotiated {
    /// The parameters that an earlier session agreed; `spoken` is the minor version and the flags.
    #[must_use]
    pub fn again(spoken: (u32, u64), max_write: u32, max_readahead: u32, max_background: u16) -> Self {
        let (minor, flags) = spoken;
        let missing = WANTED.iter().filter(|feature| flags & feature.flag == 0).map(Feature::missing).collect();
        Self { minor, flags, max_write, max_readahead, max_background, missing }
    }

    /// Whether all of `flags`, bits of [`init`], are in use.
    #[must_use]
    pub const fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }
}

/// Why kernel and session cannot agree.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NegotiateError {
    /// The kernel's protocol version is not supported.
    #[error("the kernel supports FUSE {major}.{minor}; at least 7.{MINOR_MIN} (Linux 6.9) is required")]
    Version {
        /// Major version of the kernel.
        major: u32,
        /// Minor version of the kernel.
        minor: u32,
    },
    /// A required feature is missing.
    #[error("the kernel does not support {}, which is required for {}", .0.feature, .0.affects)]
    Feature(MissingFeature),
}

/// Decides the reply to INIT.
pub(crate) fn negotiate(request: &InitRequest, options: &InitOptions) -> Result<(Negotiated, InitOut), NegotiateError> {
    let InitRequest { major, minor, max_readahead, flags: offered } = *request;
    if major != abi::KERNEL_VERSION || minor < MINOR_MIN {
        return Err(NegotiateError::Version { major, minor });
    }
    let is_offered = |feature: &&Feature| offered & feature.flag != 0;
    if let Some(feature) = REQUIRED.iter().find(|feature| !is_offered(feature)) {
        return Err(NegotiateError::Feature(feature.missing()));
    }
    let lacking = WANTED.iter().filter(|feature| options.wanted & feature.flag != 0 && !is_offered(feature));
    let required = REQUIRED.iter().fold(0, |flags, feature| flags | feature.flag);
    let negotiated = Negotiated {
        minor: minor.min(abi::KERNEL_MINOR_VERSION),
        flags: offered & (options.wanted | required),
        max_write: options.max_write,
        max_readahead: max_readahead.min(options.max_readahead),
        max_background: options.max_background,
        missing: lacking.map(Feature::missing).collect(),
    };
    let reply = InitOut {
        major: abi::KERNEL_VERSION,
        minor: negotiated.minor,
        max_readahead: negotiated.max_readahead,
        flags: negotiated.flags as u32,
        flags2: (negotiated.flags >> 32) as u32,
        max_background: options.max_background,
        congestion_threshold: options.max_background / 4 * 3,
        max_write: options.max_write,
        time_gran: options.time_gran,
        max_pages: options.max_write.div_ceil(page_size() as u32).min(u16::MAX.into()) as u16,
        ..InitOut::default()
    };
    Ok((negotiated, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(minor: u32, flags: u64) -> InitRequest {
        InitRequest { major: 7, minor, max_readahead: 128 << 10, flags }
    }

    #[test]
    fn missing_features_are_named() {
        let all = !(init::HAS_RESEND | init::ASYNC_READ);
        let (negotiated, reply) = negotiate(&request(45, all), &InitOptions::default()).unwrap();
        let names: Vec<_> = negotiated.missing.iter().map(|missing| missing.feature).collect();
        assert_eq!(names, ["ASYNC_READ", "HAS_RESEND"]);
        assert!(negotiated.has(init::DIRECT_IO_ALLOW_MMAP | init::SETXATTR_EXT));
        assert!(!negotiated.has(init::WRITEBACK_CACHE), "offered and not requested");
        assert_eq!(u64::from(reply.flags) | u64::from(reply.flags2) << 32, negotiated.flags);
        assert_eq!((usize::from(reply.max_pages) * page_size(), reply.max_readahead), (1 << 20, 128 << 10));
    }

    #[test]
    fn an_old_kernel_is_refused() {
        let refused = negotiate(&request(39, u64::MAX), &InitOptions::default());
        assert_eq!(refused.unwrap_err(), NegotiateError::Version { major: 7, minor: 39 });
        assert!(negotiate(&request(40, u64::MAX), &InitOptions::default()).is_ok(), "Linux 6.9");
        let refused = negotiate(&request(45, !init::MAX_PAGES), &InitOptions::default());
        assert!(matches!(refused, Err(NegotiateError::Feature(MissingFeature { feature: "MAX_PAGES", .. }))));
    }
}
