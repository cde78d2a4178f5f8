//! Claims in the store: making, confirming, rewriting and releasing them.

use std::time::Duration;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use slackwater_sync::shim::Arc;
use thiserror::Error;

use crate::error::VolumeError;
use crate::holder::Holder;
use crate::store::{Location, create, explain, reason};
use crate::writer::process::{Process, Token, start_ticks};
use crate::writer::record::{Record, Standing};

/// How often a holder confirms and rewrites its claim.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(30);

/// The folder of all claims.
pub(crate) const FOLDER: &str = "writer";

/// How often a claimant begins again because the newest claim changed under its eyes.
const ATTEMPTS: u32 = 16;

/// Why a volume is not ours.
#[derive(Debug, Error)]
pub(crate) enum ClaimError {
    #[error("{}", reason(.0))]
    Store(#[from] StoreError),
    /// Another process has it.
    #[error("{0}")]
    InUse(Holder),
}

impl ClaimError {
    /// The error of a command that could not claim the volume at `location`, or give it back.
    pub(crate) fn at(self, location: &Location) -> VolumeError {
        match self {
            Self::InUse(holder) => VolumeError::InUse(holder),
            Self::Store(error) => explain(location, "claim", &error),
        }
    }
}

/// The claims of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    store: Arc<dyn ObjectStore>,
    folder: Path,
    /// The process that claims and observes.
    process: Process,
}

/// The newest claim.
struct Newest {
    number: u64,
    /// `None` if it cannot be read.
    record: Option<Record>,
}

