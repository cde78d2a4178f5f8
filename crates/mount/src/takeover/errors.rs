//! The table of files in the record of a mount: the state that the next process must know of a file that the kernel
//! knows, apart from its handles.
//!
//! An entry is the number of a node and its [`Remembered`]. A file has one if an attempt to write it back has failed, or
//! if it was emptied and not closed since.
//!
//! # Invariants
//! T1. The caller lets one thread change the table at a time. A kill leaves an entry with its errors of before or after
//!     the change: the number is stored last when an entry is made, and first when it ends.
//! T2. A number has one entry: free entries are found in the order in which the number is searched, and an entry ends
//!     without others moving.
//! T3. An entry with errors takes the place of one without, if there is no other.

use crate::takeover::record::{ERRORS_AT, MountRecord};

/// Entries of the table.
const ERRORS_MAX: usize = 1 << 14;
/// Words of an entry.
const ENTRY_WORDS: usize = 2;
/// Words of the table.
pub(super) const ERRORS_WORDS: usize = ERRORS_MAX * ENTRY_WORDS;
/// Entries that are looked at for one node.
const PROBES: usize = 64;
/// The first word of an entry without a node.
const FREE: u64 = 0;
/// Bits of the second word above those of the errors. A program that does not know one leaves it out.
const IS_EMPTIED: u64 = 1 << 32;

/// The state of a file that the next process must know.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Remembered {
    /// The errors of the file's inode ([`Inode::error_bits`](slackwater::Inode::error_bits)).
    pub(crate) errors: u32,
    /// Whether the file was emptied and not closed since, so that the next close writes it back.
    pub(crate) is_emptied: bool,
}

impl MountRecord {
    /// Records a node. Returns false if there is no space: too many files are recorded.
    pub(crate) fn remember(&self, node: u64, what: Remembered) -> bool {
        let find = |is_it: &dyn Fn(usize) -> bool| probes(node).find(|at| is_it(*at));
        let own = find(&|at| self.get(at) == node).or_else(|| find(&|at| self.get(at) == FREE));
        let less_needed = || find(&|at| what.errors != 0 && self.get(at + 1) as u32 == 0);
        let Some(at) = own.or_else(less_needed) else { return false };
        if self.get(at) != node {
            self.set(at, FREE); // T3
        }
        self.set(at + 1, u64::from(what.errors) | if what.is_emptied { IS_EMPTIED } else { 0 });
        self.set(at, node);
        true
    }

    /// Ends the entry of a node.
    pub(crate) fn forget(&self, node: u64) {
        if let Some(at) = probes(node).find(|at| self.get(*at) == node) {
            self.set(at, FREE);
        }
    }

    /// The nodes with entries.
    pub(crate) fn remembered(&self) -> Vec<(u64, Remembered)> {
        let entries = (ERRORS_AT..ERRORS_AT + ERRORS_WORDS).step_by(ENTRY_WORDS);
        let used = entries.map(|at| (self.get(at), self.get(at + 1)));
        let what = |word: u64| Remembered { errors: word as u32, is_emptied: word & IS_EMPTIED != 0 };
        used.filter(|(node, _)| *node != FREE).map(|(node, word)| (node, what(word))).collect()
    }
}

/// Where the entry of a node may be. Numbers of nodes are often consecutive, or multiples of a power of two.
fn probes(node: u64) -> impl Iterator<Item = usize> {
    let first = (node.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    (first..first + PROBES).map(|index| ERRORS_AT + index % ERRORS_MAX * ENTRY_WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_errors(errors: u32) -> Remembered {
        Remembered { errors, ..Remembered::default() }
    }

    #[test]
    fn the_next_process_finds_the_last_state_of_each_node() {
        let record = MountRecord::create().unwrap();
        assert_eq!(record.remembered(), []);
        let emptied = Remembered { errors: 3, is_emptied: true };
        for (node, what) in [(7, with_errors(1)), (u64::MAX, with_errors(2)), (7, emptied), (9, with_errors(4))] {
            assert!(record.remember(node, what));
        }
        record.forget(9);
        record.forget(8);
        let next = MountRecord::open(record.fd().try_clone_to_owned().unwrap()).unwrap();
        let mut found = next.remembered();
        found.sort_unstable_by_key(|(node, _)| *node);
        assert_eq!(found, [(7, emptied), (u64::MAX, with_errors(2))]);
    }

    #[test]
    fn a_full_table_is_told_and_keeps_what_it_has() {
        let record = MountRecord::create().unwrap();
        let has_space = |node: &u64| record.remember(*node, with_errors(1));
        let taken = (1..=4 * ERRORS_MAX as u64).filter(has_space).collect::<Vec<_>>();
        assert!(taken.len() > ERRORS_MAX / 2 && taken.len() <= ERRORS_MAX, "{}", taken.len());
        let mut found = record.remembered().into_iter().map(|(node, _)| node).collect::<Vec<_>>();
        found.sort_unstable();
        assert_eq!(found, taken);
        taken.iter().for_each(|node| record.forget(*node));
        assert_eq!(record.remembered(), []);
    }

    #[test]
    fn errors_find_a_place_among_many_emptied_files() {
        let record = MountRecord::create().unwrap();
        let emptied = Remembered { is_emptied: true, ..Remembered::default() };
        let refused = (1..=4 * ERRORS_MAX as u64).find(|node| !record.remember(*node, emptied)).unwrap();
        let before = record.remembered().len();
        assert!(record.remember(refused, with_errors(5)));
        assert!(record.remembered().contains(&(refused, with_errors(5))));
        assert_eq!(record.remembered().len(), before);
    }
}
