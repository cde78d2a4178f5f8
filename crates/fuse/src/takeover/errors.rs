//! The table of errors in the record of a mount: the write-back errors of files that the kernel knows.
//!
//! An entry is the number of a node and the errors of its inode ([`Inode::error_bits`](slackwater::Inode::error_bits)).
//! There are no entries until an attempt to write back fails.
//!
//! # Invariants
//! T1. The caller lets one thread change the table at a time. A kill leaves an entry with its errors of before or after
//!     the change: the number is stored last when an entry is made, and first when it ends.
//! T2. A number has one entry: free entries are found in the order in which the number is searched, and an entry ends
//!     without others moving.

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

impl MountRecord {
    /// Records the errors of a node. Returns false if there is no space: the errors of too many files are recorded.
    pub(crate) fn set_errors(&self, node: u64, bits: u32) -> bool {
        let own = probes(node).find(|at| self.get(*at) == node);
        let Some(at) = own.or_else(|| probes(node).find(|at| self.get(*at) == FREE)) else { return false };
        self.set(at + 1, bits.into());
        self.set(at, node);
        true
    }

    /// Ends the entry of a node that the kernel has forgotten.
    pub(crate) fn forget_errors(&self, node: u64) {
        if let Some(at) = probes(node).find(|at| self.get(*at) == node) {
            self.set(at, FREE);
        }
    }

    /// The nodes with errors.
    pub(crate) fn errors(&self) -> Vec<(u64, u32)> {
        let entries = (ERRORS_AT..ERRORS_AT + ERRORS_WORDS).step_by(ENTRY_WORDS);
        let used = entries.map(|at| (self.get(at), self.get(at + 1) as u32));
        used.filter(|(node, _)| *node != FREE).collect()
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

    #[test]
    fn the_next_process_finds_the_last_errors_of_each_node() {
        let record = MountRecord::create().unwrap();
        assert_eq!(record.errors(), []);
        for (node, bits) in [(7, 1), (u64::MAX, 2), (7, 3), (9, 4)] {
            assert!(record.set_errors(node, bits));
        }
        record.forget_errors(9);
        record.forget_errors(8);
        let next = MountRecord::open(record.fd().try_clone_to_owned().unwrap()).unwrap();
        let mut found = next.errors();
        found.sort_unstable();
        assert_eq!(found, [(7, 3), (u64::MAX, 2)]);
    }

    #[test]
    fn a_full_table_is_told_and_keeps_what_it_has() {
        let record = MountRecord::create().unwrap();
        let has_space = |node: &u64| record.set_errors(*node, 1);
        let taken = (1..=4 * ERRORS_MAX as u64).filter(has_space).collect::<Vec<_>>();
        assert!(taken.len() > ERRORS_MAX / 2 && taken.len() <= ERRORS_MAX, "{}", taken.len());
        let mut found = record.errors().into_iter().map(|(node, _)| node).collect::<Vec<_>>();
        found.sort_unstable();
        assert_eq!(found, taken);
        taken.iter().for_each(|node| record.forget_errors(*node));
        assert_eq!(record.errors(), []);
    }
}
