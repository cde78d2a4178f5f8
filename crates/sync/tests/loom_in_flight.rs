//! `InFlight` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    the_owner_waits_or_the_worker_backs_off,
    the_owner_waits_for_two_workers,
    two_drains_both_end,
    the_owner_takes_back_what_nobody_works_on,
    the_owner_takes_back_what_is_left_by_somebody_who_works_on_it,
}
