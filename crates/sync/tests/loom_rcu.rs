//! RCU under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_section_keeps_what_it_found,
    a_later_section_does_not_hide_an_earlier_one,
    an_inner_section_leaves_the_outer_one_open,
    the_order_of_a_grace_period_reaches_a_third_thread,
    both_kinds_of_grace_period_wait_for_one_reader,
    a_shared_grace_period_serves_each_caller,
    the_worker_sees_what_callbacks_captured,
    barrier_runs_every_earlier_callback,
    a_reader_finds_a_whole_value_that_nobody_frees,
    a_counted_value_outlives_its_section,
    a_writer_takes_over_what_another_made,
    a_reader_sees_what_was_added,
    a_reader_sees_what_follows_one_that_has_gone_from_a_list,
}
