//! Metrics for Prometheus: the figures of an engine and its volumes, over HTTP.
//!
//! A scrape takes a [`Snapshot`], by a closure of whoever has the figures; [`render`] makes text of it by the tables of
//! [`catalogue`], and [`server`] hands it out. Nothing is counted here but [`Unmounts`], and nothing is done between scrapes.
//! `docs/METRICS.md` has every metric, and a test holds the two together.
//!
//! # Invariants
//! M1. The number of series is bounded, however many volumes and tenants there are ([`bounds`]).
//! M2. A counter never goes down while its series goes on; so neither does that of all who have no series of their own.

mod bounds;
mod catalogue;
mod prometheus_text;
mod render;
mod server;
mod unmounts;

use std::io;
use std::net::{SocketAddr, TcpListener};

use slackwater::EngineStatus;

use crate::control::protocol::{MemoryPressure, Shrinker, Status, Tenant};
use crate::exit::Failure;

pub(crate) use server::{Server, serve};
pub(crate) use unmounts::Unmounts;

/// Takes the port of `address`, before anything else is begun. Who connects waits until [`serve`].
///
/// # Errors
/// It is taken, or not one of this machine.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|error| {
        if error.kind() == io::ErrorKind::AddrInUse {
            Failure::busy(format!("--metrics: {address} is in use by another program"))
                .advise("choose another port; nothing was mounted")
        } else if error.kind() == io::ErrorKind::AddrNotAvailable {
            Failure::usage(format!("--metrics: {} is not an address of this machine", address.ip()))
                .advise("use 127.0.0.1 for this machine only, or 0.0.0.0 for every interface")
        } else {
            Failure::failed(format!("--metrics: cannot listen at {address}: {error}"))
        }
    })
}

/// All that a scrape tells.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// None before it is there.
    pub(crate) engine: Option<EngineStatus>,
    /// All of the engine.
    pub(crate) tenants: Vec<Tenant>,
    /// The caches of the process that can give memory back.
    pub(crate) shrinkers: Vec<Shrinker>,
    pub(crate) memory_pressure: MemoryPressure,
    /// Each by the name that its series have.
    pub(crate) volumes: Vec<(String, Status)>,
    pub(crate) unmounts: Unmounts,
}

#[cfg(test)]
mod tests;
