//! A layer that makes a store as slow as a distant one.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::Result;
use tokio::time;

use super::request::{Layer, Operation, Request};

/// A latency for each request, and a bandwidth for the bytes of each, as stores have them: parallel requests do not
/// slow each other down.
#[derive(Clone, Debug, Default)]
pub struct Delay {
    each: Duration,
    by_operation: Vec<(Operation, Duration)>,
    bytes_per_s: Option<u64>,
}

impl Delay {
    /// Delays each request by `latency`.
    pub fn new(latency: Duration) -> Self {
        Self { each: latency, ..Self::default() }
    }

    /// Delays requests of one kind by `latency` instead.
    #[must_use]
    pub fn on(mut self, operation: Operation, latency: Duration) -> Self {
        self.by_operation.insert(0, (operation, latency));
        self
    }

    /// Sends and receives at `bytes_per_s` in each request.
    #[must_use]
    pub fn bandwidth(self, bytes_per_s: u64) -> Self {
        Self { bytes_per_s: Some(bytes_per_s.max(1)), ..self }
    }

    fn latency(&self, operation: Operation) -> Duration {
        self.by_operation.iter().find(|(of, _)| *of == operation).map_or(self.each, |(_, latency)| *latency)
    }

    fn transfer(&self, bytes: u64) -> Duration {
        self.bytes_per_s.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate as f64))
    }
}

#[async_trait]
impl Layer for Delay {
    type Note = ();

    async fn before(&self, request: &Request) -> Result<()> {
        time::sleep(self.latency(request.operation) + self.transfer(request.sent_bytes)).await;
        Ok(())
    }

    fn takes_body(&self, (): ()) -> bool {
        self.bytes_per_s.is_some()
    }

    async fn body(&self, (): (), _at: u64, piece: Bytes) -> Result<Bytes> {
        time::sleep(self.transfer(piece.len() as u64)).await;
        Ok(piece)
    }
}
