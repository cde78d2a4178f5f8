//! An open volume: what opening starts, and what closing stops.
//!
//! ```text
//! open: volume.json -> claim -> SlateDB, with the claim confirmed -> local log -> heartbeat, freed nodes
//! close: commit -> SlateDB closed -> claim released
//! ```

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::backend::Calls;
use crate::clock;
use crate::contents::{Reader, Writer};
use crate::delete::{delete, is_interrupted};
use crate::format::{Key, VOLUME_OBJECT, VolumeRecord};
use crate::maintenance::Maintenance;
use crate::names;
use crate::nodes::{OpenNodes, reap};
use crate::paths::Paths;
use crate::segments::Segments;
use crate::space;
use crate::store::{Failure, Location, Store, classify, create, explain, make_place, of_store};
use crate::tree::{Guard, LogPlace, OVERTAKEN, Place, Tree, TreeOptions, log_has_changes};
use crate::volume::{OpenOptions, Role, VolumeError};
use crate::writer::{Claim, ClaimError, Claims, HEARTBEAT};

/// Changes are in the store this long after they were made, at the latest.
const COMMIT_AGE: Duration = Duration::from_secs(5);
/// A sync fails if the store has not taken the data for this long. The data is kept.
const SYNC_LIMIT: Duration = Duration::from_secs(30);
/// The folder of SlateDB's files.
pub(crate) const META_FOLDER: &str = "meta";

/// An open volume.
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) tree: Arc<Tree>,
    pub(crate) calls: Calls,
    pub(crate) segments: Segments,
    /// The nodes that are closed, until their task begins.
    closed: Mutex<Option<Closed>>,
    runtime: Handle,
    /// `None`: it follows the writer.
    claimed: Option<Claimed>,
}

/// The open nodes, and the numbers of those that are closed.
type Closed = (Weak<OpenNodes>, UnboundedReceiver<u64>);

/// The claim that makes this process the writer, and its tasks.
struct Claimed {
    claim: Arc<Claim>,
    heart: JoinHandle<()>,
    /// Compacts and collects.
    keeper: JoinHandle<()>,
}

/// Reads what volume is at a place.
///
/// # Errors
/// There is none, or one of a newer format, or the store failed.
pub(crate) async fn look(location: &Location, objects: &dyn ObjectStore) -> Result<VolumeRecord, VolumeError> {
    let read = async { objects.get(&Path::from(VOLUME_OBJECT)).await?.bytes().await };
    match read.await {
        Ok(bytes) => VolumeRecord::decode(&bytes)
            .map_err(|text| VolumeError::Unreadable { location: location.to_string(), text }),
        Err(error) if classify(&error) == Failure::NotFound => Err(VolumeError::NoVolume(location.to_string())),
        Err(error) => Err(explain(location, "open", &error)),
    }
}

/// Makes an empty volume, whose root has these permissions. The last step is `volume.json`, so that one that is there is complete.
///
/// # Errors
/// There is one already, another process makes one, or the store failed.
pub(crate) async fn make(location: &Location, mode: u32) -> Result<(), VolumeError> {
    make_place(location)?;
    let store = Store::connect(location, None)?;
    match look(location, &*store.hasty).await {
        Err(VolumeError::NoVolume(_)) => {}
        Ok(_) => return Err(VolumeError::Exists(location.to_string())),
        Err(error) => return Err(error),
    }
    // Objects of a deleted volume must not become part of the new one.
    if is_interrupted(&*store.hasty).await.map_err(|error| explain(location, "make", &error))? {
        delete(location).await?;
        make_place(location)?;
    }
    let (id, salt) = (u128::from_ne_bytes(random()?), u64::from_ne_bytes(random()?));
    let record = VolumeRecord { id, salt, created_unix_ms: clock::unix_ms() };
    let Maintenance { tree, claim } = Maintenance::of_new(location, &store, &record).await?;
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let made = tree.run(|view| {
        // An earlier attempt may have come this far.
        if view.get(Key::Inode(names::ROOT))?.is_none() {
            names::make_root(view, mode, owner);
        }
        Ok(())
    });
    let made = made.await;
    let closed = tree.close().await;
    let is_created = match made.and(closed) {
        Ok(()) => {
            let created = create(&*store.hasty, &Path::from(VOLUME_OBJECT), record.encode()).await;
            created.map_err(|error| explain(location, "make", &error))
        }
        Err(error) => Err(VolumeError::Store(error)),
    };
    let released = claim.release(clock::unix_ms()).await.map_err(|error| refused(location, error));
    if is_created? { released } else { Err(VolumeError::Exists(location.to_string())) }
}

