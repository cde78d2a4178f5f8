//! `PercpuRef` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    the_callback_follows_what_was_done_under_references,
    a_reference_taken_in_time_keeps_the_callback_away,
    a_killed_ref_can_be_taken_while_it_is_held,
    references_move_between_cpus,
}
