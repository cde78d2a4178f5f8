//! `Lease` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_lease_has_one_holder_at_a_time,
    a_holder_is_alone,
    a_call_ends_or_is_revoked,
    a_lost_lease_is_not_found_again_in_the_hands_of_another,
}
