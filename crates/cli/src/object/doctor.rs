//! `slackwater doctor URL`.

use slackwater_object::{Location, StoreCheck, check_store as check};

use crate::exit::Failure;
use crate::object::{StoreFinding, failures};

/// Checks a store.
///
/// # Blocking
/// For the store.
pub(crate) fn check_store(url: &str) -> Vec<StoreFinding> {
    let location = match Location::parse(url) {
        Ok(location) => location,
        Err(error) => return vec![StoreFinding { name: "URL".into(), result: Err(failures::of(&error, url)) }],
    };
    let finding = |StoreCheck { name, result }: StoreCheck| StoreFinding {
        name: name.to_owned(),
        result: result.map_err(Failure::failed),
    };
    check(&location).into_iter().map(finding).collect()
}
