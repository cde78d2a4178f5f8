//! The keeper's holdings for the next server: everything that must stay open, and the facts that a successor needs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::major;
use rustix::process::{Resource, getrlimit, setrlimit};
use slackwater_control::errln;
use slackwater_control::exit::Failure;
use slackwater_control::os::detach::detach;
use slackwater_control::os::mount_table::{is_slackwater, mount_at};
use slackwater_control::protocol::FailedUpgrade;
use slackwater_control::spec::VolumeSpec;
use slackwater_fuse::is_closed;
use slackwater_host::{Printable as _, local_stat};

use crate::keeper::client::monotonic_ns;
use crate::keeper::link::{DESCRIPTORS_MAX, Link};
use crate::keeper::protocol::{HeldVolume, PROTOCOL_VERSION, Part, Place, Predecessor, ToKeeper, ToServer};
use crate::keeper::store::{self, Store, Stored};
use crate::os::killed_process::end_connection_at;
use crate::registry::Entry;

/// Maximum number of files in a message.
pub(super) const NUMBERS_MAX: usize = 1000;

/// Maximum bytes of settings in a message, unless one setting has more. Escaped, they are six times as many at most.
const SETTINGS_BYTES_MAX: usize = 8 << 10;

/// Lets the keeper have a few descriptors for each volume, and one for each file that was removed while it was open, or for
/// each node.
pub(super) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.or(limit.current);
    // If the limit stays low, the server learns that a file was not kept.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The descriptors of a mount, by what they are of.
#[derive(Debug, Default)]
pub(crate) struct Parts(BTreeMap<Part, OwnedFd>);

impl Parts {
    /// Adds a duplicate of `fd`.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn add(&mut self, part: Part, fd: impl AsFd) -> io::Result<()> {
        self.0.insert(part, fd.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    /// A duplicate of a part that every mount has.
    ///
    /// # Errors
    /// The part is not held, or there are no descriptors left.
    pub(crate) fn duplicate(&self, part: Part) -> io::Result<OwnedFd> {
        let missing = || io::Error::other(format!("the keeper does not hold the {part:?}"));
        self.0.get(&part).ok_or_else(missing)?.try_clone()
    }

    /// Stores the descriptors for a later keeper.
    fn store(&self, store: &mut Store, of: &str) {
        self.0.iter().for_each(|(part, fd)| store.keep(&store::name(of, &part.name()), fd.as_fd()));
    }

    /// The descriptors that an earlier keeper has stored.
    fn restore(stored: &mut Stored, of: &str) -> Self {
        Self(stored.take_all(of, Part::named))
    }

    pub(crate) fn has(&self, part: Part) -> bool {
        self.0.contains_key(&part)
    }

    /// Whether the connection still exists. It ends with the last mount, or by force.
    pub(super) fn is_connected(&self) -> bool {
        self.0.get(&Part::Device).is_some_and(|device| !is_closed(device.as_fd()))
    }

    /// The descriptors of a message, whose names are in the same order.
    pub(super) fn of(names: &[Part], descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        match names.len() == descriptors.len() {
            true => Ok(Self(names.iter().copied().zip(descriptors).collect())),
            false => Err(io::Error::other("a message has other descriptors than it says")),
        }
    }

    /// The names, and the descriptors in their order, for a message.
    pub(super) fn listed(&self) -> (Vec<Part>, Vec<BorrowedFd<'_>>) {
        (self.0.keys().copied().collect(), self.0.values().map(AsFd::as_fd).collect())
    }
}

/// A volume that a server has mounted.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) entry: Entry,
    options: VolumeSpec,
    parts: Parts,
    /// Files that were removed while they were open, by number.
    files: BTreeMap<u64, OwnedFd>,
    /// Nodes that the kernel knows, by number, if they cannot be found otherwise. They are not stored: there are too many.
    nodes: BTreeMap<u64, OwnedFd>,
    settings: BTreeMap<String, String>,
    places: Vec<Place>,
}

impl Volume {
    fn new(entry: Entry, options: VolumeSpec, settings: BTreeMap<String, String>, parts: Parts) -> Self {
        let (files, nodes) = (BTreeMap::new(), BTreeMap::new());
        Self { entry, options, parts, files, nodes, settings, places: Vec::new() }
    }

    /// The mount points of the volume in the mount namespace of the keeper.
    pub(super) fn places_here(&self) -> impl Iterator<Item = &Path> {
        let further = self.places.iter().filter(|(_, namespace)| namespace.is_none()).map(|(path, _)| path.as_path());
        further.chain(self.places.is_empty().then_some(self.entry.mountpoint.as_path()))
    }

