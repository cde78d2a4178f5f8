//! `slackwater mkfs`.

use std::path::Path;

use slackwater_object::ObjectBackend;

use crate::exit::Failure;
use crate::object::arguments::MkfsArguments;
use crate::object::{failures, locate, wait_for_store};
use crate::output::terminal::outln;
use crate::source;

/// Makes an empty volume.
///
/// # Errors
/// There is a volume already, or the store fails.
///
/// # Blocking
/// For the store.
pub(crate) fn run(arguments: &MkfsArguments) -> Result<(), Failure> {
    let location = locate(&arguments.url, arguments.credentials.as_deref())?;
    if source::is_in_memory(Path::new(&arguments.url)) {
        return Err(Failure::usage("a store in memory ends with its process")
            .advise("mount it without mkfs: slackwater mount memory: MOUNTPOINT"));
    }
    let url = location.to_string();
    wait_for_store(&url, || ObjectBackend::mkfs(&location)).map_err(|error| failures::of(&error, &url))?;
    outln!("Made an empty volume at {location}.");
    outln!("Mount it with: slackwater mount {location} MOUNTPOINT");
    Ok(())
}
