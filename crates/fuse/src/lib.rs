//! The FUSE front end, without a library in between: the transport on `/dev/fuse`, and engine volumes mounted on it.
//!
//! A [`Pool`] of threads reads the requests of many mounts. Each mount is a [`Session`] with a [`FileSystem`]. The file
//! system gets every request as a typed [`Operation`] together with its [`Reply`], and may answer at once or later,
//! from any thread. A [`MountedVolume`] is an engine volume served in this way.
//!
//! Reading order: [`abi`] (the protocol), [`parse()`] (bytes to requests), [`Reply`], [`FileSystem`], [`Session`],
//! [`Pool`], [`mount`].

pub mod abi;
mod coherence;
mod connection;
mod dirents;
mod file_system;
mod fusectl;
mod held_replies;
mod landing;
pub mod loopback;
pub mod mount;
mod mounted;
mod negotiate;
mod notifier;
mod own_mount;
mod parse;
mod pool;
mod reply;
mod request;
mod ring;
mod session;
mod sys;
mod takeover;
mod tenancy;
pub mod tenants;
mod transport;
mod volume;

pub use connection::is_closed;
pub use dirents::{Dirents, Full};
pub use file_system::FileSystem;
pub use fusectl::abort_connection;
pub use held_replies::HeldReply;
pub use landing::Landed;
pub use mounted::{
    Hold, Holder, MountPoint, MountVolumeError, MountedError, MountedVolume, Progress, Step, UmountRequest,
};
pub use negotiate::{InitOptions, MissingFeature, NegotiateError, Negotiated};
pub use notifier::{Notification, Notifier};
pub use own_mount::OWN_MOUNT_THREAD;
pub use parse::{Forgets, InitRequest, Operation, ParseError, Request, parse, parse_entry};
pub use pool::{Blocking, Context, Pool, PoolError, PoolOptions};
pub use reply::{Delivery, Reply};
pub use request::{Payload, RequestHeader};
pub use ring::RingError;
pub use rustix::io::Errno;
pub use session::{Ended, Session, SessionError};
pub use takeover::{Keeper, Kept, MountRecord, RecordError};
pub use tenancy::Tenancy;
pub use transport::{DevFuse, Transport};

use slackwater_sync::lock::Rank;

/// Rank of all locks of the transport. They are leaves: nothing is sent, called or locked under one.
const TRANSPORT: Rank = Rank::new(90, "FUSE transport");

/// The page for embedders. Its examples are tested here, since this crate depends on all the others.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/EMBED.md")]
struct Embed;
