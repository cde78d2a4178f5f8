//! The calls of the protocol.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use rustix::io::Errno;
use serde_json::{Value, json};
use slackwater_control::exit::Failure;
use slackwater_control::spec::VolumeSpec;
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::docker::messages::{Answer, Request};
use crate::docker::users::Users;
use crate::limits::{Limits, shown};
use crate::node::{Node, NodeError, Staging};
use crate::object::Credentials;
use crate::volumes::{NewVolume, Pool, Record, VolumeError, Volumes};

/// Longest id of a user: those of Docker have 64 characters.
const USER_BYTES_MAX: usize = 256;

/// The volumes of a plugin.
pub(super) struct Driver {
    pub(super) volumes: Volumes,
    pub(super) users: Users,
    pub(super) node: Node,
    /// The folder of all mount points.
    pub(super) mounts: PathBuf,
    /// The pool of volumes that are made without one.
    pub(super) pool: Option<Pool>,
    pub(super) locks: Locks,
}

/// Why a call fails.
struct Refusal {
    status: StatusCode,
    failure: Failure,
}

type Outcome = Result<Value, Refusal>;

impl Driver {
    /// Carries out the call at `path`.
    ///
    /// # Blocking
    /// For the daemon, the file system and the store, and for other calls on the same volume.
    pub(super) fn call(&self, path: &str, body: &[u8]) -> Answer {
        match self.outcome(path, body) {
            Ok(body) => Answer::done(body),
            Err(Refusal { status, failure }) => {
                tracing::info!(call = path, %failure, "refused");
                Answer::failed(status, &failure)
            }
        }
    }

    fn outcome(&self, path: &str, body: &[u8]) -> Outcome {
        let request = Request::parse(body)?;
        match path {
            "/Plugin.Activate" => Ok(json!({ "Implements": ["VolumeDriver"] })),
            "/VolumeDriver.Capabilities" => Ok(json!({ "Capabilities": { "Scope": "local" } })),
            "/VolumeDriver.Create" => self.create(&request),
            "/VolumeDriver.Get" => self.get(&request),
            "/VolumeDriver.List" => self.list(),
            "/VolumeDriver.Path" => self.path(&request),
            "/VolumeDriver.Mount" => self.mount(&request),
            "/VolumeDriver.Unmount" => self.unmount(&request),
            "/VolumeDriver.Remove" => self.remove(&request),
            _ => Err(Refusal {
                status: StatusCode::NOT_FOUND,
                failure: Failure::usage(format!("there is no call {}", shown(path))),
            }),
        }
    }

    fn create(&self, request: &Request) -> Outcome {
        let options = request.opts.clone().unwrap_or_default();
        self.volumes.create(&self.wanted(&request.name, options)?)?;
        Ok(json!({}))
    }

    /// The volume that `docker volume create` asks for.
    fn wanted(&self, name: &str, options: BTreeMap<String, String>) -> Result<NewVolume, Failure> {
        let limits = Limits::parse(&options)?;
        let known = |key: &str| ["pool", "size", "source"].contains(&key) || key.starts_with("slackwater.");
        if let Some(key) = options.keys().find(|key| !known(key)) {
            return Err(Failure::usage(format!("unknown option \"{}\"", shown(key)))
                .advise("use pool=PLACE or source=PLACE, size=SIZE, and slackwater.dirty-limit=SIZE and the like"));
        }
        let pool = match (options.get("pool"), options.get("source"), &self.pool) {
            (Some(_), Some(_), _) => {
                return Err(Failure::usage("the options pool and source exclude each other")
                    .advise("pool=PLACE makes a new volume; source=PLACE uses data that exists"));
            }
            (Some(pool), None, _) => Pool::parse(pool)?,
            (None, Some(source), _) => Pool::parse_existing(source)?,
            (None, None, Some(pool)) => pool.clone(),
            (None, None, None) => {
                return Err(Failure::usage("the volume needs a place")
                    .advise("add -o pool=/srv/pool, or start the plugin with --pool /srv/pool"));
            }
        };
        let bytes = options.get("size").map(|size| size_of(size)).transpose()?;
        if bytes.is_some() && !matches!(pool, Pool::Directory(_)) {
            return Err(Failure::usage("the option size is for volumes that are made in a directory")
                .advise("leave it out, or choose another pool"));
        }
        Ok(NewVolume { name: name.to_owned(), pool, required_bytes: bytes, limit_bytes: bytes, limits })
    }

    fn get(&self, request: &Request) -> Outcome {
        let record = self.named(&request.name)?;
        let mut volume = self.entry(&record)?;
        volume["Status"] = json!({
            "id": record.id,
            "source": record.source,
            "bytes": record.bytes,
            "limits": record.limits.attributes(),
            "users": self.users.of(&record.id)?,
        });
        Ok(json!({ "Volume": volume }))
    }

    fn list(&self) -> Outcome {
        let entries: Result<Vec<_>, _> = self.volumes.list()?.iter().map(|record| self.entry(record)).collect();
        Ok(json!({ "Volumes": entries? }))
    }

    fn path(&self, request: &Request) -> Outcome {
        let record = self.named(&request.name)?;
        Ok(json!({ "Mountpoint": self.mountpoint_of(&record)? }))
    }

    /// A volume in a list.
    fn entry(&self, record: &Record) -> Result<Value, Failure> {
        Ok(json!({ "Name": record.name, "Mountpoint": self.mountpoint_of(record)? }))
    }

    /// Where a volume is mounted; empty if it is not.
    fn mountpoint_of(&self, record: &Record) -> Result<PathBuf, Failure> {
        let is_mounted = !self.users.of(&record.id)?.is_empty();
        Ok(if is_mounted { self.mounts.join(&record.id) } else { PathBuf::new() })
    }

