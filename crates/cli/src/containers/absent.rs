//! The calls of this module in a build without the cargo feature `containers`: all fail, with advice.

use slackwater_control::exit::Failure;

use crate::containers::arguments::{CsiArguments, DockerPluginArguments};

fn absent() -> Failure {
    Failure::usage("this build of slackwater has no plugins of container platforms")
        .advise("use a released binary, or build it: cargo build --release -p slackwater-cli --features containers")
}

pub(crate) fn csi(_: &CsiArguments) -> Result<(), Failure> {
    Err(absent())
}

pub(crate) fn docker_plugin(_: &DockerPluginArguments) -> Result<(), Failure> {
    Err(absent())
}