    /// Everything but the descriptors.
    fn facts(&self, number: u64) -> HeldVolume {
        HeldVolume {
            number,
            entry: self.entry.clone(),
            options: self.options.clone(),
            parts: self.parts.0.keys().copied().collect(),
            files: self.files.len().div_ceil(NUMBERS_MAX),
            nodes: self.nodes.len().div_ceil(DESCRIPTORS_MAX),
            settings: self.settings.clone(),
            places: self.places.clone(),
        }
    }

    /// A volume that an earlier keeper has stored. `None` if that had not been completed.
    fn restore(stored: &mut Stored, number: u64) -> Option<Self> {
        let of = number.to_string();
        let HeldVolume { entry, options, settings, places, .. } = stored.state(&of)?;
        let parts = Parts::restore(stored, &of);
        let files = stored.take_all(&of, |name| name.strip_prefix(FILE)?.parse().ok());
        Some(Self { entry, options, parts, files, nodes: BTreeMap::new(), settings, places })
    }

    fn send(&self, number: u64, link: &Link) -> io::Result<()> {
        let (_, descriptors) = self.parts.listed();
        let numbers: Vec<_> = self.files.keys().copied().collect();
        link.send(&ToServer::Volume(Box::new(self.facts(number))), &descriptors)?;
        for some in numbers.chunks(NUMBERS_MAX) {
            link.send(&ToServer::Files { numbers: some.to_vec() }, &[])?;
        }
        let nodes: Vec<_> = self.nodes.iter().map(|(number, node)| (*number, node.as_fd())).collect();
        nodes.chunks(DESCRIPTORS_MAX).try_for_each(|some| {
            let (numbers, descriptors): (Vec<_>, Vec<_>) = some.iter().copied().unzip();
            link.send(&ToServer::Nodes { numbers }, &descriptors)
        })
    }
}

/// The name of the pidfd of the server in the store.
const SERVER: &str = "server";

/// The part of the estate that a message has changed.
enum Changed {
    /// Descriptors that do not belong to a volume.
    Parts,
    /// Facts that do not belong to a volume.
    Facts,
    Volume(u64),
    /// A removed file: the number of its volume, and its own.
    File(u64, u64),
}

/// The beginning of the name of a removed file in the store, before its number.
const FILE: &str = "file.";

/// Everything that the present server, or the last one, left with the keeper.
#[derive(Debug, Default)]
pub(super) struct Estate {
    pub(super) parts: Parts,
    pub(super) volumes: BTreeMap<u64, Volume>,
    settings: BTreeMap<String, String>,
    /// The process that serves, or was the last to serve. `None` before the first one has completed its start.
    pub(super) server: Option<u32>,
    /// A pidfd of the last process of an earlier keeper, which may not have ended.
    pub(super) stray: Option<OwnedFd>,
    /// Takeovers that were completed.
    takeovers: u32,
    /// The longest time between two servers.
    longest_pause_ms: Option<u64>,
    /// When the last server stopped answering; `None` while one serves.
    pub(super) stopped_ns: Option<u64>,
    pub(super) has_handed_over: bool,
    /// Everything once more, if there is a service manager that stores descriptors.
    store: Option<Store>,
}

impl Estate {
    /// The estate of a keeper that has just started, with what an earlier one has stored.
    pub(super) fn begin() -> Self {
        let Some(mut store) = Store::of_this_service() else { return Self::default() };
        let mut stored = Stored::with_this_process();
        store.adopt(&stored);
        let mut estate = Self { stray: stored.take("", SERVER), ..Self::default() };
        if let Some(Predecessor { pid, settings, takeovers, longest_pause_ms, .. }) = stored.state("") {
            estate.parts = Parts::restore(&mut stored, "");
            let numbers = stored.volumes();
            let volume = |number| Some((number, Volume::restore(&mut stored, number)?));
            estate.volumes = numbers.into_iter().filter_map(volume).collect();
            (estate.server, estate.settings) = (Some(pid), settings);
            (estate.takeovers, estate.longest_pause_ms) = (takeovers, longest_pause_ms);
            // The last server ends when its keeper does.
            estate.stopped_ns = Some(monotonic_ns());
        }
        // An incomplete volume is of no use.
        for number in stored.volumes().iter().filter(|number| !estate.volumes.contains_key(number)) {
            store.forget_all(&number.to_string());
        }
        Self { store: Some(store), ..estate }
    }

