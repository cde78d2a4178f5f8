//! A volume that is mounted so that it outlives this process ([`crate::keeper`]).

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use slackwater_control::exit::Failure;
use slackwater_control::name;
use slackwater_control::spec::{Transport, VolumeSpec};
use slackwater_mount::{Kept, MountRecord, MountedVolume};

use crate::keeper::Parts;
use crate::keeper::client::{InheritedVolume, KeeperClient, KeptVolume};
use crate::keeper::protocol::Part;
use crate::registry::{Entry, Registry};
use crate::source::ownership::Ownership;

/// More would make a takeover slow: each is sent to the successor.
const NODES_MAX: usize = 1 << 15;

/// The descriptors of a volume that is being mounted.
pub(crate) struct Keeping {
    volume: KeptVolume,
    parts: Parts,
}

impl Keeping {
    pub(crate) fn new(keeper: &Arc<KeeperClient>) -> Self {
        Self { volume: keeper.new_volume(), parts: Parts::default() }
    }

    pub(crate) fn volume(&self) -> &KeptVolume {
        &self.volume
    }

    /// The part of the front end. It keeps no nodes.
    pub(crate) fn front_end(&mut self) -> Result<Kept, Failure> {
        let record = MountRecord::create().map_err(failed)?;
        self.add(Part::Record, record.fd())?;
        let keeper = Arc::new(self.volume.clone());
        Ok(Kept { record, keeper, device: None, files: Vec::new(), nodes_max: 0, nodes: Vec::new() })
    }

    /// Hands everything to the keeper.
    ///
    /// # Errors
    /// The keeper does not have it.
    pub(crate) fn hold(
        mut self,
        entry: &Entry,
        options: &VolumeSpec,
        mounted: &MountedVolume,
        ownership: &Ownership,
    ) -> Result<(), Failure> {
        self.add(Part::Device, mounted.try_clone_device().map_err(failed)?)?;
        self.add(Part::Entry, ownership.registered.file())?;
        if let Some(lock) = ownership.lock() {
            self.add(Part::Source, lock)?;
        }
        self.volume.hold(entry, options, &self.parts)
    }

    fn add(&mut self, part: Part, fd: impl AsFd) -> Result<(), Failure> {
        self.parts.add(part, fd).map_err(failed)
    }
}

/// The source of a volume that is taken over, with its entry. A failure leaves both to the next process.
///
/// # Errors
/// The predecessor has left something else, or there are no descriptors left.
pub(crate) fn ownership(inherited: &InheritedVolume, registry: &Registry, entry: &Entry) -> Result<Ownership, Failure> {
    let part = |part| inherited.parts.duplicate(part).map_err(not_taken_over);
    let registered = registry.inherit(entry, part(Part::Entry)?).map_err(not_taken_over)?;
    // Only directories have a lock.
    let lock = inherited.parts.has(Part::Source).then(|| part(Part::Source)).transpose()?;
    Ok(Ownership::inherited(lock, registered))
}

/// The part of the front end of a volume that is taken over. It keeps no nodes.
///
/// # Errors
/// The predecessor has left something else, or there are no descriptors left.
pub(crate) fn taken_over(inherited: &InheritedVolume, volume: &KeptVolume) -> Result<Kept, Failure> {
    let part = |part| inherited.parts.duplicate(part).map_err(not_taken_over);
    let record = MountRecord::open(part(Part::Record)?).map_err(not_taken_over)?;
    let (device, files) = (Some(part(Part::Device)?), inherited.files.clone());
    Ok(Kept { record, keeper: Arc::new(volume.clone()), device, files, nodes_max: 0, nodes: Vec::new() })
}

/// How many nodes the keeper of a mount process takes, if they cannot be found by their numbers. A successor has them
/// all open at its start, and a backend keeps a quarter of all descriptors for nodes that it may need.
pub(crate) fn nodes_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / 4).unwrap_or(usize::MAX).min(NODES_MAX)
}

/// Why a volume cannot be kept; `None` if it can.
pub(crate) fn refusal(source: &Path, options: &VolumeSpec) -> Option<&'static str> {
    if name::is_in_memory(source) {
        return Some("an object volume in memory ends with its process");
    }
    if options.transport == Transport::Uring {
        return Some("requests over io_uring cannot be taken over by another process");
    }
    None
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot keep the mount: {error}"))
}

/// The failure of a takeover.
pub(crate) fn not_taken_over(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot take the mount over: {error}"))
}