impl Opened {
    /// Opens a volume: for writing, or to follow the writer.
    ///
    /// # Errors
    /// There is none, another process has it, or the store failed.
    pub(crate) async fn open(location: &Location, options: &OpenOptions, runtime: Handle) -> Result<Self, VolumeError> {
        let store = Store::connect(location, options.upload_limit_bytes_per_s)?;
        let record = look(location, &*store.hasty).await?;
        if options.id.as_ref().is_some_and(|id| *id != record.id_text()) {
            return Err(VolumeError::Replaced(location.to_string()));
        }
        if let Some(age) = options.follow {
            return Self::follow(location, store, &record, age, runtime).await;
        }
        let claims = Claims::new(store.patient.clone()).kept_by(options.keeper);
        let claimed = claims.acquire(options.take_over, clock::unix_ms()).await;
        let claim = Arc::new(claimed.map_err(|error| refused(location, error))?);
        let log = options.log_dir.clone().map(|folder| LogPlace {
            folder,
            volume: record.id.to_be_bytes(),
            must_continue: options.must_continue,
        });
        let tree_options = TreeOptions { log, ..tree_options(&record) };
        let (tree, set_aside) = open_tree(location, &store, &claim, tree_options).await?;
        for log in &set_aside {
            tracing::error!(log = %log.display(), "another writer has had the volume: a local log was set aside");
        }
        let (nodes, closed) = OpenNodes::new(device(&record), options.keep_nameless);
        let closed = Mutex::new(Some((Arc::downgrade(&nodes), closed)));
        let segments = Segments::new(store.patient.clone());
        let calls = calls(&tree, nodes, &segments, &runtime);
        let keeper = space::start(&tree, segments.clone(), &runtime);
        let heart = runtime.spawn(beat(Arc::clone(&claim), Arc::clone(&tree)));
        let claimed = Some(Claimed { claim, heart, keeper });
        let opened = Self { store, tree, calls, segments, closed, runtime, claimed };
        if !options.keep_nameless {
            opened.free_nameless();
        }
        Ok(opened)
    }

    /// Begins to free nodes without a name that are not open. Only the first call does anything.
    ///
    /// # Blocking
    /// Never.
    pub(crate) fn free_nameless(&self) {
        if let Some((nodes, closed)) = self.closed.lock().take() {
            self.runtime.spawn(reap(Arc::clone(&self.tree), nodes, closed));
        }
    }

    /// Opens a volume for reading.
    async fn follow(
        location: &Location,
        store: Store,
        record: &VolumeRecord,
        age: Duration,
        runtime: Handle,
    ) -> Result<Self, VolumeError> {
        let guard: Guard = Arc::new(|| Box::pin(async { Ok(()) }));
        let tree = Tree::follow(place(location, &store, guard), record.salt, age).await.map_err(VolumeError::Store)?;
        // Nodes without a name are the writer's.
        let (nodes, _) = OpenNodes::new(device(record), false);
        let segments = Segments::new(store.patient.clone());
        let calls = calls(&tree, nodes, &segments, &runtime);
        let closed = Mutex::new(None);
        Ok(Self { store, tree, calls, segments, closed, runtime, claimed: None })
    }

    /// The role of this process: the calls that it may make on the volume.
    pub(crate) fn role(&self) -> Role {
        match &self.claimed {
            None => Role::Reader,
            Some(claimed) if self.tree.status().is_fenced => Role::Fenced(claimed.claim.winner()),
            Some(_) => Role::Writer,
        }
    }

    /// The paths of all inodes whose names are in memory.
    pub(crate) fn paths(&self) -> Paths {
        // It asks for nothing that is not in memory.
        self.runtime.block_on(self.tree.run(|view| Ok(Paths::in_memory(view)))).unwrap_or_default()
    }

    /// Commits what is left, and gives the volume back.
    ///
    /// # Errors
    /// Those of the commit; the claim is given back nonetheless.
    ///
    /// # Blocking
    /// For the store.
    pub(crate) fn close(&self) -> Result<(), BackendError> {
        self.stop_tasks();
        self.runtime.block_on(async {
            let committed = self.tree.close().await;
            let Some(claimed) = &self.claimed else { return committed };
            let released = claimed.claim.release(clock::unix_ms()).await;
            if let Err(error) = released {
                tracing::warn!(%error, "the volume could not be given back; it looks as if this process had died");
            }
            committed
        })
    }