    fn mount(&self, request: &Request) -> Outcome {
        check_user(&request.id)?;
        let id = self.named(&request.name)?.id;
        self.locks.hold(&id, || {
            // It may have been removed meanwhile.
            let record = self.named(&request.name)?;
            let path = self.mounts.join(&id);
            make_mountpoint(&path)?;
            let (source, options) = (record.source.into(), record.limits.options(VolumeSpec::default()));
            let credentials = Credentials::default();
            self.node.stage(&Staging { id: record.id, source, path: path.clone(), options, credentials })?;
            // Not before: a user that never came about would keep the volume mounted.
            self.users.add(&id, &request.id)?;
            Ok(json!({ "Mountpoint": path }))
        })
    }

    fn unmount(&self, request: &Request) -> Outcome {
        check_user(&request.id)?;
        let id = self.named(&request.name)?.id;
        self.locks.hold(&id, || {
            // First: the platform may not repeat a call that fails here, and the next one for the volume unmounts.
            if !self.users.remove(&id, &request.id)? {
                self.unstage(&id)?;
            }
            Ok(json!({}))
        })
    }

    fn remove(&self, request: &Request) -> Outcome {
        let id = self.named(&request.name)?.id;
        self.locks.hold(&id, || {
            let users = self.users.of(&id)?.len();
            if users > 0 {
                let text = format!("the volume \"{}\" is mounted for {users} users", shown(&request.name));
                return Err(Failure::busy(text).advise("remove its containers first").into());
            }
            self.unstage(&id)?;
            self.volumes.remove(&id, [])?;
            Ok(json!({}))
        })
    }

    /// Unmounts what no user has, and finishes what a plugin that was killed had begun. Failures are logged: a later call
    /// for the volume tries again.
    ///
    /// # Blocking
    /// Until all of them are written back. Calls on other volumes can be made meanwhile.
    pub(super) fn finish(&self) {
        self.volumes.finish();
        for Record { id, .. } in self.volumes.list().unwrap_or_default() {
            let unused = self.locks.hold(&id, || {
                let is_unused = self.users.of(&id).is_ok_and(|users| users.is_empty());
                if is_unused && self.node.has(&id).unwrap_or(false) { self.unstage(&id) } else { Ok(()) }
            });
            if let Err(Refusal { failure, .. }) = unused {
                tracing::warn!(volume = id, %failure, "cannot unmount a volume that is not used");
            }
        }
    }

    fn unstage(&self, id: &str) -> Result<(), Refusal> {
        let path = self.mounts.join(id);
        self.node.unstage(id, &path)?;
        // It may not exist, and does no harm.
        let _ = fs::remove_dir(&path);
        Ok(())
    }

    fn named(&self, name: &str) -> Result<Record, Refusal> {
        self.volumes.named(name)?.ok_or_else(|| Refusal {
            status: StatusCode::NOT_FOUND,
            // Docker looks for these words.
            failure: Failure::usage(format!("no such volume: {}", shown(name))),
        })
    }
}

/// Makes the directory at which a volume is mounted. A dead mount may be there, which is then replaced.
fn make_mountpoint(path: &Path) -> Result<(), Failure> {
    match DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Err(error) if error.raw_os_error() != Some(Errno::NOTCONN.raw_os_error()) => {
            Err(Failure::failed(format!("cannot create {}: {error}", path.printable())))
        }
        _ => Ok(()),
    }
}

fn size_of(text: &str) -> Result<u64, Failure> {
    size::parse(text).map_err(|error| Failure::usage(format!("size=\"{}\": {error}", shown(text))))
}

fn check_user(id: &str) -> Result<(), Failure> {
    match (1..=USER_BYTES_MAX).contains(&id.len()) {
        true => Ok(()),
        false => Err(Failure::usage(format!("\"{}\" is not an id of 1 to {USER_BYTES_MAX} bytes", shown(id)))),
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        VolumeError::from(failure).into()
    }
}

impl From<VolumeError> for Refusal {
    fn from(error: VolumeError) -> Self {
        let status = match error {
            VolumeError::Missing(_) => StatusCode::NOT_FOUND,
            VolumeError::Invalid(_) | VolumeError::OutOfRange(_) => StatusCode::BAD_REQUEST,
            VolumeError::Different(_) | VolumeError::Busy(_) => StatusCode::CONFLICT,
            VolumeError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, failure: error.failure().clone() }
    }
}

impl From<NodeError> for Refusal {
    fn from(error: NodeError) -> Self {
        let (status, failure) = match error {
            NodeError::Invalid(failure) => (StatusCode::BAD_REQUEST, failure),
            NodeError::NotFound(failure) => (StatusCode::NOT_FOUND, failure),
            NodeError::Different(failure) | NodeError::State(failure) | NodeError::Pending(failure) => {
                (StatusCode::CONFLICT, failure)
            }
            NodeError::Deadline(failure) => (StatusCode::GATEWAY_TIMEOUT, failure),
            NodeError::Unavailable(failure) => (StatusCode::SERVICE_UNAVAILABLE, failure),
            NodeError::Failed(failure) => (StatusCode::INTERNAL_SERVER_ERROR, failure),
        };
        Self { status, failure }
    }
}

/// A lock for each volume.
#[derive(Default)]
pub(super) struct Locks(Mutex<HashMap<String, Arc<Mutex<()>>>>);

impl Locks {
    /// Does `work` while no other call has the volume (K2).
    fn hold<T>(&self, id: &str, work: impl FnOnce() -> T) -> T {
        let lock = {
            let mut locks = held(&self.0);
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(id.to_owned()).or_default())
        };
        let _held = held(&lock);
        work()
    }
}

/// A call that panicked has left nothing that a later one could not repeat (K1).
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
