//! `Demand` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    the_taker_finds_the_resource_or_is_woken,
    two_takers_find_the_resource_or_are_woken,
}
