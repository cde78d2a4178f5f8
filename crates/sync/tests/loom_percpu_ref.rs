//! `PercpuRef` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    the_callback_follows_all_work_under_references,
    a_reference_taken_in_time_delays_the_callback,
    a_killed_ref_can_be_taken_while_it_is_held,
    references_move_between_cpus,
}
