//! From failures of a store and of SlateDB to kinds of the engine, and to texts for people.
//!
//! Texts are made of what is known to be harmless: the store's code and message, the text of an I/O error, our own
//! words. The texts of `object_store` itself hold addresses, bodies and, for some stores, signed queries.

use object_store::Error;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use slatedb::CloseReason;

use super::classify::{NoAnswer, NotFromStore, Truncated, classify, element, find};
use super::failure::Failure;
use super::location::{Location, Place, variables_of};
use crate::error::VolumeError;

impl Failure {
    /// The kind under which the engine and programs see a failure.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Timeout => ErrorKind::TimedOut,
            Self::Permission | Self::Credentials => ErrorKind::Permission,
            Self::NoSpace => ErrorKind::NoSpace,
            Self::Quota => ErrorKind::Quota,
            Self::Unsupported => ErrorKind::Unsupported,
            Self::Throttled
            | Self::Server
            | Self::Unreachable
            | Self::ClockSkew
            | Self::NoBucket
            | Self::NotFound
            | Self::Exists
            | Self::Changed
            | Self::Configuration
            | Self::Crashed
            | Self::Other => ErrorKind::Io,
        }
    }
}

/// The cause of an error in words, without addresses and keys.
pub(crate) fn reason(error: &Error) -> String {
    let failure = classify(error);
    let text = error.to_string();
    if let Some(code) = element(&text, "Code") {
        let message = element(&text, "Message").map(|message| format!(": {}", message.trim_end_matches('.')));
        return format!("{failure}{} ({code})", message.unwrap_or_default());
    }
    let detail = find::<NoAnswer>(error)
        .map(ToString::to_string)
        .or_else(|| find::<Truncated>(error).map(ToString::to_string))
        .or_else(|| find::<NotFromStore>(error).map(ToString::to_string))
        .or_else(|| innermost_io(error));
    match detail {
        Some(detail) => format!("{failure}: {detail}"),
        None => failure.to_string(),
    }
}

fn innermost_io(error: &Error) -> Option<String> {
    let mut found = find::<std::io::Error>(error)?;
    while let Some(inner) = found.get_ref().and_then(|inner| find::<std::io::Error>(inner)) {
        found = inner;
    }
    Some(found.to_string())
}

/// A failure on the way of a running volume, for logs and the programs that use it.
pub(crate) fn of_store(error: &Error) -> BackendError {
    BackendError::new(classify(error).kind(), reason(error))
}

/// The error of every change and every sync after another writer has taken the volume.
pub(crate) fn fenced() -> BackendError {
    BackendError::new(ErrorKind::Stale, "another writer has taken the volume")
}

/// A failure of SlateDB; that of the store below it, if there is one.
pub(crate) fn of_database(error: &slatedb::Error) -> BackendError {
    if let slatedb::ErrorKind::Closed(CloseReason::Fenced) = error.kind() {
        return fenced();
    }
    match cause(error) {
        Some(error) => of_store(error),
        None => BackendError::new(ErrorKind::Io, format!("SlateDB: {error}")),
    }
}

/// Whether a failure of SlateDB is that an object does not exist.
pub(crate) fn is_missing(error: &slatedb::Error) -> bool {
    cause(error).is_some_and(|error| classify(error) == Failure::NotFound)
}

/// The error of the store below SlateDB.
fn cause(error: &slatedb::Error) -> Option<&Error> {
    find::<Arc<Error>>(error).map(|shared| &**shared).or_else(|| find::<Error>(error))
}

/// A failure of a command on `location`: what could not be done, why, and what to do.
pub(crate) fn explain(location: &Location, doing: &str, error: &Error) -> VolumeError {
    let failure = classify(error);
    let text = format!("cannot {doing} {location}: {}", reason(error));
    VolumeError::Failed(match advice(location, failure) {
        Some(advice) => format!("{text}. {advice}"),
        None => text,
    })
}

/// The next step after a failure, for people; `None` if only its cause is to be removed.
pub(super) fn advice(location: &Location, failure: Failure) -> Option<String> {
    let place = location.place();
    let may_lack_keys =
        matches!(failure, Failure::Credentials | Failure::Timeout | Failure::Unreachable | Failure::Other);
    if may_lack_keys && location.needs_role() {
        let variables = variables_of(place);
        return Some(format!(
            "No credentials are set, so this machine needs a role that may use the bucket. If it has none, set {variables}"
        ));
    }
    Some(match failure {
        Failure::NoBucket => match place {
            Place::S3 { bucket, endpoint } => {
                let at = endpoint.as_ref().map(|endpoint| format!(" --endpoint-url {endpoint}")).unwrap_or_default();
                format!("Make the bucket (aws s3 mb s3://{bucket}{at}), or correct the URL or AWS_ENDPOINT_URL")
            }
            Place::Gcs { bucket } => format!("Make the bucket (gcloud storage buckets create gs://{bucket})"),
            Place::Azure { container } => {
                format!("Make the container (az storage container create --name {container})")
            }
            Place::File { .. } | Place::Memory { .. } => return None,
        },
        Failure::Permission => match place {
            Place::File { directory } => format!("Slackwater must read and write below {}", directory.display()),
            Place::S3 { .. } | Place::Gcs { .. } | Place::Azure { .. } | Place::Memory { .. } => {
                "Slackwater must list the bucket, and get, put and delete objects below the prefix".to_owned()
            }
        },
        Failure::Credentials => {
            format!("The credentials are missing, wrong or expired. Renew them and set {}", variables_of(place))
        }
        Failure::ClockSkew => {
            "The clock of this machine is off: the store refuses requests whose time differs from its \
                               own by minutes. Set it, for example with `timedatectl set-ntp true`"
                .to_owned()
        }
        Failure::Throttled => {
            "The store asks for fewer requests. Try again later, or limit uploads with --upload-limit".to_owned()
        }
        Failure::Server => "The store itself fails. Try again later, or look into its logs".to_owned(),
        Failure::Timeout | Failure::Unreachable => match place {
            Place::S3 { endpoint: Some(endpoint), .. } => {
                format!("Check that the server of {endpoint} (AWS_ENDPOINT_URL) runs and can be reached")
            }
            Place::File { .. } | Place::Memory { .. } => return None,
            Place::S3 { .. } | Place::Gcs { .. } | Place::Azure { .. } => {
                "Check the network, name resolution and proxies of this machine".to_owned()
            }
        },
        Failure::NoSpace | Failure::Quota => match place {
            Place::File { directory } => format!("Free space on the file system of {}", directory.display()),
            Place::S3 { .. } | Place::Gcs { .. } | Place::Azure { .. } | Place::Memory { .. } => {
                "Free space in the bucket, or raise its quota".to_owned()
            }
        },
        Failure::Configuration => {
            "The bucket is in another region, or the endpoint is wrong. Set AWS_REGION and AWS_ENDPOINT_URL".to_owned()
        }
        Failure::Unsupported => {
            format!("The store lacks something that Slackwater needs. See `slackwater doctor {location}`")
        }
        Failure::NotFound | Failure::Exists | Failure::Changed | Failure::Crashed | Failure::Other => return None,
    })
}
