//! The calls of this module in a build without the cargo feature `object`: all fail, with advice.

use slackwater_control::exit::Failure;

use crate::object::Credentials;

pub(crate) fn canonical_url(_: &str) -> Result<String, Failure> {
    Err(Failure::no_object_stores())
}

pub(crate) fn urls_below(_: &str, _: &Credentials) -> Result<Vec<String>, Failure> {
    Err(Failure::no_object_stores())
}

pub(crate) fn make_volume(_: &str, _: &Credentials) -> Result<(), Failure> {
    Err(Failure::no_object_stores())
}

pub(crate) fn check_volume(_: &str, _: &Credentials) -> Result<(), Failure> {
    Err(Failure::no_object_stores())
}

pub(crate) fn delete_volume(_: &str, _: &Credentials) -> Result<(), Failure> {
    Err(Failure::no_object_stores())
}
