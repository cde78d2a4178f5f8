//! Errors of object volumes, as failures that say what to do next.

use std::path::Path;

use slackwater::ErrorKind;
use slackwater_object::{Location, VolumeError};

use crate::exit::{Failure, Reason};

/// The message for an error of the volume at `url`. If another process has or had the volume, the caller
/// adds what to do.
pub fn failure_of(error: &VolumeError, url: &str) -> Failure {
    match error {
        VolumeError::Location(text) => Failure::usage(text.clone()),
        VolumeError::InUse(holder) => Failure::new(Reason::Busy, format!("{url} is {holder}")),
        VolumeError::Overtaken => {
            Failure::failed(format!("{url}: a process that died left unwritten changes; {error}"))
        }
        // Its text says what to do.
        VolumeError::Store(held) if held.kind() == ErrorKind::Busy => Failure::busy(format!("{url}: {held}")),
        // Their texts name the volume and what to do.
        VolumeError::NoVolume(_)
        | VolumeError::Exists(_)
        | VolumeError::Unreadable { .. }
        | VolumeError::Replaced(_) => Failure::failed(error.to_string()),
        VolumeError::Failed(text) => Failure::failed(text.clone()).advise(check_the_store(url)),
        other @ (VolumeError::Store(_) | _) => Failure::failed(format!("{url}: {other}")).advise(check_the_store(url)),
    }
}

fn check_the_store(url: &str) -> String {
    format!("check the store, with the same credentials: slackwater doctor {url}")
}

/// The place that a URL means, with the variables in the file `credentials`; without one, with those of this process.
///
/// # Errors
/// The URL or the file is not valid.
pub fn locate(url: &str, credentials: Option<&Path>) -> Result<Location, Failure> {
    let location = match credentials {
        Some(path) => Location::parse_with(url, path),
        None => Location::parse(url),
    };
    location.map_err(|error| failure_of(&error, url))
}
