//! `InFlight` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    the_owner_waits_or_the_worker_backs_off,
    the_owner_waits_for_two_workers,
    two_drains_both_end,
    the_owner_takes_back_queued_work,
    the_owner_takes_back_the_work_that_another_thread_leaves,
}
