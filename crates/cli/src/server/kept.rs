//! A server that outlives its process ([`crate::keeper`]): what must stay open beside its volumes.
//!
//! A server gets each of these things by [`KeptServer::part`] or [`KeptServer::inherited`], whether it starts or takes
//! over. So the list of them is the code that opens them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use slackwater_control::exit::Failure;

use crate::keeper::Parts;
use crate::keeper::client::{Inheritance, InheritedVolume, KeeperClient};
use crate::keeper::protocol::{Part, Predecessor};

/// The keeper of this server, if there is one, and what a predecessor has left there.
pub(crate) struct KeptServer {
    /// The name of the server in messages.
    what: &'static str,
    pub(crate) keeper: Option<Arc<KeeperClient>>,
    pub(crate) predecessor: Option<Predecessor>,
    /// The volumes to take over.
    pub(crate) volumes: Vec<InheritedVolume>,
    /// The things of the predecessor or, if there is none, those for the keeper.
    parts: Parts,
}

impl KeptServer {
    /// Joins the keeper if there is one. `what` is the name of the server in messages.
    ///
    /// # Errors
    /// As [`KeeperClient::join`].
    pub(crate) fn join(what: &'static str, is_kept: bool) -> Result<Self, Failure> {
        let (keeper, inheritance) = is_kept.then(KeeperClient::join).transpose()?.unzip();
        let (predecessor, parts, volumes) = match inheritance.flatten() {
            Some(Inheritance { predecessor, parts, volumes }) => (Some(predecessor), parts, volumes),
            None => (None, Parts::default(), Vec::new()),
        };
        Ok(Self { what, keeper, predecessor, volumes, parts })
    }

    /// Whether this process takes over from another.
    pub(crate) fn is_successor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// The thing of the predecessor, if it had one.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn inherited(&self, part: Part) -> Result<Option<OwnedFd>, Failure> {
        let is_there = self.is_successor() && self.parts.has(part);
        is_there.then(|| self.parts.duplicate(part)).transpose().map_err(|error| self.not_taken_over(error))
    }

    /// The thing of the predecessor, or a new one, which the keeper gets too.
    ///
    /// # Errors
    /// Those of `open`, or there are no descriptors left.
    pub(crate) fn part<T: AsFd + From<OwnedFd>>(
        &mut self,
        part: Part,
        open: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Some(fd) = self.inherited(part)? {
            return Ok(fd.into());
        }
        let opened = open()?;
        self.add(part, || Ok(&opened))?;
        Ok(opened)
    }

    /// Adds a thing for the keeper, unless it has those of a predecessor.
    ///
    /// # Errors
    /// That of `fd`, or there are no descriptors left.
    pub(crate) fn add<T: AsFd>(&mut self, part: Part, fd: impl FnOnce() -> io::Result<T>) -> Result<(), Failure> {
        if self.keeper.is_none() || self.is_successor() {
            return Ok(());
        }
        let added = fd().and_then(|fd| self.parts.add(part, fd));
        added.map_err(|error| Failure::failed(format!("cannot keep the {}: {error}", self.what)))
    }

    /// Hands all things to the keeper, unless it has those of a predecessor.
    ///
    /// # Errors
    /// The keeper has not taken them.
    pub(crate) fn hold(&self) -> Result<(), Failure> {
        match self.keeper.as_ref().filter(|_| !self.is_successor()) {
            Some(keeper) => keeper.hold(&self.parts),
            None => Ok(()),
        }
    }

    /// Says that this process serves everything that the keeper holds. From now on a successor follows.
    ///
    /// # Errors
    /// The keeper is gone.
    pub(crate) fn serves(&mut self) -> Result<(), Failure> {
        // A lock lasts as long as one of its descriptors.
        self.parts = Parts::default();
        self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.serves(self.predecessor.as_ref()))
    }

    /// The failure of a takeover.
    pub(crate) fn not_taken_over(&self, error: impl std::fmt::Display) -> Failure {
        Failure::failed(format!("cannot take the {} over: {error}", self.what))
    }
}
