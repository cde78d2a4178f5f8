//! From errors of `object_store` to the kind of failure.
//!
//! `object_store` keeps status and body of an answer in a private type, so they are read from its text.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};

use super::failure::Failure;
use super::fault::Injected;

/// No answer within the time limit of an attempt.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", .0.as_secs_f32())]
pub(super) struct NoAnswer(pub(super) Duration);

/// An answer that ended early.
#[derive(Debug, thiserror::Error)]
#[error("the answer for {path} ended after {found} of {expected} bytes")]
pub(super) struct Truncated {
    pub(super) path: String,
    pub(super) expected: u64,
    pub(super) found: u64,
}

/// An answer without the tag that every store sends with an object.
#[derive(Debug, thiserror::Error)]
#[error("the answer is not one of an object store, but perhaps one of a proxy")]
pub(super) struct NotFromStore;

/// The kind of an error.
#[expect(clippy::wildcard_enum_match_arm, reason = "the library has more kinds, and adds some")]
pub(crate) fn classify(error: &Error) -> Failure {
    if let Some(Injected(failure)) = find(error) {
        return *failure;
    }
    if find::<NoAnswer>(error).is_some() {
        return Failure::Timeout;
    }
    if find::<NotFromStore>(error).is_some() {
        return Failure::Server;
    }
    if find::<Truncated>(error).is_some() {
        return Failure::Unreachable;
    }
    let text = error.to_string();
    // A store says more with its code than with its status: 409 is "exists" and "try again", 404 object and bucket.
    if let Some(failure) = element(&text, "Code").and_then(of_code) {
        return failure;
    }
    match error {
        Error::NotFound { .. } => return Failure::NotFound,
        Error::AlreadyExists { .. } => return Failure::Exists,
        Error::Precondition { .. } | Error::NotModified { .. } => return Failure::Changed,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => return Failure::Unsupported,
        Error::PermissionDenied { .. } => return Failure::Permission,
        Error::Unauthenticated { .. } => return Failure::Credentials,
        _ => {}
    }
    if let Some(http) = find::<HttpError>(error) {
        return match http.kind() {
            HttpErrorKind::Timeout => Failure::Timeout,
            _ => Failure::Unreachable,
        };
    }
    if let Some(failure) = find::<io::Error>(error).map(of_io) {
        return failure;
    }
    if text.contains("redirect without LOCATION") {
        return Failure::Configuration;
    }
    if text.contains("metadata endpoint") || text.contains("AccessKeyId") || text.contains("SecretAccessKey") {
        return Failure::Credentials;
    }
    // A 200 with something else inside than S3 sends.
    if text.contains("invalid list response") || text.contains("invalid put response") {
        return Failure::Server;
    }
    status(&text).map_or(Failure::Other, of_status)
}

/// The first error of this type in the chain of sources.
pub(super) fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut current = error;
    loop {
        if let Some(found) = current.downcast_ref() {
            return Some(found);
        }
        // `source` of an I/O error skips the error that it wraps.
        current = match current.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => wrapped,
            None => current.source()?,
        };
    }
}

/// The content of an element in the XML of an answer.
pub(super) fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once("</").map(|(content, _)| content)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library has more kinds, and adds some")]
fn of_io(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::StorageFull => Failure::NoSpace,
        io::ErrorKind::QuotaExceeded => Failure::Quota,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Failure::Permission,
        io::ErrorKind::NotFound => Failure::NotFound,
        io::ErrorKind::TimedOut => Failure::Timeout,
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => Failure::Unreachable,
        _ => Failure::Other,
    }
}

/// Codes of S3 and of those who speak its protocol, and of Azure.
fn of_code(code: &str) -> Option<Failure> {
    Some(match code {
        "SlowDown"
        | "ServerBusy"
        | "Throttling"
        | "ThrottlingException"
        | "RequestLimitExceeded"
        | "TooManyRequests" => Failure::Throttled,
        "InternalError"
        | "ServiceUnavailable"
        | "OperationTimedOut"
        | "OperationAborted"
        | "ConditionalRequestConflict" => Failure::Server,
        // The request came with other bytes than it was sent with, or with fewer.
        "BadDigest" | "IncompleteBody" | "XAmzContentSHA256Mismatch" => Failure::Unreachable,
        "RequestTimeout" => Failure::Timeout,
        "RequestTimeTooSkewed" => Failure::ClockSkew,
        "NoSuchBucket" | "ContainerNotFound" => Failure::NoBucket,
        "ExpiredToken"
        | "TokenRefreshRequired"
        | "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "InvalidToken"
        | "AuthenticationFailed"
        | "InvalidAuthenticationInfo"
        | "NotSignedUp" => Failure::Credentials,
        "AccessDenied" | "AllAccessDisabled" | "AuthorizationFailure" => Failure::Permission,
        "XMinioStorageFull" => Failure::NoSpace,
        "QuotaExceeded" | "XMinioAdminBucketQuotaExceeded" => Failure::Quota,
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
            Failure::Configuration
        }
        "NotImplemented" => Failure::Unsupported,
        _ => return None,
    })
}

/// The HTTP status in the text of `object_store`.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

fn of_status(status: u16) -> Failure {
    match status {
        429 | 503 => Failure::Throttled,
        408 => Failure::Timeout,
        301 | 307 | 308 => Failure::Configuration,
        501 => Failure::Unsupported,
        507 => Failure::NoSpace,
        500.. => Failure::Server,
        _ => Failure::Other,
    }
}
