//! `slackwater doctor URL`.

use std::path::Path;

use slackwater_control::exit::Failure;
use slackwater_control::object_volumes::locate;
use slackwater_object::{StoreCheck, check_store as check};

use crate::object::StoreFinding;

/// Checks a store.
///
/// # Blocking
/// For the store.
pub(crate) fn check_store(url: &str, credentials: Option<&Path>) -> Vec<StoreFinding> {
    let location = match locate(url, credentials) {
        Ok(location) => location,
        Err(failure) => return vec![StoreFinding { name: "URL".into(), result: Err(failure) }],
    };
    let finding = |StoreCheck { name, result }: StoreCheck| StoreFinding {
        name: name.to_owned(),
        result: result.map_err(Failure::failed),
    };
    check(&location).into_iter().map(finding).collect()
}
