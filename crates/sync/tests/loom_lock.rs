//! Ranked locks under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_notified_condition_is_seen,
}
