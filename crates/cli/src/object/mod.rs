//! Volumes in object stores. With the cargo feature `object`, these are the only files of the command that use
//! `slackwater_object`; without it, [`absent`] says so to the user.
//!
//! ```text
//! arguments      the command lines
//! volume         find, open and close a volume
//! mkfs, fsck, gc the commands on a volume
//! doctor         checks of a store
//! ```

#[cfg(not(feature = "object"))]
mod absent;
pub(crate) mod arguments;
#[cfg(feature = "object")]
mod doctor;
#[cfg(feature = "object")]
mod fsck;
#[cfg(feature = "object")]
mod gc;
#[cfg(feature = "object")]
mod mkfs;
#[cfg(feature = "object")]
mod volume;

#[cfg(not(feature = "object"))]
pub(crate) use self::absent::{LOG_FORMAT, Volume, check_store, find, fsck, gc, mkfs};
#[cfg(feature = "object")]
pub(crate) use self::{
    doctor::check_store,
    fsck::run as fsck,
    gc::run as gc,
    mkfs::run as mkfs,
    volume::{LOG_FORMAT, Volume, find},
};

use slackwater_control::exit::Failure;
#[cfg(feature = "object")]
use slackwater_host::Printable as _;

/// The result of one check of a store: what was found, or what is wrong.
pub(crate) struct StoreFinding {
    pub(crate) name: String,
    pub(crate) result: Result<String, Failure>,
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
                slackwater_control::errln!("waiting for the store of {}", url.printable());
            }
        });
        let done = work();
        drop(finished);
        done
    })
}

/// Shows the progress of a command.
#[cfg(feature = "object")]
fn show(meter: &mut crate::progress::Meter, progress: &slackwater_object::Progress) {
    let slackwater_object::Progress { step, done } = progress;
    meter.show(*done, *done, &format!("{step}, {done}"));
}
