//! Tests of the store against a store in memory with faults, and against a local S3 server.

mod failures;
mod layers;
mod retries;
mod texts;

use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use slackwater_s3_server::{BUCKET, Server};
use slackwater_sync::shim::Arc;

use super::retry::Retry;
use super::{Count, Environment, Fault, Layered, Location, Patience, Store};

/// Limits under which a hung or missing store is noticed at once.
const QUICK: Patience =
    Patience { attempt: Duration::from_millis(300), min_bytes_per_s: 1 << 20, request: Duration::from_secs(3) };

/// The limits of [`QUICK`] for stores that answer: this machine may be slow.
pub(crate) const ANSWERED: Patience = Patience { attempt: Patience::SHORT.attempt, ..QUICK };

/// A store in memory behind faults, counts and retries.
struct Rig {
    memory: Arc<InMemory>,
    fault: Arc<Fault>,
    count: Arc<Count>,
    store: Retry,
}

fn rig(patience: Patience) -> Rig {
    let (memory, fault, count) = (Arc::new(InMemory::new()), Arc::new(Fault::new()), Arc::new(Count::default()));
    let faulty: Arc<dyn ObjectStore> = Arc::new(Layered::new(fault.clone(), memory.clone()));
    let counted = Arc::new(Layered::new(count.clone(), faulty));
    Rig { memory, fault, count, store: Retry::new(counted, patience, true) }
}

pub(crate) fn environment(server: &Server) -> Environment {
    let variables = server.environment();
    Environment::of(variables.each_ref().map(|(name, value)| (*name, value.as_str())))
}

fn location(server: &Server, patience: Patience) -> Location {
    Location::parse_in(&format!("s3://{BUCKET}/volume"), environment(server)).expect("a good URL").patient(patience)
}

/// A server and an open store on it. A test in which no request fails or hangs is patient: this machine may be slow.
pub(crate) fn s3(patience: Patience) -> (Server, Store) {
    let server = Server::start().expect("a server on loopback");
    let store = Store::connect(&location(&server, patience), None).expect("good settings");
    (server, store)
}
