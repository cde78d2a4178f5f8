//! `slackwater mkfs`.

use std::path::Path;

use slackwater_control::exit::Failure;
use slackwater_control::name;
use slackwater_control::object_volumes::{failure_of, locate};
use slackwater_control::outln;
use slackwater_object::ObjectBackend;

use crate::object::arguments::MkfsArguments;
use crate::object::wait_for_store;

/// Makes an empty volume.
///
/// # Errors
/// There is a volume already, or the store fails.
///
/// # Blocking
/// For the store.
pub(crate) fn run(arguments: &MkfsArguments) -> Result<(), Failure> {
    let location = locate(&arguments.url, arguments.credentials.as_deref())?;
    if name::is_in_memory(Path::new(&arguments.url)) {
        return Err(Failure::usage("a store in memory ends with its process")
            .advise("mount it without mkfs: slackwater mount memory: MOUNTPOINT"));
    }
    let url = location.to_string();
    wait_for_store(&url, || ObjectBackend::mkfs(&location)).map_err(|error| failure_of(&error, &url))?;
    outln!("Made an empty volume at {location}.");
    outln!("Mount it with: slackwater mount {location} MOUNTPOINT");
    Ok(())
}
