//! Messages of the server to its keeper, which may be stopped: by a signal, a debugger or a frozen cgroup.
//!
//! # Invariants
//! M1. Programs wait for the keeper at most [`SILENT_AFTER`], once. After that it is *silent*, and messages wait in the
//!     socket, or here if they do not fit. The keeper gets them in their order when it goes on, so then it has everything
//!     again.
//! M2. A file or node that is not needed any more takes its message out of `unsent`. So there are no more of them than
//!     there are files and nodes to keep.
//! M3. While the keeper is silent, a thread waits for it, and does what is left to do.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::keeper::client::Lost;
use crate::keeper::link::{Link, timespec};
use crate::keeper::protocol::{ToKeeper, ToServer};

/// How long a program waits for the keeper.
pub(super) const SILENT_AFTER: Duration = Duration::from_millis(500);

/// The server's end of the link.
#[derive(Debug)]
pub(super) struct Talk {
    /// The end of the link, locked during a request and its answer. A leaf.
    state: Mutex<State>,
    lost: Arc<Lost>,
    keeper: u32,
}

#[derive(Debug)]
struct State {
    link: Link,
    /// Answers to requests that no thread waits for any more.
    owed: usize,
    /// Messages that did not fit into the socket.
    unsent: VecDeque<(ToKeeper, Vec<OwnedFd>)>,
    /// M3.
    is_awaited: bool,
}

impl State {
    fn is_silent(&self) -> bool {
        self.owed > 0 || !self.unsent.is_empty()
    }

