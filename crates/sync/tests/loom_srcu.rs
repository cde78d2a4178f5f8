//! `Srcu` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    an_srcu_section_keeps_the_object_it_found,
    a_grace_period_waits_for_a_reader_that_is_rounds_behind,
    two_srcu_writers_both_end,
}
