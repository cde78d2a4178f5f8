//! Volumes in object stores. With the cargo feature `object`, these are the only files of the command that use
//! `slackwater_object`; without it, [`absent`] says so to the user.
//!
//! ```text
//! arguments      the command lines
//! credentials    those of one volume
//! volume         find, open and close a volume
//! failures       errors of volumes as messages
//! mkfs, fsck, gc the commands on a volume
//! doctor         checks of a store
//! pooled         volumes that plugins make and delete
//! ```

#[cfg(not(feature = "object"))]
mod absent;
pub(crate) mod arguments;
#[cfg(feature = "containers")]
mod credentials;
#[cfg(feature = "object")]
mod doctor;
#[cfg(feature = "object")]
mod failures;
#[cfg(feature = "object")]
mod fsck;
#[cfg(feature = "object")]
mod gc;
#[cfg(feature = "object")]
mod mkfs;
#[cfg(all(feature = "object", feature = "containers"))]
mod pooled;
#[cfg(feature = "object")]
mod volume;

#[cfg(not(feature = "object"))]
pub(crate) use self::absent::{LOG_FORMAT, Volume, check_store, find, fsck, gc, mkfs};
#[cfg(all(not(feature = "object"), feature = "containers"))]
pub(crate) use self::absent::{canonical_url, check_volume, delete_volume, make_volume, urls_below};
#[cfg(feature = "containers")]
pub(crate) use self::credentials::Credentials;
#[cfg(all(feature = "object", feature = "containers"))]
pub(crate) use self::pooled::{canonical_url, check_volume, delete_volume, make_volume, urls_below};
#[cfg(feature = "object")]
pub(crate) use self::{
    doctor::check_store,
    fsck::run as fsck,
    gc::run as gc,
    mkfs::run as mkfs,
    volume::{LOG_FORMAT, Volume, find},
};

#[cfg(feature = "object")]
use slackwater_host::Printable as _;

use crate::exit::Failure;

/// How old a reader may be if the user does not say.
pub(crate) const FOLLOW: std::time::Duration = std::time::Duration::from_secs(5);

/// The result of one check of a store: what was found, or what is wrong.
pub(crate) struct StoreFinding {
    pub(crate) name: String,
    pub(crate) result: Result<String, Failure>,
}

/// The place that a URL means, with the variables in the file `credentials`; without one, with those of this process.
///
/// # Errors
/// The URL or the file is not valid.
#[cfg(feature = "object")]
fn locate(url: &str, credentials: Option<&std::path::Path>) -> Result<slackwater_object::Location, Failure> {
    use slackwater_object::Location;
    let location = match credentials {
        Some(path) => Location::parse_with(url, path),
        None => Location::parse(url),
    };
    location.map_err(|error| failures::of(&error, url))
}

/// Does `work`, which waits for the store at `url`. If it takes long, prints that it goes on.
#[cfg(feature = "object")]
fn wait_for_store<T: Send>(url: &str, work: impl FnOnce() -> T + Send) -> T {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    const SILENCE: std::time::Duration = std::time::Duration::from_secs(1);
    std::thread::scope(|scope| {
        let (finished, end) = channel::<()>();
        scope.spawn(move || {
            // The sender is dropped at the end, after a panic too.
            if end.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
                crate::output::terminal::errln!("waiting for the store of {}", url.printable());
            }
        });
        let done = work();
        drop(finished);
        done
    })
}

/// Shows the progress of a command.
#[cfg(feature = "object")]
fn show(meter: &mut crate::output::progress::Meter, progress: &slackwater_object::Progress) {
    let slackwater_object::Progress { step, done } = progress;
    meter.show(*done, *done, &format!("{step}, {done}"));
}
