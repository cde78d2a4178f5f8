//! A layer in which requests fail, hang, lose their answers or bring wrong bytes, as the test commands.
//!
//! Rules are tried in the order in which they were added, and the first that applies decides. A crash point makes every
//! later request fail, as if the process had died; [`Fault::revive`] is the restart.

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::failure::Failure;
use super::request::{Layer, Operation, Request};

/// Faults around a store. The test keeps its own reference, and adds rules while the store works.
#[derive(Debug, Default)]
pub struct Fault {
    state: Mutex<State>,
    released: Notify,
    has_held: Notify,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    /// Requests so far, failed ones included.
    requests: u64,
    held: u64,
    /// Grows with each release: a request hangs until it differs from what it saw.
    releases: u64,
    is_crashed: bool,
}

/// A kind of fault. Without conditions it strikes every request.
///
/// ```
/// use slackwater_object::layers::{Failure, Operation, Rule};
///
/// let third_upload = Rule::fail(Failure::Throttled).on(Operation::Put).under("seg/").nth(3);
/// let lost_commit = Rule::lose_reply().on(Operation::Create).under("meta/wal/").nth(1);
/// # let _ = (third_upload, lost_commit);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a rule does nothing until it is added"]
pub struct Rule {
    effect: Effect,
    operation: Option<Operation>,
    part: Option<String>,
    first: u64,
    last: u64,
    matches: u64,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Effect {
    Fail(Failure),
    LoseReply,
    Truncate(u64),
    Corrupt(u64),
    Hang,
    Crash { after: bool },
}

impl Rule {
    /// The store does not see the request.
    pub fn fail(failure: Failure) -> Self {
        Self::new(Effect::Fail(failure))
    }

    /// The store carries the request out, and the caller gets a timeout.
    pub fn lose_reply() -> Self {
        Self::new(Effect::LoseReply)
    }

    /// The body of an answer ends after `bytes`, without an error.
    pub fn truncate(bytes: u64) -> Self {
        Self::new(Effect::Truncate(bytes)).on(Operation::Get)
    }

    /// The byte `at` of the body of an answer has its bits flipped.
    pub fn corrupt(at: u64) -> Self {
        Self::new(Effect::Corrupt(at)).on(Operation::Get)
    }

    /// The request waits for [`Fault::release`] before the store sees it.
    pub fn hang() -> Self {
        Self::new(Effect::Hang)
    }

    /// The process dies before the store sees the request.
    pub fn crash_before() -> Self {
        Self::new(Effect::Crash { after: false })
    }

    /// The process dies after the store has carried the request out.
    pub fn crash_after() -> Self {
        Self::new(Effect::Crash { after: true })
    }

    fn new(effect: Effect) -> Self {
        Self { effect, operation: None, part: None, first: 1, last: u64::MAX, matches: 0 }
    }

    /// Only requests of this kind.
    pub fn on(self, operation: Operation) -> Self {
        Self { operation: Some(operation), ..self }
    }

    /// Only requests on objects whose path in the bucket has `part` in it, such as `seg/`.
    pub fn under(self, part: impl Into<String>) -> Self {
        Self { part: Some(part.into()), ..self }
    }

    /// Only the next `requests` that match.
    pub fn next(self, requests: u64) -> Self {
        Self { first: 1, last: requests, ..self }
    }

    /// Only the `request`th that matches, counted from 1.
    pub fn nth(self, request: u64) -> Self {
        Self { first: request, last: request, ..self }
    }

    fn judge(&mut self, request: &Request) -> Option<Effect> {
        let is_match = self.operation.is_none_or(|operation| operation == request.operation)
            && self.part.as_ref().is_none_or(|part| request.path.as_ref().contains(part.as_str()));
        self.matches += u64::from(is_match);
        (is_match && (self.first..=self.last).contains(&self.matches)).then_some(self.effect)
    }
}

/// An error that a test asked for.
#[derive(Copy, Clone, Debug, thiserror::Error)]
#[error("injected: {0}")]
pub(super) struct Injected(pub(super) Failure);

impl Fault {
    /// A layer without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule after the existing ones.
    pub fn add(&self, rule: Rule) {
        self.state.lock().rules.push(rule);
    }

    /// Removes all rules. Requests that hang stay so.
    pub fn clear(&self) {
        self.state.lock().rules.clear();
    }

    /// The requests that came so far, failed ones included.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// Whether a crash point was reached.
    pub fn is_crashed(&self) -> bool {
        self.state.lock().is_crashed
    }

