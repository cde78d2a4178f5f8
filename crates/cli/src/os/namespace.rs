//! Mount namespaces.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use slackwater_control::exit::Failure;
use slackwater_host::Printable as _;

/// Enters the mount namespace of this link, such as `/proc/1/ns/mnt`. Only a process with one thread can.
///
/// # Errors
/// The link does not exist, or this user may not enter the namespace.
pub(crate) fn enter(link: &Path) -> Result<(), Failure> {
    let entered = File::open(link)
        .and_then(|namespace| Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?));
    entered.map_err(|error| Failure::failed(format!("cannot enter the mount namespace {}: {error}", link.printable())))
}
