//! `Srcu` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    an_srcu_section_keeps_what_it_found,
    a_reader_that_is_rounds_behind_is_waited_for,
    two_srcu_writers_both_end,
}
