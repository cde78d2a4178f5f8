//! Numbers that an earlier process gave to nodes, until this process finds their inodes. Their nodes in the backend stay
//! open until then, because nothing else leads to them.
//!
//! # Invariants
//! I1. The two maps change together. An inode has one number: of two, the kernel has forgotten the lower one.
//! I2. A node is dropped by the caller, who has no lock then: it may close a descriptor.

use std::collections::HashMap;

use slackwater::backend::{FileHandle, Node};

/// The numbers of one shard of the table.
pub(super) struct InheritedNumbers<N = Node> {
    nodes: HashMap<u64, (FileHandle, N)>,
    numbers: HashMap<FileHandle, u64>,
}

impl<N> InheritedNumbers<N> {
    /// Adds a number. They are added in ascending order. Returns the earlier number of the same inode (I1).
    pub(super) fn add(&mut self, number: u64, handle: FileHandle, node: N) -> Option<(u64, N)> {
        self.nodes.insert(number, (handle.clone(), node));
        let earlier = self.numbers.insert(handle, number)?;
        self.nodes.remove(&earlier).map(|(_, node)| (earlier, node))
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.nodes.contains_key(&number)
    }

    pub(super) fn handle_of(&self, number: u64) -> Option<FileHandle> {
        self.nodes.get(&number).map(|(handle, _)| handle.clone())
    }

    /// Removes the number of an inode that is found now.
    pub(super) fn take(&mut self, handle: &FileHandle) -> Option<(u64, N)> {
        let number = self.numbers.remove(handle)?;
        self.nodes.remove(&number).map(|(_, node)| (number, node))
    }

    /// Removes a number. Returns its node if it was there.
    pub(super) fn forget(&mut self, number: u64) -> Option<N> {
        let (handle, node) = self.nodes.remove(&number)?;
        self.numbers.remove(&handle);
        Some(node)
    }
}

impl<N> Default for InheritedNumbers<N> {
    fn default() -> Self {
        Self { nodes: HashMap::new(), numbers: HashMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_has_its_last_number_once() {
        let mut numbers = InheritedNumbers::default();
        let handle = |byte| FileHandle::new(&[byte]).unwrap();
        assert_eq!(numbers.add(32, handle(1), 'a'), None);
        assert_eq!(numbers.add(64, handle(2), 'b'), None);
        assert_eq!(numbers.add(96, handle(1), 'c'), Some((32, 'a')));
        assert!(!numbers.has(32) && numbers.has(64) && numbers.has(96));
        assert_eq!((numbers.handle_of(96), numbers.take(&handle(1))), (Some(handle(1)), Some((96, 'c'))));
        assert_eq!((numbers.handle_of(96), numbers.take(&handle(1))), (None, None));
        assert_eq!([64, 64, 32].map(|number| numbers.forget(number)), [Some('b'), None, None]);
        assert_eq!(numbers.take(&handle(2)), None);
    }
}
