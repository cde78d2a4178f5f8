//! `slackwater csi`: the Container Storage Interface, version 1.13, on a Unix socket.
//!
//! ```text
//! server        the socket, the calls, the end
//! calls         blocking work of a call: one at a time for each volume
//! identity      the Identity service
//! controller    the Controller service: volumes are made and removed
//! parameters    parameters of a storage class
//! listing       lists of volumes in pages
//! node          the Node service: volumes are mounted on this machine
//! capability    which accesses a volume allows, and which not
//! status        failures as codes of gRPC
//! ```
//!
//! # Invariants
//! I1. Each call can be repeated, and may be cut off at any moment by the death of this process (`node` and
//!     `volumes` see to that). This process keeps nothing in memory that a later call needs.
//! I2. Work for a volume does not overlap with other work for it. A call whose client has gone away is carried out to its
//!     end if it has begun, and is not begun otherwise.
//! I3. The contents of requests are not logged: they have secrets.

mod calls;
mod capability;
mod controller;
mod identity;
mod listing;
mod node;
mod parameters;
mod server;
mod status;

pub use self::server::{Controller, Csi, run};
