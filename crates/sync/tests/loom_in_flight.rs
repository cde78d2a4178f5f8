//! `InFlight` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    the_owner_waits_or_the_worker_backs_off,
    the_owner_waits_for_two_workers,
    two_drains_both_end,
}
