//! Space on the backend.

use crate::backend::{Call, Statfs};
use crate::error::FileError;
use crate::super_block::SuperBlock;

/// See the [module documentation](self).
pub(crate) struct Space;

impl Space {
    pub(crate) fn new() -> Self {
        Self
    }

    /// Space was given back.
    pub(crate) fn outdate(&self) {}
}

impl SuperBlock {
    /// Space on the backend.
    ///
    /// # Errors
    /// The backend's.
    ///
    /// # Blocking
    /// For the backend.
    pub fn statfs(&self) -> Result<Statfs, FileError> {
        self.alive()?;
        Ok(self.call(None, |done| Call::Statfs { done })?)
    }
}
