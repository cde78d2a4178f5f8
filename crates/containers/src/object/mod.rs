//! Volumes in object stores. Without the cargo feature `object`, `absent` says so to the user.
//!
//! ```text
//! credentials    those of one volume
//! pooled         volumes that plugins make and delete
//! ```

#[cfg(not(feature = "object"))]
mod absent;
mod credentials;
#[cfg(feature = "object")]
mod pooled;

#[cfg(not(feature = "object"))]
pub(crate) use self::absent::{canonical_url, check_volume, delete_volume, make_volume, urls_below};
pub(crate) use self::credentials::Credentials;
#[cfg(feature = "object")]
pub(crate) use self::pooled::{canonical_url, check_volume, delete_volume, make_volume, urls_below};
