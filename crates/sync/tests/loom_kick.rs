//! `Kick` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    the_worker_counts_the_work_or_makes_another_pass,
    of_two_producers_one_wakes_the_worker,
}
