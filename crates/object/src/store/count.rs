//! A layer that counts requests and bytes.

use async_trait::async_trait;
use bytes::Bytes;
use object_store::{Error, Result};
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use super::request::{Layer, Operation, Request};

/// Counts the requests that reach a store. Repetitions are counted too: this is what the store bills.
#[derive(Debug, Default)]
pub(crate) struct Count {
    requests: [AtomicU64; Operation::ALL.len()],
    failed: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// The counts at one moment.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub(crate) struct Counts {
    requests: [u64; Operation::ALL.len()],
    /// Requests that the store did not carry out. "Not found" and a condition that does not hold are answers.
    pub(crate) failed: u64,
    /// Bytes of objects and parts that were sent.
    pub(crate) sent_bytes: u64,
    /// Bytes of objects that were received.
    pub(crate) received_bytes: u64,
}

impl Counts {
    /// Requests of one kind.
    pub(crate) fn of(&self, operation: Operation) -> u64 {
        self.requests[operation as usize]
    }

    /// Requests that write an object, which stores bill highest.
    pub(crate) fn writes(&self) -> u64 {
        [Operation::Put, Operation::Create, Operation::Update].into_iter().map(|operation| self.of(operation)).sum()
    }
}

#[cfg(test)]
impl Counts {
    /// Requests of all kinds.
    pub(crate) fn total(&self) -> u64 {
        self.requests.iter().sum()
    }

    /// The counts since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: std::array::from_fn(|index| self.requests[index] - earlier.requests[index]),
            failed: self.failed - earlier.failed,
            sent_bytes: self.sent_bytes - earlier.sent_bytes,
            received_bytes: self.received_bytes - earlier.received_bytes,
        }
    }
}

impl Count {
    /// The counts so far.
    pub(crate) fn counts(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            requests: std::array::from_fn(|index| load(&self.requests[index])),
            failed: load(&self.failed),
            sent_bytes: load(&self.sent_bytes),
            received_bytes: load(&self.received_bytes),
        }
    }
}

#[async_trait]
impl Layer for Count {
    type Note = ();

    async fn before(&self, request: &Request) -> Result<()> {
        self.requests[request.operation as usize].fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(request.sent_bytes, Ordering::Relaxed);
        Ok(())
    }

    async fn after(&self, _request: &Request, (): (), error: Option<&Error>) -> Result<()> {
        self.failed.fetch_add(u64::from(error.is_some_and(|error| !is_an_answer(error))), Ordering::Relaxed);
        Ok(())
    }

    fn takes_body(&self, (): ()) -> bool {
        true
    }

    async fn body(&self, (): (), _at: u64, piece: Bytes) -> Result<Bytes> {
        self.received_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok(piece)
    }
}

/// Whether it says how the objects are, not that the request failed.
fn is_an_answer(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound { .. } | Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. }
    )
}
