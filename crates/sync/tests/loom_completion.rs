//! `Completion` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_waiter_sees_what_was_completed,
    complete_all_lets_everybody_on,
    each_completion_lets_one_waiter_on,
}
