//! How the command talks to a mount process or a daemon: one request per connection, one JSON object per line.
//!
//! `protocol` has the messages, `status` the longest of them. `line` reads one within limits, `server` answers,
//! `client` asks.

pub(crate) mod client;
mod line;
pub(crate) mod protocol;
pub(crate) mod server;
mod status;
