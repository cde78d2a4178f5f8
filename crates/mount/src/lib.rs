//! Engine volumes as mounted file systems, over the transport of [`slackwater_fuse`].
//!
//! A [`MountedVolume`] is a volume of the engine at a mount point. Its file system answers each request from the
//! engine's cache; writes are charged to the tenant that a [`Tenancy`] finds for the caller. With a [`Keeper`] a mount
//! outlives its process.
//!
//! Reading order: `volume` (the meaning of each request), [`tenants`] and `tenancy` (who pays for a write), `mounted`
//! (mount, sync and unmount), `takeover` (the record of a kept mount), `coherence` (the probe at each mount).

mod coherence;
mod lock_order;
mod mounted;
mod sys;
mod takeover;
mod tenancy;
pub mod tenants;
mod volume;

pub use mounted::{
    Hold, Holder, MountPoint, MountVolumeError, MountedError, MountedVolume, Progress, Step, UmountRequest,
};
pub use takeover::{Keeper, Kept, MountRecord, RecordError};
pub use tenancy::Tenancy;

/// The page for embedders. Its examples are tested here, since this crate depends on all the others.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/EMBED.md")]
struct Embed;
