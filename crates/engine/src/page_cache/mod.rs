//! The cached pages of files: their frames and states.
//!
//! [`leaf`] defines the states of a page and their transitions, [`tree`] finds a leaf, and [`address_space`] is one
//! file's pages with their counts. [`landing`] keeps frames that payloads are received into.

mod address_space;
mod landing;
mod leaf;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use address_space::{AddressSpace, Scan};
pub(crate) use landing::LandingStock;
pub(crate) use leaf::{LEAF_PAGES, LeafState, Mark, range_bits, slots};
