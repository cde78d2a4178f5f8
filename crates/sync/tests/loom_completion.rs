//! `Completion` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_waiter_sees_the_completed_work,
    complete_all_lets_every_waiter_continue,
    each_completion_lets_one_waiter_continue,
}