    /// Everything has ended.
    pub(super) fn end(&mut self) {
        if let Some(store) = &mut self.store {
            store.forget_all("");
        }
        *self = Self { store: self.store.take(), ..Self::default() };
    }

    /// Everything but descriptors and volumes.
    fn facts(&self, pid: u32) -> Predecessor {
        Predecessor {
            pid,
            parts: self.parts.0.keys().copied().collect(),
            volumes: self.volumes.len(),
            settings: self.settings.clone(),
            more_settings: 0,
            takeovers: self.takeovers,
            longest_pause_ms: self.longest_pause_ms,
            stopped_ns: self.stopped_ns.unwrap_or_default(),
            has_handed_over: self.has_handed_over,
            failed_upgrade: None,
        }
    }

    /// Stores the part that has changed.
    fn store(&mut self, changed: &Changed) {
        let Some(mut store) = self.store.take() else { return };
        match *changed {
            Changed::Parts => self.parts.store(&mut store, ""),
            Changed::Facts => {
                if let Some(pid) = self.server {
                    store.keep_state("", &self.facts(pid));
                }
            }
            Changed::Volume(number) => {
                let of = number.to_string();
                match self.volumes.get(&number) {
                    Some(volume) => {
                        volume.parts.store(&mut store, &of);
                        // Last, because it says that the volume is complete.
                        store.keep_state(&of, &volume.facts(number));
                    }
                    None => store.forget_all(&of),
                }
            }
            Changed::File(volume, number) => {
                let name = store::name(&volume.to_string(), &format!("{FILE}{number}"));
                match self.volumes.get(&volume).and_then(|volume| volume.files.get(&number)) {
                    Some(file) => store.keep(&name, file.as_fd()),
                    None => store.forget(&name),
                }
            }
        }
        self.store = Some(store);
    }

    /// A server with this pidfd has got everything.
    pub(super) fn joined(&mut self, pidfd: &OwnedFd) {
        if let Some(store) = &mut self.store {
            store.forget(SERVER);
            store.keep(SERVER, pidfd.as_fd());
        }
    }

    /// A server has completed its start, or has taken over.
    pub(super) fn serves(&mut self, server: u32) {
        self.takeovers += u32::from(self.server.is_some());
        let pause_ms = self.stopped_ns.map(|stopped_ns| monotonic_ns().saturating_sub(stopped_ns) / 1_000_000);
        self.longest_pause_ms = self.longest_pause_ms.max(pause_ms);
        self.server = Some(server);
        (self.stopped_ns, self.has_handed_over) = (None, false);
        self.store(&Changed::Facts);
    }

    /// Whether a program can still reach a volume.
    pub(super) fn is_connected(&self) -> bool {
        self.volumes.values().any(|volume| volume.parts.is_connected())
    }

    /// Whether all sources are directories on disks.
    pub(super) fn are_sources_on_disks(&self) -> bool {
        let is_on_disk = |volume: &Volume| {
            let source = volume.parts.0.get(&Part::Source);
            source.is_some_and(|source| local_stat(source, Path::new("")).is_ok_and(|(_, device)| major(device) != 0))
        };
        self.volumes.values().all(is_on_disk)
    }

    /// Ends all mounts, in the mount namespace of the keeper and elsewhere.
    pub(super) fn end_mounts(&self) {
        let places = self.volumes.values().flat_map(Volume::places_here).filter_map(mount_at).filter(is_slackwater);
        let mounts: Vec<_> = places.collect();
        // First all connections: one mount point may be on another volume.
        mounts.iter().for_each(end_connection_at);
        for mount in &mounts {
            if let Err(error) = detach(&mount.point) {
                errln!("Cannot free {}: {error}", mount.point.printable());
            }
        }
    }

    /// Adds where the unwritten data of each volume is.
    pub(super) fn locate_data(&self, failure: Failure) -> Failure {
        self.volumes.values().fold(failure, |failure, volume| {
            let Entry { source, mountpoint, arena, .. } = &volume.entry;
            let (source, mountpoint, arena) = (source.name().printable(), mountpoint.printable(), arena.printable());
            failure.advise(format!(
                "the unwritten data of {mountpoint} is in {arena}: mount {source} again to write it back"
            ))
        })
    }

