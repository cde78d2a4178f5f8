//! `Registry` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_walk_sees_what_was_registered,
    a_walk_sees_what_follows_one_that_has_gone,
    nobody_uses_what_has_been_unregistered,
    of_two_walks_the_last_lets_the_owner_go_on,
}
