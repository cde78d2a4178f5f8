//! The pages of files in memory: which are here, in which frame, in which state.
//!
//! [`leaf`] has the states of a page and who leaves them, [`tree`] finds a leaf, [`address_space`] is one
//! file's pages with their counts, [`wait`] is where threads wait for pages, [`landing`] keeps frames for what becomes
//! pages.

mod address_space;
mod landing;
mod leaf;
#[cfg(test)]
mod tests;
mod tree;
mod wait;

pub(crate) use address_space::{AddressSpace, Scan};
pub(crate) use landing::LandingStock;
pub(crate) use leaf::{LEAF_PAGES, LeafState, Mark, range_bits, slots};
pub(crate) use wait::WaitTable;
