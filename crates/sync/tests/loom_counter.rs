//! `PercpuCounter` under loom.
#![cfg(slackwater_loom)]

mod model;

scenario_tests! {
    a_sum_counts_each_change_once,
    a_sum_after_the_adders_is_exact,
}
