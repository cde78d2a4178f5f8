//! The primitives under loom: every scenario of [`model`], and each of them with a barrier missing ([`mutants`]). They are
//! one program, since compiling the scenarios takes longer than many of them.
#![cfg(slackwater_loom)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod model;
mod mutants;

/// Declares tests: each runs the scenario of its own name.
macro_rules! scenario_tests {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() {
            crate::model::find(stringify!($name)).check();
        })*
    };
}

mod completion {
    scenario_tests! {
        a_waiter_sees_the_completed_work,
        complete_all_lets_every_waiter_continue,
        each_completion_lets_one_waiter_continue,
    }
}

mod counter {
    scenario_tests! {
        a_sum_counts_each_change_once,
        a_sum_after_the_adders_is_exact,
    }
}

mod demand {
    scenario_tests! {
        the_taker_finds_the_resource_or_is_woken,
        two_takers_find_the_resource_or_are_woken,
    }
}

mod in_flight {
    scenario_tests! {
        the_owner_waits_or_the_worker_backs_off,
        the_owner_waits_for_two_workers,
        two_drains_both_end,
        the_owner_takes_back_queued_work,
        the_owner_takes_back_the_work_that_another_thread_leaves,
    }
}

mod kick {
    scenario_tests! {
        the_worker_counts_the_work_or_makes_another_pass,
        of_two_producers_one_wakes_the_worker,
    }
}

mod lease {
    scenario_tests! {
        a_lease_has_one_holder_at_a_time,
        a_holder_is_alone,
        a_call_ends_or_is_revoked,
        a_lost_lease_is_not_found_again_in_the_hands_of_another,
    }
}

mod lock {
    scenario_tests! {
        a_notified_condition_is_seen,
    }
}

mod percpu_ref {
    scenario_tests! {
        the_callback_follows_all_work_under_references,
        a_reference_taken_in_time_delays_the_callback,
        a_killed_ref_can_be_taken_while_it_is_held,
        references_move_between_cpus,
    }
}

mod rcu {
    scenario_tests! {
        a_section_keeps_the_object_it_found,
        a_later_section_does_not_hide_an_earlier_one,
        an_inner_section_leaves_the_outer_one_open,
        the_order_of_a_grace_period_reaches_a_third_thread,
        both_kinds_of_grace_period_wait_for_one_reader,
        a_shared_grace_period_serves_each_caller,
        the_worker_sees_what_callbacks_captured,
        barrier_runs_every_earlier_callback,
        a_reader_finds_a_whole_value_that_is_not_freed,
        a_counted_value_outlives_its_section,
        a_writer_acquires_the_value_of_another_writer,
        a_reader_sees_an_added_node,
        a_reader_sees_the_node_behind_a_removed_one,
    }
}

mod registry {
    scenario_tests! {
        a_walk_sees_a_registered_element,
        a_walk_sees_the_element_behind_a_removed_one,
        no_walk_uses_an_unregistered_element,
        the_last_of_two_walks_lets_the_owner_continue,
    }
}

mod rw_word {
    scenario_tests! {
        writers_follow_one_another,
        a_writer_and_a_reader_do_not_overlap,
        readers_and_a_writer_all_get_the_lock,
        writers_and_a_reader_all_get_the_lock,
        a_lock_may_be_released_by_another_thread,
    }
}

mod seq_refs {
    scenario_tests! {
        a_lookup_is_counted_or_fails,
        either_the_user_or_the_lazy_unmount_puts_the_last_reference,
    }
}

mod srcu {
    scenario_tests! {
        an_srcu_section_keeps_the_object_it_found,
        a_grace_period_waits_for_a_reader_that_is_rounds_behind,
        two_srcu_writers_both_end,
    }
}
