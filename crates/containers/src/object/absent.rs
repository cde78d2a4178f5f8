//! The calls of this module in a build without the cargo feature `object`: all fail, with advice.

use slackwater_control::exit::Failure;

use crate::object::Credentials;

fn absent() -> Failure {
    Failure::usage("this build of slackwater has no object stores")
        .advise("use a released binary, or build it: cargo build --release -p slackwater-cli --features object")
}

pub(crate) fn canonical_url(_: &str) -> Result<String, Failure> {
    Err(absent())
}

pub(crate) fn urls_below(_: &str, _: &Credentials) -> Result<Vec<String>, Failure> {
    Err(absent())
}

pub(crate) fn make_volume(_: &str, _: &Credentials) -> Result<(), Failure> {
    Err(absent())
}

pub(crate) fn check_volume(_: &str, _: &Credentials) -> Result<(), Failure> {
    Err(absent())
}

pub(crate) fn delete_volume(_: &str, _: &Credentials) -> Result<(), Failure> {
    Err(absent())
}
