//! A local S3 server and locations on it, for the tests of this crate.
//!
//! ```ignore
//! #[path = "../rig/mod.rs"]
//! mod rig;
//!
//! let (server, location) = rig::s3("volume");     // a server per test, stopped and removed when dropped
//! let location = location.layered(...);           // faults below the retries, see slackwater_object::layers
//! server.set_delay(Duration::from_millis(30));    // or scripted answers: server.script(...)
//! ```
//!
//! Tests of the command and experiments use `slackwater-s3-server` itself, as a library or as a program: its head says
//! how. `server.environment()` is what a child process needs.

use slackwater_object::{Environment, Location};
use slackwater_s3_server::{BUCKET, Server};

/// A server, and the location of `prefix` in its bucket.
pub(crate) fn s3(prefix: &str) -> (Server, Location) {
    let server = Server::start().expect("a server on loopback");
    let location = location(&server, &format!("s3://{BUCKET}/{prefix}"));
    (server, location)
}

/// `url` with the keys and the endpoint of `server`.
pub(crate) fn location(server: &Server, url: &str) -> Location {
    let variables = server.environment();
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    Location::parse_in(url, Environment::of(variables)).expect("a good URL")
}