    /// Removes all rules and ends the crash: the next process.
    pub fn revive(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.is_crashed = false;
    }

    /// Lets all requests go on that hang.
    pub fn release(&self) {
        self.state.lock().releases += 1;
        self.released.notify_waiters();
    }

    /// Waits until `requests` hang at once.
    pub async fn held(&self, requests: u64) {
        loop {
            let more = self.has_held.notified();
            tokio::pin!(more);
            more.as_mut().enable();
            if self.state.lock().held >= requests {
                return;
            }
            more.await;
        }
    }

    async fn hang(&self) {
        let seen = {
            let mut state = self.state.lock();
            state.held += 1;
            state.releases
        };
        // A caller that gives up drops this future.
        let held = Held(self);
        self.has_held.notify_waiters();
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if self.state.lock().releases != seen {
                break;
            }
            released.await;
        }
        drop(held);
    }
}

/// Counts a request that hangs, until it is dropped.
struct Held<'a>(&'a Fault);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.state.lock().held -= 1;
    }
}

impl State {
    fn judge(&mut self, request: &Request) -> Option<Effect> {
        self.requests += 1;
        if self.is_crashed {
            return Some(Effect::Fail(Failure::Crashed));
        }
        let effect = self.rules.iter_mut().find_map(|rule| rule.judge(request));
        self.is_crashed = effect == Some(Effect::Crash { after: false });
        effect
    }
}

#[async_trait]
impl Layer for Fault {
    type Note = Note;

    async fn before(&self, request: &Request) -> Result<Note> {
        let effect = self.state.lock().judge(request);
        match effect {
            Some(Effect::Fail(failure)) => Err(injected(failure, &request.path)),
            Some(Effect::Crash { after: false }) => Err(injected(Failure::Crashed, &request.path)),
            Some(Effect::Hang) => {
                self.hang().await;
                Ok(Note(None))
            }
            Some(Effect::LoseReply | Effect::Truncate(_) | Effect::Corrupt(_) | Effect::Crash { after: true })
            | None => Ok(Note(effect)),
        }
    }

    async fn after(&self, request: &Request, Note(effect): Note, _error: Option<&Error>) -> Result<()> {
        // A request that was on its way at a crash has no one left who hears its answer.
        let is_crashed = {
            let mut state = self.state.lock();
            state.is_crashed |= effect == Some(Effect::Crash { after: true });
            state.is_crashed
        };
        match effect {
            _ if is_crashed => Err(injected(Failure::Crashed, &request.path)),
            Some(Effect::LoseReply) => Err(injected(Failure::Timeout, &request.path)),
            _ => Ok(()),
        }
    }

    fn takes_body(&self, Note(effect): Note) -> bool {
        matches!(effect, Some(Effect::Truncate(_) | Effect::Corrupt(_)))
    }

    async fn body(&self, Note(effect): Note, at: u64, piece: Bytes) -> Result<Bytes> {
        let len = piece.len() as u64;
        match effect {
            Some(Effect::Truncate(bytes)) => Ok(piece.slice(..bytes.saturating_sub(at).min(len) as usize)),
            Some(Effect::Corrupt(byte)) if (at..at + len).contains(&byte) => {
                let mut wrong = piece.to_vec();
                wrong[(byte - at) as usize] ^= 0xff;
                Ok(wrong.into())
            }
            _ => Ok(piece),
        }
    }
}

/// The effect that a rule has on the answer of a request.
#[derive(Copy, Clone, Debug, Default)]
pub struct Note(Option<Effect>);

/// An error of `object_store` in the form in which a real store gives it.
fn injected(failure: Failure, path: &Path) -> Error {
    let (path, source) = (path.to_string(), Box::new(Injected(failure)));
    match failure {
        Failure::NotFound => Error::NotFound { path, source },
        Failure::Exists => Error::AlreadyExists { path, source },
        Failure::Changed => Error::Precondition { path, source },
        Failure::Permission => Error::PermissionDenied { path, source },
        Failure::Credentials => Error::Unauthenticated { path, source },
        Failure::Unsupported => Error::NotSupported { source },
        Failure::Throttled
        | Failure::Server
        | Failure::Timeout
        | Failure::Unreachable
        | Failure::ClockSkew
        | Failure::NoBucket
        | Failure::NoSpace
        | Failure::Quota
        | Failure::Configuration
        | Failure::Crashed
        | Failure::Other => Error::Generic { store: "fault", source },
    }
}
