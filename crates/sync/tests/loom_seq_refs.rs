//! `SeqLock` and `SeqRefs` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_lookup_is_counted_or_fails,
    either_the_user_or_the_lazy_unmount_puts_the_last_reference,
}
