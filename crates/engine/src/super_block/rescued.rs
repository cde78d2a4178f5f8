//! What a mount found in the arena and saved in files of their own, since the backend had been changed.

use std::ffi::OsString;

use crate::super_block::SuperBlock;
use crate::units::NodeId;

/// Why data was saved elsewhere.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub enum RescuedFrom {
    /// Somebody else had changed the file.
    Changed,
    /// Somebody else had removed or replaced it.
    Removed,
}

/// Dirty data of a killed process that was saved in a file of its own.
#[derive(Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct Rescued {
    /// The file that the data belonged to.
    pub id: NodeId,
    /// Why it did not go there.
    pub from: RescuedFrom,
    /// Name in the root of the volume.
    pub name: OsString,
    /// Bytes of data, in whole pages.
    pub bytes: u64,
}

impl SuperBlock {
    /// What the mount could not give back to the files it belonged to, and saved elsewhere.
    pub fn rescued(&self) -> Vec<Rescued> {
        self.rescued.lock().clone()
    }
}
