//! The keeper's holdings for the next server: everything that must stay open, and the facts that a successor needs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::protocol::FailedUpgrade;
use crate::keeper::link::Link;
use crate::keeper::protocol::{PROTOCOL_VERSION, Part, Place, Predecessor, ToServer};
use crate::registry::Entry;

/// Most numbers of files in a message.
const NUMBERS_MAX: usize = 1000;

/// The descriptors of a mount, by what they are of.
#[derive(Debug, Default)]
pub(crate) struct Parts(BTreeMap<Part, OwnedFd>);

impl Parts {
    /// Adds a duplicate.
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

    /// Whether it is held.
    pub(crate) fn has(&self, part: Part) -> bool {
        self.0.contains_key(&part)
    }

    /// Those of a message.
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

/// A mount that a server has completed.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) entry: Entry,
    pub(super) parts: Parts,
}

/// Everything that the present server, or the last one, left with the keeper.
#[derive(Debug, Default)]
pub(super) struct Estate {
    /// `None` before the first server has completed the mount.
    pub(super) held: Option<Held>,
    /// Files that were removed while they were open, by number.
    pub(super) files: BTreeMap<u64, OwnedFd>,
    pub(super) settings: BTreeMap<String, String>,
    pub(super) places: Vec<Place>,
    /// Takeovers that were completed.
    takeovers: u32,
    /// When the last server stopped answering; `None` while one serves.
    pub(super) stopped_ns: Option<u64>,
    pub(super) has_handed_over: bool,
}

impl Estate {
    /// A server has completed the mount, or has taken it over.
    pub(super) fn hold(&mut self, held: Held) {
        self.takeovers += u32::from(self.held.is_some());
        self.held = Some(held);
        (self.stopped_ns, self.has_handed_over) = (None, false);
    }

    /// Whether the connection still exists. It ends with the last mount, or by force.
    pub(super) fn is_connected(&self) -> bool {
        let Some(device) = self.held.as_ref().and_then(|held| held.parts.0.get(&Part::Device)) else { return false };
        let mut device = [PollFd::new(device, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut device, Some(&now)).is_ok() && !device[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    }

    /// Sends everything to a server that has just started.
    ///
    /// # Errors
    /// It is gone, or does not read.
    pub(super) fn send(&self, link: &Link, failed_upgrade: Option<&FailedUpgrade>) -> io::Result<()> {
        let start =
            |predecessor| ToServer::Start { version: PROTOCOL_VERSION, keeper: std::process::id(), predecessor };
        let Some(Held { entry, parts }) = &self.held else { return link.send(&start(None), &[]) };
        let (parts, descriptors) = parts.listed();
        let numbers: Vec<_> = self.files.keys().copied().collect();
        let predecessor = Predecessor {
            entry: entry.clone(),
            parts,
            files: numbers.chunks(NUMBERS_MAX).len(),
            settings: self.settings.clone(),
            places: self.places.clone(),
            takeovers: self.takeovers,
            stopped_ns: self.stopped_ns.unwrap_or_default(),
            has_handed_over: self.has_handed_over,
            failed_upgrade: failed_upgrade.cloned(),
        };
        link.send(&start(Some(Box::new(predecessor))), &descriptors)?;
        numbers.chunks(NUMBERS_MAX).try_for_each(|some| link.send(&ToServer::Files { numbers: some.to_vec() }, &[]))
    }
}