    /// Takes a message that changes what is held.
    ///
    /// # Errors
    /// The message does not change what is held, or there is no such volume.
    pub(super) fn take(&mut self, message: ToKeeper, mut descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let changed = match message {
            ToKeeper::Hold { parts } => {
                self.parts = Parts::of(&parts, descriptors)?;
                Changed::Parts
            }
            ToKeeper::HoldVolume { number, entry, options, settings, parts } => {
                let volume = Volume::new(*entry, options, settings, Parts::of(&parts, descriptors)?);
                self.volumes.insert(number, volume);
                Changed::Volume(number)
            }
            ToKeeper::KeepNode { volume, number } => {
                let nodes = &mut self.volume(volume)?.nodes;
                descriptors.pop().and_then(|node| nodes.insert(number, node));
                return Ok(());
            }
            ToKeeper::ReleaseNodes { volume, numbers } => {
                let nodes = &mut self.volume(volume)?.nodes;
                numbers.iter().for_each(|number| drop(nodes.remove(number)));
                return Ok(());
            }
            ToKeeper::KeepFile { volume, number } => {
                let too_many = || io::Error::other("the keeper has too many open files");
                let file = descriptors.pop().ok_or_else(too_many)?;
                self.volume(volume)?.files.insert(number, file);
                Changed::File(volume, number)
            }
            ToKeeper::ReleaseFile { volume, number } => {
                self.volume(volume)?.files.remove(&number);
                Changed::File(volume, number)
            }
            ToKeeper::Set { volume: Some(volume), key, value } => {
                self.volume(volume)?.settings.insert(key, value);
                Changed::Volume(volume)
            }
            ToKeeper::Set { volume: None, key, value } => {
                self.settings.insert(key, value);
                Changed::Facts
            }
            ToKeeper::Places { volume, places } => {
                self.volume(volume)?.places = places;
                Changed::Volume(volume)
            }
            ToKeeper::DropVolume { number } => {
                self.volumes.remove(&number);
                Changed::Volume(number)
            }
            ToKeeper::Hello { .. } | ToKeeper::Serves | ToKeeper::HandOver { .. } | ToKeeper::Done => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        };
        self.store(&changed);
        Ok(())
    }

    fn volume(&mut self, number: u64) -> io::Result<&mut Volume> {
        self.volumes.get_mut(&number).ok_or_else(|| io::Error::other("there is no such volume"))
    }

    /// Sends everything to a server that has just started.
    ///
    /// # Errors
    /// The server is gone, or does not read.
    pub(super) fn send(&self, link: &Link, failed_upgrade: Option<&FailedUpgrade>) -> io::Result<()> {
        let (version, keeper, is_stored) = (PROTOCOL_VERSION, std::process::id(), self.store.is_some());
        let start = |predecessor| ToServer::Start { version, keeper, is_stored, predecessor };
        let Some(pid) = self.server else { return link.send(&start(None), &[]) };
        let (_, descriptors) = self.parts.listed();
        let (settings, more) = in_messages(&self.settings);
        let (failed_upgrade, more_settings) = (failed_upgrade.cloned(), more.len());
        let predecessor = Predecessor { failed_upgrade, settings, more_settings, ..self.facts(pid) };
        link.send(&start(Some(Box::new(predecessor))), &descriptors)?;
        more.into_iter().try_for_each(|settings| link.send(&ToServer::Settings { settings }, &[]))?;
        self.volumes.iter().try_for_each(|(number, volume)| volume.send(*number, link))
    }
}

/// The settings for the first message, and those for each further one. A daemon has settings of every pod that it has
/// ever limited.
fn in_messages(settings: &BTreeMap<String, String>) -> (BTreeMap<String, String>, Vec<BTreeMap<String, String>>) {
    let (mut messages, mut bytes) = (vec![BTreeMap::new()], 0);
    for (key, value) in settings {
        let more = key.len() + value.len();
        if bytes + more > SETTINGS_BYTES_MAX {
            messages.push(BTreeMap::new());
            bytes = 0;
        }
        bytes += more;
        messages.last_mut().map(|message| message.insert(key.clone(), value.clone()));
    }
    let first = messages.remove(0);
    (first, messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_control::spec::wire;

    /// A server that was killed between a message with the volume and those with its settings left them out.
    #[test]
    fn a_volume_is_held_with_all_its_options_at_once() {
        let mut spec = VolumeSpec { nodev: true, ..VolumeSpec::default() };
        spec.put("dirty-limit", "3MiB").unwrap();
        let (options, settings) = wire::split(&spec);
        let (entry, settings) = (Box::new(Entry::sample(&std::env::temp_dir())), settings.into_iter().collect());
        let mut estate = Estate::default();
        estate
            .take(ToKeeper::HoldVolume { number: 1, entry, options, settings, parts: Vec::new() }, Vec::new())
            .unwrap();
        let held = estate.volumes[&1].facts(1);
        assert_eq!(held.changed(held.options.clone()).unwrap(), spec);
    }
}
