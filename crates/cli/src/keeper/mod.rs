//! A mount process, or a daemon, whose mounts outlive it (ADR 0033).
//!
//! The process that the user starts becomes the *keeper*: small, with one thread, and without an engine. It starts the
//! *server*, the mount process or daemon proper, as its child, and holds a duplicate of each descriptor that must not be closed.
//! When the server dies, the keeper starts a successor and gives it all of them.
//!
//! ```text
//! process      the keeper: starts servers, forwards signals, decides what the end of a server means
//! programs     the program of the next server
//! pace         the delay before a successor, if servers crash again and again
//! formats      what another program must be able to read before it can be the next server
//! remains      the threads of a dead server, and when a successor may start
//! patience     how long the end of a mount waits for a source that holds the dead server up
//! end          how a server has ended
//! estate       everything that the keeper holds
//! store        the same, with the service manager
//! client       the server's side
//! succession   a takeover on purpose
//! protocol     the messages between both
//! talk         how the server sends them, whether the keeper answers or not
//! link         the socket for them
//! ```
//!
//! # Invariants
//! K1. A successor starts only when no thread of its predecessor can change the source any more ([`remains`]).
//! K2. Every lock of the mount belongs to an open file that the keeper has too. So no other process can take it between
//!     two servers, and a successor never has to.
//! K3. A server goes on without its keeper, and no program waits for a keeper that is stopped ([`talk`]). Without a keeper,
//!     only a crash would end the mount. If K6 applies, it ends at once instead:
//!     the next keeper starts another one, and nothing may change in between that it would not know.
//! K4. When a call that hands a descriptor to the keeper has returned, a successor will get that descriptor. There are two
//!     exceptions: descriptors of nodes if the keeper may not have more open, and those of nodes and of removed files if the
//!     server dies while the keeper is silent.
//! K5. A server is started from a file that the keeper has open, never from a path. Only `slackwater upgrade` changes that
//!     file, and a program that did not take over is never started twice.
//! K6. In a service with a descriptor store, everything in the estate is in that store too, except nodes. So the keeper may
//!     die as well.

pub(crate) mod client;
mod end;
mod estate;
pub(crate) mod formats;
mod link;
mod pace;
mod patience;
pub(crate) mod process;
mod programs;
pub(crate) mod protocol;
mod remains;
mod store;
mod succession;
mod talk;

pub(crate) use estate::Parts;
pub(crate) use programs::Program;
