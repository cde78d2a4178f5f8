//! The FUSE front door: the one file that knows it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use slackwater::SuperBlock;

use crate::exit::Failure;

/// How to open it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct DoorOptions {
    pub(crate) read_only: bool,
    pub(crate) allow_other: bool,
    pub(crate) nosuid: bool,
    pub(crate) nodev: bool,
}

/// How to unmount.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Umount {
    pub(crate) deadline: Option<Duration>,
    pub(crate) force: bool,
    pub(crate) discard: bool,
}

pub(crate) struct Door {}

impl Door {
    pub(crate) fn open(
        _volume: &Arc<SuperBlock>,
        _source: &Path,
        _mountpoint: &Path,
        _options: DoorOptions,
    ) -> Result<Arc<Self>, Failure> {
        Err(Failure::failed("no door yet"))
    }

    pub(crate) fn missing_features(&self) -> Vec<String> {
        Vec::new()
    }
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        Ok(())
    }
    pub(crate) fn umount(&self, _request: Umount) -> Result<(), Failure> {
        Ok(())
    }
    pub(crate) fn wait_ended(&self) {}
}
