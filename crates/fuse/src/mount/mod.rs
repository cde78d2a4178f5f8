//! Mounting.
