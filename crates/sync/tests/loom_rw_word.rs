//! `RwWord` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    writers_follow_one_another,
    a_writer_and_a_reader_do_not_overlap,
    readers_and_a_writer_all_get_the_lock,
    writers_and_a_reader_all_get_the_lock,
    a_lock_may_be_released_by_another_thread,
}
