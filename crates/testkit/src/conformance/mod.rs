//! A test suite for backends: one rule for each property of the contract in [`slackwater::backend`].
//!
//! [`conformance_tests`](crate::conformance_tests) makes a `#[test]` of each rule, in a module of the name given. Its
//! closure runs once per rule and makes a new backend each time, whose volume must be empty. Files that the backend uses
//! may be removed when `check` returns. A broken rule panics with the name of the rule, the call at which it broke, and
//! the calls before it with their answers.
//!
//! Other tests of a backend can make their calls through a [`Volume`].
//!
//! A backend that does not offer some calls uses [`Rule::check_without`]. The suite then checks that it answers them with
//! [`Unsupported`](slackwater::ErrorKind::Unsupported).

mod bytes;
mod creation;
mod flags;
mod handles;
mod names;
mod ranges;
mod readdir;
mod volume;
mod xattrs;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use slackwater::backend::{Backend, Call};
use slackwater_sync::shim::Arc;

use volume::Lacking;
pub use volume::{Answer, Pending, PendingUnit, Volume, is_root, myself};

/// A property that every backend must have.
#[derive(Copy, Clone)]
pub struct Rule {
    name: &'static str,
    holds: fn(&Volume),
}

impl Rule {
    /// The property as a sentence in snake case; the name of its `#[test]`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Checks the rule on `backend`, whose volume must be empty.
    ///
    /// # Panics
    /// When the rule is broken. The message names the rule and the call.
    pub fn check(&self, backend: impl Backend) {
        self.run(&Volume::new(Arc::new(backend)));
    }

    /// Checks the rule on a backend that does not offer the calls for which `lacks` is true. Where the rule needs such a
    /// call, it ends there and passes, provided that the answer is `Unsupported`.
    ///
    /// # Panics
    /// When the rule is broken, or when such a call has another answer. The message names the rule and the call.
    pub fn check_without(&self, backend: impl Backend, lacks: fn(&Call) -> bool) {
        self.run(&Volume::without(Arc::new(backend), lacks));
    }

    fn run(&self, volume: &Volume) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.holds)(volume))) else { return };
        if let Some(Lacking { call }) = panic.downcast_ref() {
            return println!("skipped: {} needs `{call}`, which the backend lacks", self.name);
        }
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let (rule, calls, text) = (self.name, volume.calls(), text.unwrap_or("panicked"));
        panic!("the backend breaks the rule `{rule}` at the call {calls}\n{text}");
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({})", self.name)
    }
}

/// Makes [`RULES`] and `conformance_tests` of one list.
macro_rules! rules {
    ($($group:ident { $($rule:ident,)* })*) => {
        /// All rules.
        pub const RULES: &[Rule] = &[$($(Rule { name: stringify!($rule), holds: $group::$rule },)*)*];

        #[doc(hidden)]
        pub mod by_name {
            $($(
                #[allow(non_upper_case_globals, missing_docs, reason = "a test is found by the name of its rule")]
                pub const $rule: super::Rule = super::Rule { name: stringify!($rule), holds: super::$group::$rule };
            )*)*
        }

        /// Makes a module of `#[test]`s, one for each rule of the [conformance suite](crate::conformance). Takes the
        /// module's name and a closure `|rule| ...`, which captures nothing and checks one
        /// [`Rule`](crate::conformance::Rule) on a new backend.
        #[macro_export]
        macro_rules! conformance_tests {
            ($backend:ident, $check:expr) => {
                #[cfg(test)]
                mod $backend {
                    use super::*;

                    const CHECK: fn($crate::conformance::Rule) = $check;
                    $($(
                        #[test]
                        fn $rule() {
                            CHECK($crate::conformance::by_name::$rule);
                        }
                    )*)*
                }
            };
        }
    };
}

rules! {
    names {
        a_new_node_has_exactly_its_mode,
        a_new_node_has_its_owner,
        a_name_is_found_in_its_own_directory_only,
        a_name_that_is_not_one_component_is_refused_by_every_call,
        names_have_up_to_255_bytes,
        a_link_is_another_name_of_the_same_node,
        removal_checks_the_kind_of_node,
        removal_returns_the_node_with_its_remaining_links,
        a_removed_directory_accepts_no_names,
        a_symbolic_link_is_never_followed,
        a_directory_has_a_parent_until_it_is_removed,
        a_rename_replaces_a_node_of_the_same_kind,
        a_no_replace_rename_fails_if_the_name_exists,
        an_exchange_swaps_two_names,
        a_whiteout_is_left_at_the_old_name,
        a_directory_cannot_be_moved_into_itself,
    }
    creation {
        the_umask_of_the_creator_clears_mode_bits,
        a_node_for_a_creator_has_its_owner_and_all_mode_bits,
        a_setgid_directory_passes_its_group_on,
        special_nodes_have_the_type_and_device_asked_for,
        an_invalid_special_type_is_refused,
        a_node_that_cannot_change_owner_is_not_left_behind,
        an_unnamed_file_lives_while_it_is_open,
        an_unnamed_file_can_be_linked,
        an_unnamed_file_needs_a_directory,
    }
    readdir {
        entries_have_the_number_and_kind_of_their_node,
        ten_thousand_entries_are_listed_once_each,
        removals_between_calls_skip_no_other_entry,
        additions_between_calls_skip_no_other_entry,
        only_directories_have_entries,
        readdir_plus_returns_the_node_of_each_entry,
        readdir_plus_and_readdir_share_cookies,
    }
    handles {
        a_handle_finds_its_node_after_a_rename,
        every_kind_of_node_has_a_handle,
        a_handle_is_stale_once_the_node_has_no_name,
        a_handle_never_finds_another_node,
        an_invalid_handle_finds_nothing,
    }
    bytes {
        bytes_written_are_read_back_at_every_length,
        a_file_ends_at_its_last_written_byte,
        an_overwrite_keeps_the_size,
        holes_read_as_zero,
        a_truncated_and_extended_file_reads_zero_past_the_cut,
        a_read_stops_at_the_end_of_the_file,
        concurrent_units_on_one_file_do_not_interfere,
        an_unlinked_file_keeps_its_bytes_while_open,
        attributes_read_back_as_set,
        setuid_survives_a_change_of_owner_in_the_same_call,
        a_size_beyond_the_limit_is_refused,
        data_calls_on_other_node_kinds_are_refused,
        every_kind_of_node_can_be_synced,
        a_node_of_another_backend_is_refused,
    }
    ranges {
        allocated_space_reads_zero_and_may_lie_beyond_the_end,
        a_punched_range_reads_zero_and_frees_its_space,
        a_zeroed_range_reads_zero,
        an_invalid_range_is_refused,
        data_and_holes_are_found,
        range_calls_on_other_node_kinds_are_refused,
    }
    flags {
        flags_read_back_as_set,
        flags_outlive_the_open_node,
        a_protected_node_refuses_changes,
        links_and_special_nodes_have_no_flags,
    }
    xattrs {
        a_value_is_read_back_until_it_is_removed,
        values_of_every_length_are_read_back,
        create_and_replace_modes_are_honoured,
        all_names_are_listed,
        an_invalid_attribute_name_is_refused,
        a_symbolic_link_has_its_own_attributes,
        attributes_outlive_the_open_node,
    }
}
