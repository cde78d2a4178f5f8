//! Plugins of container platforms: the crate `slackwater_containers`, with the cargo feature `containers`. Without it,
//! [`absent`] says so to the user.

#[cfg(not(feature = "containers"))]
mod absent;
pub(crate) mod arguments;
#[cfg(feature = "containers")]
mod plugins;

#[cfg(not(feature = "containers"))]
pub(crate) use self::absent::{csi, docker_plugin};
#[cfg(feature = "containers")]
pub(crate) use self::plugins::{csi, docker_plugin};
