//! RCU under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_section_keeps_the_object_it_found,
    a_later_section_does_not_hide_an_earlier_one,
    an_inner_section_leaves_the_outer_one_open,
    the_order_of_a_grace_period_reaches_a_third_thread,
    both_kinds_of_grace_period_wait_for_one_reader,
    a_shared_grace_period_serves_each_caller,
    the_worker_sees_what_callbacks_captured,
    barrier_runs_every_earlier_callback,
    a_reader_finds_a_whole_value_that_is_not_freed,
    a_counted_value_outlives_its_section,
    a_writer_acquires_the_value_of_another_writer,
    a_reader_sees_an_added_node,
    a_reader_sees_the_node_behind_a_removed_one,
}
