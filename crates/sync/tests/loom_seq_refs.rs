//! `SeqLock` and `SeqRefs` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_lookup_is_counted_or_fails,
    of_a_user_and_a_lazy_unmount_one_puts_the_last_reference,
}
