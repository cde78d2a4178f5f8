//! Metrics for Prometheus: an engine and its volumes, over HTTP.
//!
//! A scrape takes a [`Snapshot`] through a closure. [`render`] turns it into text according to the tables of
//! [`catalogue`], and [`server`] serves it. Only [`Unmounts`] counts anything here, and no work is done between
//! scrapes. `docs/METRICS.md` lists every metric; a test compares the two.
//!
//! # Invariants
//! M1. The number of series is bounded, however many volumes and tenants there are ([`bounds`]).
//! M2. A counter never goes down while its series exists. This includes the series of all items without their own.

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

/// Opens the port of `address` before anything else is started. Clients wait until [`serve`].
///
/// # Errors
/// The port is in use, or the address is not one of this machine.
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

/// The data of a scrape.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// `None` before the engine exists.
    pub(crate) engine: Option<EngineStatus>,
    /// All tenants of the engine.
    pub(crate) tenants: Vec<Tenant>,
    /// The caches of the process that can free memory.
    pub(crate) shrinkers: Vec<Shrinker>,
    pub(crate) memory_pressure: MemoryPressure,
    /// With the value of the label `volume`.
    pub(crate) volumes: Vec<(String, Status)>,
    pub(crate) unmounts: Unmounts,
}

#[cfg(test)]
mod tests;
