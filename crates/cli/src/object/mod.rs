//! Volumes in object stores. With the cargo feature `object`, these are the only files of the command that use
//! `slackwater_object`; without it, [`absent`] says so to the user.
//!
//! ```text
//! volume         find, open and close a volume
//! failures       errors of volumes as messages
//! mkfs, fsck, gc the commands on a volume that is not mounted
//! doctor         checks of a store
//! ```

#[cfg(not(feature = "object"))]
mod absent;
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
#[cfg(feature = "object")]
mod volume;

#[cfg(not(feature = "object"))]
pub(crate) use self::absent::{Volume, check_store, find, fsck, gc, mkfs};
#[cfg(feature = "object")]
pub(crate) use self::{
    doctor::check_store,
    fsck::run as fsck,
    gc::run as gc,
    mkfs::run as mkfs,
    volume::{Volume, find},
};

use crate::exit::Failure;

/// The result of one check of a store: what was found, or what is wrong.
pub(crate) struct StoreFinding {
    pub(crate) name: String,
    pub(crate) result: Result<String, Failure>,
}

/// Shows the progress of a command.
#[cfg(feature = "object")]
fn show(meter: &mut crate::output::progress::Meter, progress: &slackwater_object::Progress) {
    let slackwater_object::Progress { step, done, of } = progress;
    let text = of.map_or_else(|| format!("{step}, {done}"), |of| format!("{step}, {done} of {of}"));
    meter.show(*done, of.unwrap_or(*done), &text);
}
