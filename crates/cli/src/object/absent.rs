//! The calls of this module in a build without the cargo feature `object`: all fail, with advice.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use slackwater::backend::Backend;
use slackwater_control::exit::Failure;
use slackwater_control::protocol::ObjectStatus;
use slackwater_control::spec::VolumeSpec;

use crate::object::StoreFinding;
use crate::object::arguments::{FsckArguments, GcArguments, MkfsArguments};
use crate::registry::Entry;
use crate::source::object::ObjectVolume;
use crate::source::opened::Opening;

/// The format of the log of a build that reads no local logs.
pub(crate) const LOG_FORMAT: u32 = 0;

/// An open volume, of which this build has none.
#[derive(Clone)]
pub(crate) enum Volume {}

impl Volume {
    pub(crate) fn open(_: &ObjectVolume, _: &Entry, _: &VolumeSpec, _: bool, _: Opening<'_>) -> Result<Self, Failure> {
        Err(Failure::no_object_stores())
    }

    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        match *self {}
    }

    pub(crate) fn inherited_all(&self) {
        match *self {}
    }

    pub(crate) fn status(&self) -> ObjectStatus {
        match *self {}
    }

    pub(crate) fn known_paths(&self, _: &[u64]) -> HashMap<u64, PathBuf> {
        match *self {}
    }

    pub(crate) fn close(self, _: bool) -> Result<(), Failure> {
        match self {}
    }
}

pub(crate) fn find(_: &str, _: bool, _: Option<&Path>) -> Result<(ObjectVolume, Option<PathBuf>), Failure> {
    Err(Failure::no_object_stores())
}

pub(crate) fn check_store(_: &str, _: Option<&Path>) -> Vec<StoreFinding> {
    vec![StoreFinding { name: "object stores".into(), result: Err(Failure::no_object_stores()) }]
}

pub(crate) fn mkfs(_: &MkfsArguments) -> Result<(), Failure> {
    Err(Failure::no_object_stores())
}

pub(crate) fn fsck(_: &FsckArguments) -> Result<ExitCode, Failure> {
    Err(Failure::no_object_stores())
}

pub(crate) fn gc(_: &GcArguments) -> Result<ExitCode, Failure> {
    Err(Failure::no_object_stores())
}