impl Claims {
    /// The claims of the volume whose objects `store` holds.
    pub(crate) fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, folder: Path::from(FOLDER), process: Process::current() }
    }

    /// The same, naming the process that keeps the volume beyond this one, if there is one.
    pub(crate) fn kept_by(self, keeper: Option<u32>) -> Self {
        Self { process: self.process.kept_by(keeper), ..self }
    }

    /// The process that has the volume, if a process has it.
    #[cfg(test)]
    pub(crate) async fn holder(&self, now_unix_ms: u64) -> Result<Option<Holder>, StoreError> {
        let newest = self.newest().await?;
        Ok(newest.filter(|newest| newest.standing(&self.process) != Standing::Free).map(|n| n.holder(now_unix_ms)))
    }

    /// Whether there are any: a volume that was ever made, or was to be made, has them.
    pub(crate) async fn exist(&self) -> Result<bool, StoreError> {
        Ok(!self.numbers().await?.is_empty())
    }

    /// Whether the last process that had the volume ended without giving it back.
    pub(crate) async fn is_left_behind(&self) -> Result<bool, StoreError> {
        let newest = self.newest().await?;
        Ok(newest.is_some_and(|newest| newest.standing(&self.process) == Standing::LeftBehind))
    }

    /// Makes the newest claim, if no process has the volume or `take_over` is set (W5, W6). The caller opens SlateDB next, and
    /// then confirms the claim (W1).
    pub(crate) async fn acquire(&self, take_over: bool, now_unix_ms: u64) -> Result<Claim, ClaimError> {
        let token = Token::new();
        let record = Record::new(&token, self.process.clone(), now_unix_ms);
        // The number of the claim that the user wants to take over, once it is known.
        let mut victim = None;
        for _ in 0..ATTEMPTS {
            let newest = self.newest().await?;
            let number = newest.as_ref().map_or(0, |newest| newest.number);
            if let Some(newest) = &newest {
                let is_victim = take_over && *victim.get_or_insert(newest.number) == newest.number;
                match newest.standing(&self.process) {
                    Standing::Free => {}
                    Standing::LeftBehind => tracing::info!(claim = number, "the last writer of the volume has ended"),
                    Standing::Held if is_victim => {
                        tracing::info!(claim = number, holder = %newest.holder(now_unix_ms), "taking the volume over");
                    }
                    Standing::Held => return Err(ClaimError::InUse(newest.holder(now_unix_ms))),
                }
            }
            victim.get_or_insert(number);
            let next = number.saturating_add(1);
            if create(&*self.store, &self.path(next), record.encode()).await? {
                let record = Mutex::new(record);
                let (claims, winner) = (self.clone(), Mutex::default());
                return Ok(Claim { claims, number: next, record, winner, _token: token });
            }
        }
        let newest = self.newest().await?;
        Err(newest.map_or_else(
            || StoreError::NotFound { path: self.folder.to_string(), source: "claims come and go".into() }.into(),
            |newest| ClaimError::InUse(newest.holder(now_unix_ms)),
        ))
    }

    /// The claim with the highest number, if there is any.
    async fn newest(&self) -> Result<Option<Newest>, StoreError> {
        let mut error = None;
        for _ in 0..ATTEMPTS {
            let Some(number) = self.numbers().await?.into_iter().max() else { return Ok(None) };
            match self.read(number).await? {
                Some(record) => return Ok(Some(Newest { number, record })),
                // Removed since, because there is a newer one.
                None => error = Some(number),
            }
        }
        let path = error.map_or_else(|| self.folder.clone(), |number| self.path(number)).to_string();
        Err(StoreError::NotFound { path, source: "listed, but not there".into() })
    }

    /// A claim, if it exists; without content if that cannot be read.
    async fn read(&self, number: u64) -> Result<Option<Option<Record>>, StoreError> {
        let body = match self.store.get(&self.path(number)).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        match body {
            Ok(bytes) => Ok(Some(Record::decode(&bytes))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn numbers(&self) -> Result<Vec<u64>, StoreError> {
        let objects = self.store.list(Some(&self.folder));
        objects.try_filter_map(async |object| Ok(number_of(&object.location))).try_collect().await
    }

    fn path(&self, number: u64) -> Path {
        self.folder.clone().join(format!("{number:020}.json"))
    }
}

/// The number in the name of a claim; `None` for other objects. The highest number is none: there is no next one.
fn number_of(path: &Path) -> Option<u64> {
    let digits = path.filename()?.strip_suffix(".json").filter(|digits| digits.len() == 20)?;
    digits.parse().ok().filter(|number| *number < u64::MAX)
}

impl Newest {
    fn standing(&self, observer: &Process) -> Standing {
        let record = self.record.as_ref();
        record.map_or(Standing::Held, |record| record.standing(observer, Token::is_held_here, start_ticks))
    }

    fn holder(&self, now_unix_ms: u64) -> Holder {
        self.record.as_ref().map_or(Holder::UNKNOWN, |record| record.holder(now_unix_ms))
    }
}

/// A claim that this process has made. Dropped without [`Claim::release`], it counts as left behind.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Claims,
    number: u64,
    record: Mutex<Record>,
    /// The process that has the volume instead of this one.
    winner: Mutex<Option<Holder>>,
    _token: Token,
}

impl Claim {
    /// The process that has taken the volume, if [`Claim::confirm`] has met it.
    pub(crate) fn winner(&self) -> Option<Holder> {
        self.winner.lock().clone()
    }

    /// Finds out whether this is still the newest claim (W1), and removes older ones.
    ///
    /// # Errors
    /// [`ClaimError::InUse`] if another process has the volume now. The volume is lost to this one (W2).
    pub(crate) async fn confirm(&self, now_unix_ms: u64) -> Result<(), ClaimError> {
        let numbers = self.claims.numbers().await?;
        if numbers.iter().any(|number| *number > self.number)
            && let Some(newest) = self.claims.newest().await?
        {
            let holder = newest.holder(now_unix_ms);
            *self.winner.lock() = Some(holder.clone());
            return Err(ClaimError::InUse(holder));
        }
        for number in numbers.into_iter().filter(|number| *number < self.number) {
            // An old claim does no harm; the next writer tries again.
            if let Err(error) = self.claims.store.delete(&self.claims.path(number)).await {
                tracing::debug!(error = reason(&error), number, "could not remove an old claim");
            }
        }
        Ok(())
    }

    /// Confirms the claim and rewrites it, so that others see that this process lives.
    ///
    /// # Errors
    /// As [`Claim::confirm`].
    pub(crate) async fn beat(&self, now_unix_ms: u64, last_commit_unix_ms: Option<u64>) -> Result<(), ClaimError> {
        self.confirm(now_unix_ms).await?;
        self.rewrite(now_unix_ms, |record| record.last_commit_unix_ms = last_commit_unix_ms).await
    }

    /// Gives the volume back. SlateDB must be closed.
    ///
    /// # Errors
    /// The store failed. Then others see the claim as left behind, or as held if they are on other machines.
    pub(crate) async fn release(&self, now_unix_ms: u64) -> Result<(), ClaimError> {
        match self.confirm(now_unix_ms).await {
            Ok(()) => self.rewrite(now_unix_ms, |record| record.released = true).await,
            // There is nothing to give back.
            Err(ClaimError::InUse(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn rewrite(&self, now_unix_ms: u64, change: impl FnOnce(&mut Record)) -> Result<(), ClaimError> {
        let body = {
            let mut record = self.record.lock();
            record.alive_unix_ms = now_unix_ms;
            change(&mut record);
            record.encode()
        };
        self.claims.store.put(&self.claims.path(self.number), body.into()).await?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