    fn stop_tasks(&self) {
        if let Some(claimed) = &self.claimed {
            claimed.heart.abort();
            claimed.keeper.abort();
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.stop_tasks();
    }
}

/// Connects the parts that answer the calls of the storage interface.
fn calls(tree: &Arc<Tree>, nodes: Arc<OpenNodes>, segments: &Segments, runtime: &Handle) -> Calls {
    let reader = Reader::new(Arc::clone(tree), segments.clone(), runtime.clone());
    let writer = Writer::new(Arc::clone(tree), segments.clone(), runtime.clone());
    Calls::new(Arc::clone(tree), nodes, reader, writer, runtime.clone())
}

/// The device number of a volume: the first half of its id.
fn device(record: &VolumeRecord) -> u64 {
    (record.id >> 64) as u64
}

/// The options of the tree of a volume, without a local log.
pub(crate) fn tree_options(record: &VolumeRecord) -> TreeOptions {
    let (commit_age, sync_limit) = (COMMIT_AGE, SYNC_LIMIT);
    TreeOptions { salt: record.salt, commit_age, sync_limit, may_be_damaged: false, log: None }
}

/// Confirms the claim from time to time, until it is lost.
async fn beat(claim: Arc<Claim>, tree: Arc<Tree>) {
    let mut commits = 0;
    let mut last_commit = None;
    loop {
        sleep(HEARTBEAT).await;
        let status = tree.status();
        if status.commits > commits {
            commits = status.commits;
            last_commit = status.last_commit_age_ms.map(|age_ms| clock::unix_ms().saturating_sub(age_ms));
        }
        match claim.beat(clock::unix_ms(), last_commit).await {
            Ok(()) => {}
            Err(ClaimError::InUse(_)) => return tree.give_up(),
            Err(ClaimError::Store(error)) => tracing::warn!(%error, "the claim of the volume could not be confirmed"),
        }
    }
}

/// Opens the tree of a volume under a claim, for writing. The paths are those of logs that were set aside.
///
/// # Errors
/// The store's, or [`VolumeError::Overtaken`]. The claim is given back then, unless there are changes in the local log that
/// can be replayed: a claim that is left behind keeps repairs and other machines from writing before that.
pub(crate) async fn open_tree(
    location: &Location,
    store: &Store,
    claim: &Arc<Claim>,
    options: TreeOptions,
) -> Result<(Arc<Tree>, Vec<PathBuf>), VolumeError> {
    let log = options.log.clone();
    let opened = Tree::open(place(location, store, guard(claim)), options).await;
    let is_overtaken = opened.as_ref().is_err_and(|error| error.kind() == OVERTAKEN);
    let has_changes = || log.is_some_and(|log| log_has_changes(&log.folder, log.volume));
    if opened.is_err()
        && (is_overtaken || !has_changes())
        && let Err(error) = claim.release(clock::unix_ms()).await
    {
        tracing::debug!(%error, "releasing a claim");
    }
    opened.map_err(|error| if is_overtaken { VolumeError::Overtaken } else { VolumeError::Store(error) })
}

/// Confirms a claim for SlateDB.
fn guard(claim: &Arc<Claim>) -> Guard {
    let claim = Arc::clone(claim);
    Arc::new(move || {
        let claim = Arc::clone(&claim);
        Box::pin(async move {
            claim.confirm(clock::unix_ms()).await.map_err(|error| match error {
                ClaimError::InUse(holder) => BackendError::new(ErrorKind::Stale, format!("the volume is {holder}")),
                ClaimError::Store(error) => of_store(&error),
            })
        })
    })
}

fn place(location: &Location, store: &Store, guard: Guard) -> Place {
    // `object_store` cannot replace a file on a condition.
    let has_if_match = location.local_directory().is_none();
    Place { store: store.patient.clone(), path: Path::from(META_FOLDER), has_if_match, guard }
}

/// Why the volume at `location` cannot be claimed or given back.
pub(crate) fn refused(location: &Location, error: ClaimError) -> VolumeError {
    match error {
        ClaimError::InUse(holder) => VolumeError::InUse(holder),
        ClaimError::Store(error) => explain(location, "claim", &error),
    }
}

fn random<const N: usize>() -> Result<[u8; N], VolumeError> {
    let mut bytes = [0; N];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| VolumeError::Store(BackendError::new(ErrorKind::Io, format!("/dev/urandom: {error}"))))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Fault, Layered, Rule};
    use crate::runtime;

    #[test]
    fn a_claim_is_given_back_if_the_tree_cannot_be_opened_and_nothing_is_to_be_replayed() {
        let runtime = runtime::handle().expect("threads");
        let fault = Arc::new(Fault::new());
        let faulty = fault.clone();
        let location = Location::parse("memory:claims/of-failed-mounts").expect("a good URL");
        let location = location.layered(move |store| Arc::new(Layered::new(faulty.clone(), store)));
        let folder = std::env::temp_dir().join(format!("slackwater-object-opened-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a new folder");
        runtime.clone().block_on(async {
            make(&location, 0o755).await.expect("makes a volume");
            let store = Store::connect(&location, None).expect("connects");
            let record = look(&location, &*store.hasty).await.expect("it is there");
            let options = OpenOptions { log_dir: Some(folder.clone()), ..OpenOptions::default() };
            fault.add(Rule::fail(Failure::Permission).under("meta/"));
            let is_left_behind = async || {
                let opened = Opened::open(&location, &options, runtime.clone()).await;
                assert!(opened.is_err(), "the store fails");
                Claims::new(store.hasty.clone()).is_left_behind().await.expect("lists")
            };
            assert!(!is_left_behind().await);
            std::fs::write(folder.join(format!("object-{}-{:020}.log", record.id_text(), 5)), [0; 1000])
                .expect("writes");
            assert!(is_left_behind().await, "repairs must not write before the log is replayed");
            let refused = Maintenance::begin(&location, &store, &record).await;
            assert!(refused.is_err_and(|error| error.to_string().contains("Mount the volume")));
        });
        std::fs::remove_dir_all(&folder).expect("removes");
    }
}
