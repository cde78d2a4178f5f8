//! Metrics for Prometheus: an engine and its volumes, over HTTP.
//!
//! A scrape takes a [`Snapshot`] through a closure. [`render`] turns it into text according to the tables of
//! [`catalogue`], and [`pages`] serves it. Only [`Unmounts`] counts anything here, and no work is done between
//! scrapes. `docs/METRICS.md` lists every metric; a test compares the two.
//!
//! # Invariants
//! M1. The number of series is bounded, however many volumes and tenants there are ([`bounds`]).
//! M2. A counter never goes down while its series exists. This includes the series of all items without their own.

mod bounds;
mod catalogue;
mod pages;
mod prometheus_text;
mod render;
mod unmounts;

use slackwater::EngineStatus;
use slackwater_control::protocol::{MemoryPressure, Shrinker, Status, Tenant};

pub(crate) use pages::serve;
pub(crate) use unmounts::Unmounts;

/// The data of a scrape.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The status of the engine; `None` before it exists.
    pub(crate) engine: Option<EngineStatus>,
    /// All tenants of the engine.
    pub(crate) tenants: Vec<Tenant>,
    /// The caches of the process that can free memory.
    pub(crate) shrinkers: Vec<Shrinker>,
    pub(crate) memory_pressure: MemoryPressure,
    /// The status of each volume, with the value of the label `volume`.
    pub(crate) volumes: Vec<(String, Status)>,
    pub(crate) unmounts: Unmounts,
}

#[cfg(test)]
mod tests;
