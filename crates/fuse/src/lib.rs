//! A FUSE transport on `/dev/fuse`, without a library in between.
//!
//! A [`Pool`] of threads reads the requests of many mounts. Each mount is a [`Session`] with a [`FileSystem`]. The file
//! system gets every request as a typed [`Operation`] together with its [`Reply`], and may answer at once or later,
//! from any thread.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use slackwater_fuse::abi::{Attr, AttrOut};
//! use slackwater_fuse::mount::{MountOptions, mount};
//! use slackwater_fuse::{
//!     Context, DevFuse, Errno, FileSystem, InitOptions, Operation, Payload, Pool, PoolOptions, Reply, RequestHeader,
//!     Session,
//! };
//!
//! /// An empty directory.
//! struct Empty;
//!
//! impl FileSystem for Empty {
//!     fn handle(&self, _: &Context<'_>, _: &RequestHeader, op: Operation<'_>, _: Payload<'_>, reply: Reply) {
//!         let attr = Attr { ino: 1, mode: 0o040_755, nlink: 2, ..Attr::default() };
//!         let _ = match op {
//!             Operation::Getattr(_) => reply.attr(&AttrOut { attr, ..AttrOut::default() }),
//!             Operation::Opendir(_) => reply.open(0, 0),
//!             Operation::Readdir(_) | Operation::Readdirplus(_) | Operation::Releasedir(_) => reply.empty(),
//!             Operation::Lookup { .. } => reply.error(Errno::NOENT),
//!             _ => reply.error(Errno::NOSYS),
//!         };
//!     }
//! }
//!
//! let pool = Pool::new(PoolOptions::default())?;
//! let device = mount(Path::new("/mnt/empty"), &MountOptions::default())?;
//! let session = Session::start(&pool, DevFuse::new(device)?, &InitOptions::default(), Arc::new(Empty))?;
//! println!("{:?}", session.wait_ended()); // after umount /mnt/empty
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order: [`abi`] (the protocol), [`parse()`] (bytes to requests), [`Reply`], [`FileSystem`], [`Session`],
//! [`Pool`], [`mount`].

pub mod abi;
mod connection;
mod dirents;
mod file_system;
mod fusectl;
mod held_replies;
mod landing;
pub mod loopback;
pub mod mount;
mod negotiate;
mod notifier;
pub mod own_mount;
mod parse;
mod pool;
mod reply;
mod request;
mod ring;
mod session;
mod sys;
mod transport;

pub use connection::is_closed;
pub use dirents::{Dirents, Full};
pub use file_system::FileSystem;
pub use fusectl::abort_connection;
pub use held_replies::HeldReply;
pub use landing::{Landed, LandingMemory};
pub use negotiate::{InitOptions, MissingFeature, NegotiateError, Negotiated};
pub use notifier::{Notification, Notifier};
pub use parse::{Forgets, InitRequest, Operation, ParseError, Request, parse, parse_entry};
pub use pool::{Blocking, Context, Pool, PoolError, PoolOptions};
pub use reply::{Delivery, Reply};
pub use request::{Payload, RequestHeader};
pub use ring::{RingError, Workers};
pub use rustix::io::Errno;
pub use session::{Ended, Session, SessionError};
pub use transport::{DevFuse, Transport};

use slackwater_sync::lock::Rank;

/// Rank of all locks of the transport. They are leaves: nothing is sent, called or locked under one.
const TRANSPORT: Rank = Rank::new(90, "FUSE transport");
