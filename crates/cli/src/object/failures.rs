//! Errors of volumes, as messages that say what to do next.

use slackwater_object::{Holder, VolumeError};

use crate::exit::{Failure, Reason};

/// The message for an error of the volume at `url`.
pub(super) fn of(error: &VolumeError, url: &str) -> Failure {
    match error {
        VolumeError::Location(text) => Failure::usage(text.clone()),
        VolumeError::InUse(holder) => Failure::new(Reason::Busy, format!("{url} is {holder}"))
            .advise("unmount it there, or mount it --read-only beside that one")
            .advise("if that process is dead or unreachable: --take-over ends it; what it made durable is kept"),
        VolumeError::NoVolume(_) => Failure::failed(error.to_string()),
        other @ (VolumeError::Store(_) | _) => {
            Failure::failed(format!("{url}: {other}")).advise(format!("check the store: slackwater doctor {url}"))
        }
    }
}

/// The machine and process of a holder.
pub(super) fn name_of(holder: &Holder) -> String {
    match &holder.host {
        Some(host) => format!("pid {} on {host}", holder.pid),
        None => "a process whose claim this version cannot read".to_owned(),
    }
}
