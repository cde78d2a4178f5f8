//! `slackwater docker-plugin`: the volume plugin of Docker and Podman, version 1 of its protocol.
//!
//! The platform posts JSON to a path such as `/VolumeDriver.Mount` on a Unix socket, and gets JSON back. A volume is
//! mounted when the first container asks for it, and unmounted when the last one has given it back.
//!
//! ```text
//! server    HTTP on the socket
//! messages  requests and answers
//! driver    the calls
//! users     the users of mounted volumes
//! ```
//!
//! # Invariants
//! K1. Each call can be repeated, and may be cut off at any moment by the death of this process. Later calls need
//!     nothing but the records of volumes, the files of their users, and the daemon.
//! K2. Calls that change one volume do not overlap. A call whose client has gone away is carried out to its end.
//! K3. One process at a time has a state directory.

mod driver;
mod messages;
mod server;
mod users;

pub use self::server::{DockerPlugin, run};
