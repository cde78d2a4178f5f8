//! The blocking work of calls, on threads of its own.
//!
//! # Invariants
//! B1. Work that changes a volume holds the lock of its id until it ends, even if the client has gone away.
//! B2. At most [`CHANGES_MAX`] such calls run at the same time; more of them wait. Work that only reads never waits for
//!     them: [`QUERIES_MAX`] have threads of their own, and beyond that they fail.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::timeout;
use tonic::Status;

/// Changes at the same time: fewer than the connections that a daemon accepts.
const CHANGES_MAX: usize = 128;
const QUERIES_MAX: usize = 32;
/// A query that takes longer waits for a source that hangs.
const QUERY_WITHIN: Duration = Duration::from_secs(10);

/// Threads that all calls may take together.
pub(super) const THREADS_MAX: usize = CHANGES_MAX + QUERIES_MAX;

/// The calls of one plugin.
pub(super) struct Calls {
    locks: Mutex<HashMap<String, Arc<AsyncMutex<()>>>>,
    changes: Arc<Semaphore>,
    queries: Arc<Semaphore>,
}

impl Calls {
    pub(super) fn new() -> Self {
        let [changes, queries] = [CHANGES_MAX, QUERIES_MAX].map(|most| Arc::new(Semaphore::new(most)));
        Self { locks: Mutex::default(), changes, queries }
    }

    /// Does work that changes the volume `id`, or the one that will be named so.
    ///
    /// # Errors
    /// The errors of the work; `Internal`, if it panics.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        id: &str,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let alone = self.lock_of(id).lock_owned().await;
        let permit = Arc::clone(&self.changes).acquire_owned().await.map_err(|_| ended())?;
        let done = tokio::task::spawn_blocking(move || {
            let _held = (alone, permit); // B1
            work()
        });
        done.await.unwrap_or_else(|error| Err(panicked(&error)))
    }

    /// Does work that changes nothing.
    ///
    /// # Errors
    /// The errors of the work; `DeadlineExceeded`, if it takes longer than [`QUERY_WITHIN`]; `ResourceExhausted`, if
    /// too many other queries hang.
    pub(super) async fn query<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let permit = Arc::clone(&self.queries).try_acquire_owned();
        let permit = permit.map_err(|_| Status::resource_exhausted("too many queries wait for volumes that hang"))?;
        let done = tokio::task::spawn_blocking(move || {
            let _held = permit;
            work()
        });
        match timeout(QUERY_WITHIN, done).await {
            Ok(done) => done.unwrap_or_else(|error| Err(panicked(&error))),
            Err(_) => Err(Status::deadline_exceeded("the source of the volume does not answer")),
        }
    }

    fn lock_of(&self, id: &str) -> Arc<AsyncMutex<()>> {
        // A thread that panicked has changed one entry or none.
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(id.to_owned()).or_default())
    }
}

fn ended() -> Status {
    Status::unavailable("the plugin ends")
}

fn panicked(error: &tokio::task::JoinError) -> Status {
    tracing::error!(%error, "a call failed unexpectedly");
    Status::internal("the call failed unexpectedly; the log of the plugin has the reason")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    #[test]
    fn calls_for_one_volume_do_not_overlap() {
        let (calls, running) = (Calls::new(), Arc::new(AtomicU32::new(0)));
        let call = || {
            let running = Arc::clone(&running);
            calls.change("a", move || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        };
        run(async {
            let (one, two, three) = tokio::join!(call(), call(), call());
            one.and(two).and(three).unwrap();
        });
        assert!(calls.locks.lock().unwrap().len() <= 1);
    }

    #[test]
    fn a_call_that_nobody_waits_for_keeps_its_lock_to_the_end() {
        let calls = Calls::new();
        let (go, wait) = channel::<()>();
        let ended = Arc::new(AtomicU32::new(0));
        run(async {
            let ending = Arc::clone(&ended);
            let abandoned = calls.change("a", move || {
                wait.recv().unwrap();
                ending.store(1, Ordering::SeqCst);
                Ok(())
            });
            assert!(timeout(Duration::from_millis(20), abandoned).await.is_err());
            // Another volume does not wait.
            calls.change("b", || Ok(())).await.unwrap();
            go.send(()).unwrap();
            let seen = calls.change("a", move || Ok(ended.load(Ordering::SeqCst))).await.unwrap();
            assert_eq!(seen, 1);
        });
    }

    #[test]
    fn a_panic_is_an_error_of_its_call_alone() {
        let calls = Calls::new();
        run(async {
            let panicked =
                calls.change("a", || -> Result<(), Status> { std::panic::resume_unwind(Box::new("x")) }).await;
            assert_eq!(panicked.unwrap_err().code(), tonic::Code::Internal);
            calls.change("a", || Ok(())).await.unwrap();
        });
    }
}