    /// Waits for an answer, at most for `within`. `None`: there is none yet.
    fn answer(&self, within: Duration) -> io::Result<Option<io::Result<()>>> {
        if !is_ready(&self.link, PollFlags::IN, Some(within)) {
            return Ok(None);
        }
        match self.link.receive::<ToServer>()? {
            Some((ToServer::Kept { error: None }, _)) => Ok(Some(Ok(()))),
            Some((ToServer::Kept { error: Some(error) }, _)) => Ok(Some(Err(io::Error::other(error)))),
            Some(_) => Err(io::Error::other("it sends a wrong answer")),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends a message if it fits into the socket. Returns whether it did.
    fn send(&mut self, message: &ToKeeper, with: &[BorrowedFd<'_>]) -> io::Result<bool> {
        match self.link.send_now(message, with) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    /// Sends a message whose answer nothing waits for, now or later (M1).
    fn post(&mut self, message: ToKeeper, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        let is_full = |state: &Self| !state.is_silent() && !is_ready(&state.link, PollFlags::OUT, Some(SILENT_AFTER));
        if self.unsent.is_empty() && (self.send(&message, with)? || (!is_full(self) && self.send(&message, with)?)) {
            self.owed += usize::from(message.is_answered());
            return Ok(());
        }
        if let Some(message) = self.without_unsent(message) {
            let with = with.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
            self.unsent.push_back((message, with));
        }
        Ok(())
    }

    /// The rest of a message after M2.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the rest needs nothing")]
    fn without_unsent(&mut self, message: ToKeeper) -> Option<ToKeeper> {
        let mut remove = |is_it: &dyn Fn(&ToKeeper) -> bool| {
            let found = self.unsent.iter().rposition(|(unsent, _)| is_it(unsent));
            found.map(|at| self.unsent.remove(at)).is_some()
        };
        match message {
            ToKeeper::ReleaseFile { volume: of, number: released } => {
                let is_it = |unsent: &ToKeeper| matches!(unsent, ToKeeper::KeepFile { volume, number } if (*volume, *number) == (of, released));
                (!remove(&is_it)).then_some(message)
            }
            ToKeeper::ReleaseNodes { volume: of, mut numbers } => {
                numbers.retain(|released| {
                    !remove(&|unsent: &ToKeeper| {
                        matches!(unsent, ToKeeper::KeepNode { volume, number } if (*volume, *number) == (of, *released))
                    })
                });
                (!numbers.is_empty()).then_some(ToKeeper::ReleaseNodes { volume: of, numbers })
            }
            message => Some(message),
        }
    }

    /// Takes the answers that have come, and sends what fits into the socket.
    fn catch_up(&mut self) -> io::Result<()> {
        while self.owed > 0
            && let Some(answer) = self.answer(Duration::ZERO)?
        {
            self.owed -= 1;
            if let Err(error) = answer {
                tracing::warn!(%error, "the keeper has not taken everything");
            }
        }
        while let Some((message, with)) = self.unsent.pop_front() {
            let descriptors: Vec<_> = with.iter().map(AsFd::as_fd).collect();
            if !self.send(&message, &descriptors)? {
                drop(descriptors);
                self.unsent.push_front((message, with));
                break;
            }
            self.owed += usize::from(message.is_answered());
        }
        Ok(())
    }
}

impl Talk {
    pub(super) fn new(link: Link, lost: Arc<Lost>, keeper: u32) -> Arc<Self> {
        let state = State { link, owed: 0, unsent: VecDeque::new(), is_awaited: false };
        Arc::new(Self { state: Mutex::new(state), lost, keeper })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has sent a whole message or none.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the keeper does not answer.
    pub(super) fn is_silent(&self) -> bool {
        self.state().is_silent()
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// The keeper refuses it, is gone, or does not answer in time.
    ///
    /// # Blocking
    /// For the keeper, at most for `within`.
    pub(super) fn ask(
        self: &Arc<Self>,
        message: ToKeeper,
        with: &[BorrowedFd<'_>],
        within: Duration,
    ) -> io::Result<()> {
        let until = Instant::now() + within;
        loop {
            let mut state = self.state();
            if state.is_silent() {
                drop(state);
                // A message that fails must not come later.
                if Instant::now() >= until {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                thread::sleep(LOOK);
                continue;
            }
            return self
                .exchange(&mut state, message, with, until.saturating_duration_since(Instant::now()))
                .and_then(|answer| answer.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())));
        }
    }

    /// Sends a request that the keeper will get in any case. If it is silent, nothing waits for the answer (M1).
    ///
    /// # Errors
    /// The keeper refuses it, or is gone.
    ///
    /// # Blocking
    /// For the keeper, at most for [`SILENT_AFTER`].
    pub(super) fn request(self: &Arc<Self>, message: ToKeeper, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut state = self.state();
        if state.is_silent() {
            return self.post(&mut state, message, with);
        }
        self.exchange(&mut state, message, with, SILENT_AFTER).and_then(|answer| answer.unwrap_or(Ok(())))
    }

    /// Sends a message without an answer.
    pub(super) fn tell(self: &Arc<Self>, message: ToKeeper, with: &[BorrowedFd<'_>]) {
        // If the keeper is gone, that was noted.
        let _ = self.post(&mut self.state(), message, with);
    }

    /// A request and its answer; `None` if the keeper is silent.
    fn exchange(
        self: &Arc<Self>,
        state: &mut State,
        message: ToKeeper,
        with: &[BorrowedFd<'_>],
        within: Duration,
    ) -> io::Result<Option<io::Result<()>>> {
        self.post(state, message, with)?;
        let answer = if state.unsent.is_empty() { state.answer(within) } else { Ok(None) };
        let answer = self.noted(answer)?;
        match &answer {
            Some(_) => state.owed -= 1,
            None => self.wait_for_keeper(state),
        }
        Ok(answer)
    }

    fn post(self: &Arc<Self>, state: &mut State, message: ToKeeper, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        if self.lost.is_lost() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.noted(state.post(message, with))?;
        if !state.unsent.is_empty() {
            self.wait_for_keeper(state);
        }
        Ok(())
    }

    /// K3.
    fn noted<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|error| self.lost.note(error))
    }

    /// M3.
    fn wait_for_keeper(self: &Arc<Self>, state: &mut State) {
        if state.is_awaited {
            return;
        }
        let (keeper, talk) = (self.keeper, Arc::clone(self));
        tracing::warn!(keeper, "the keeper does not answer; this process goes on without it until it does");
        let waiting = thread::Builder::new().name("sw-silent".to_owned()).spawn(move || talk.catch_up());
        // Without a thread, the next one that finds the keeper silent tries again.
        state.is_awaited = waiting.is_ok();
    }

    fn catch_up(&self) {
        let Ok(socket) = self.state().link.as_fd().try_clone_to_owned() else {
            self.state().is_awaited = false;
            return;
        };
        loop {
            let mut state = self.state();
            if self.noted(state.catch_up()).is_err() {
                return;
            }
            if !state.is_silent() {
                state.is_awaited = false;
                tracing::warn!(keeper = self.keeper, "the keeper answers again, and has everything");
                return;
            }
            let events = if state.unsent.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            drop(state);
            is_ready(&socket, events, None);
        }
    }
}

/// Interval between two looks at a keeper that is silent.
const LOOK: Duration = Duration::from_millis(10);

/// Waits for one of `events`, at most for `within`. Returns whether it has come, or the peer is gone.
fn is_ready(socket: impl AsFd, events: PollFlags, within: Option<Duration>) -> bool {
    let until = within.map(|within| Instant::now() + within);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match poll(&mut [PollFd::new(&socket, events)], left.map(timespec).as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(number: u64) -> ToKeeper {
        ToKeeper::KeepFile { volume: 1, number }
    }

    /// The keeper was waited for, for 10 s, and was given up for ever after that.
    #[test]
    #[allow(clippy::wildcard_enum_match_arm, reason = "nothing else was sent")]
    fn a_keeper_that_goes_on_has_everything_that_is_still_needed() {
        let (link, other) = Link::pair().unwrap();
        let keeper = Link::of(other).unwrap();
        let talk = Talk::new(link, Arc::default(), 7);
        let file = std::fs::File::open("/dev/null").unwrap();
        // It is silent, and the socket fills.
        let mut number = 0;
        while talk.state().unsent.len() < 3 {
            number += 1;
            talk.request(keep(number), &[file.as_fd()]).unwrap();
        }
        assert!(talk.is_silent() && number > 3);
        talk.tell(ToKeeper::ReleaseFile { volume: 1, number: number - 1 }, &[]);
        talk.tell(ToKeeper::ReleaseFile { volume: 1, number: 1 }, &[]);
        assert_eq!(talk.state().unsent.len(), 3, "two files, and the release of one that was sent");
        let refused = talk.ask(ToKeeper::Serves, &[], Duration::ZERO).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);

        let mut kept = std::collections::BTreeSet::new();
        while talk.is_silent() || is_ready(&keeper, PollFlags::IN, Some(Duration::ZERO)) {
            if !is_ready(&keeper, PollFlags::IN, Some(Duration::from_millis(10))) {
                continue;
            }
            let (message, descriptors) = keeper.receive::<ToKeeper>().unwrap().unwrap();
            match message {
                ToKeeper::KeepFile { number, .. } => {
                    assert!(descriptors.len() == 1 && kept.insert(number));
                    keeper.send(&ToServer::Kept { error: None }, &[]).unwrap();
                }
                ToKeeper::ReleaseFile { number, .. } => assert!(kept.remove(&number)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            kept.into_iter().collect::<Vec<_>>(),
            (2..=number).filter(|it| *it != number - 1).collect::<Vec<_>>()
        );
    }
}
