//! Kinds of failures of a store.

use std::fmt;

/// Why a request failed, as far as that matters to those who repeat it or explain it.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The store asks for fewer requests (429, 503 `SlowDown`).
    Throttled,
    /// The store failed (500, 502, 503, 504, or a 200 with an error inside).
    Server,
    /// No answer in time.
    Timeout,
    /// No connection, or it broke.
    Unreachable,
    /// The store refuses the operation to these credentials.
    Permission,
    /// The store does not know the credentials, there are none, or they have expired.
    Credentials,
    /// The store refuses the request because the clocks differ too much.
    ClockSkew,
    /// There is no such bucket, container or directory.
    NoBucket,
    /// There is no such object.
    NotFound,
    /// The object exists, and must not.
    Exists,
    /// The object is not the one that the caller knows.
    Changed,
    /// The device is full.
    NoSpace,
    /// The quota is used up.
    Quota,
    /// The store cannot do this.
    Unsupported,
    /// The settings make no sense to the store: a wrong region or endpoint.
    Configuration,
    /// The process counts as dead: a crash point of [`Fault`](super::Fault).
    Crashed,
    /// Anything else.
    Other,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Throttled => "throttled",
            Self::Server => "server error",
            Self::Timeout => "timed out",
            Self::Unreachable => "unreachable",
            Self::Permission => "permission denied",
            Self::Credentials => "credentials refused",
            Self::ClockSkew => "clock is off",
            Self::NoBucket => "no such bucket",
            Self::NotFound => "no such object",
            Self::Exists => "object exists",
            Self::Changed => "object changed",
            Self::NoSpace => "no space",
            Self::Quota => "quota exceeded",
            Self::Unsupported => "not supported",
            Self::Configuration => "wrong settings",
            Self::Crashed => "crashed",
            Self::Other => "failed",
        })
    }
}
