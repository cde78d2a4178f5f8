//! `Registry` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_walk_sees_a_registered_element,
    a_walk_sees_the_element_behind_a_removed_one,
    no_walk_uses_an_unregistered_element,
    the_last_of_two_walks_lets_the_owner_continue,
}
