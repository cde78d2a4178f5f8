//! `Demand` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    the_taker_finds_what_is_given_or_is_told,
    two_takers_find_what_is_given_or_are_told,
}
