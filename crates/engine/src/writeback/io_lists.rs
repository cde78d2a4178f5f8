//! Where a dirty inode waits for write-back: the lists of one [`BdiWriteback`](super::BdiWriteback).
//!
//! ```text
//!   mark dirty --> Dirty (by age) --expired--> Io --taken--> Busy --all written--> off every list
//!                    ^   ^                     ^  ^            |
//!                    |   '--dirty again--------|--|------------+--slots used up--> MoreIo --.
//!                    |                         |  '----------------------------------------'
//!                    '-------------------------'---due-- Retry <--failed------'
//! ```
//!
//! # Invariants
//! I1. An inode is on at most one list. A list owns a counted reference to each of its inodes, so a dirty inode is
//!     never freed. The exception is `Attached`: its clean inodes may be freed, which takes them off.
//! I2. `Dirty` is ordered by `dirtied_when`, oldest first. An inode is inserted at the place of its age, and dirtying
//!     it again never moves it.
//! I3. Only the flusher takes inodes from `Io`. Only the last completion of an inode's I/O takes it from `Busy`.
//!
//! # Lock order
//! The wb's `LIST_LOCK` protects everything here; `Inode::list_slot` is read and written only under it.
//!
//! # Kernel counterpart
//! `b_dirty`, `b_io`, `b_more_io`, `b_attached`. Differs: I/O is asynchronous, so inodes with I/O in
//! flight have a list of their own, as have those whose write-back failed.

use slackwater_sync::shim::{Arc, Weak};

use crate::inode::Inode;
use crate::units::Tick;

/// The lists.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(usize)]
pub(crate) enum ListName {
    /// Dirty, until old enough. Kernel: `b_dirty`.
    Dirty = 0,
    /// Chosen by the running pass. Kernel: `b_io`.
    Io = 1,
    /// Visited by the running pass and not finished. Kernel: `b_more_io`.
    MoreIo = 2,
    /// Failed in its last write-back; waits for its retry time.
    Retry = 3,
    /// Under I/O: being submitted, or in flight.
    Busy = 4,
    /// Clean and assigned to this wb; the root wb keeps none. Kernel: `b_attached`.
    Attached = 5,
}

const LISTS: usize = 6;
/// End of a list, including the free list.
const NIL: u32 = u32::MAX;

/// How an entry holds its inode (I1).
enum Held {
    Nothing,
    Counted(Arc<Inode>),
    Weakly(Weak<Inode>),
}

impl Held {
    fn on(list: ListName, inode: &Arc<Inode>) -> Self {
        if list == ListName::Attached { Self::Weakly(Arc::downgrade(inode)) } else { Self::Counted(Arc::clone(inode)) }
    }

    fn get(&self) -> Option<Arc<Inode>> {
        match self {
            Self::Nothing => None,
            Self::Counted(inode) => Some(Arc::clone(inode)),
            Self::Weakly(inode) => inode.upgrade(),
        }
    }
}

struct Entry {
    inode: Held,
    list: ListName,
    prev: u32,
    next: u32,
    /// When the inode became dirty, on `Dirty`; when its retry is due, on `Retry`.
    when: Tick,
}

#[derive(Copy, Clone)]
struct Ends {
    oldest: u32,
    newest: u32,
}

/// See the [module documentation](self).
pub(crate) struct IoLists {
    entries: Vec<Entry>,
    free: u32,
    ends: [Ends; LISTS],
    len: [usize; LISTS],
}

impl IoLists {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: NIL, ends: [Ends { oldest: NIL, newest: NIL }; LISTS], len: [0; LISTS] }
    }

    /// Inodes on `list`.
    pub(crate) fn len(&self, list: ListName) -> usize {
        self.len[list as usize]
    }

    /// Inodes that are not clean.
    pub(crate) fn unclean(&self) -> u64 {
        (self.len.iter().sum::<usize>() - self.len(ListName::Attached)) as u64
    }

    /// Whether any inode waits for the flusher. Kernel: `WB_has_dirty_io`, which arms the timer.
    pub(crate) fn has_dirty_io(&self) -> bool {
        [ListName::Dirty, ListName::Io, ListName::MoreIo, ListName::Retry].into_iter().any(|list| self.len(list) != 0)
    }

    /// Whether some inode is not clean.
    pub(crate) fn has_unclean(&self) -> bool {
        self.unclean() != 0
    }

    /// Whether a pass without an age limit would find an inode whose last write-back did not fail.
    pub(crate) fn has_untried(&self) -> bool {
        [ListName::Dirty, ListName::Io, ListName::MoreIo].into_iter().any(|list| self.len(list) != 0)
    }

    /// The list `inode` is on.
    pub(crate) fn list_of(&self, inode: &Inode) -> Option<ListName> {
        inode.list_slot().map(|slot| self.entries[slot as usize].list)
    }

    /// Whether the slot that `inode` remembers is its own and holds it as its list requires (I1).
    pub(crate) fn has(&self, inode: &Arc<Inode>) -> bool {
        let entry = inode.list_slot().and_then(|slot| self.entries.get(slot as usize));
        entry.is_some_and(|entry| match &entry.inode {
            Held::Nothing => false,
            Held::Counted(held) => Arc::ptr_eq(held, inode) && entry.list != ListName::Attached,
            Held::Weakly(held) => held.as_ptr() == Arc::as_ptr(inode) && entry.list == ListName::Attached,
        })
    }

    /// Moves `inode` to `list`, at the place of `when`, from any list or none.
    pub(crate) fn place(&mut self, inode: &Arc<Inode>, list: ListName, when: Tick) {
        let slot = match inode.list_slot() {
            Some(slot) => {
                self.unlink(slot);
                let entry = &mut self.entries[slot as usize];
                if (entry.list == ListName::Attached) != (list == ListName::Attached) {
                    // The caller holds a reference of its own, so no destructor runs here.
                    entry.inode = Held::on(list, inode);
                }
                slot
            }
            None => {
                let slot = self.new_entry(Held::on(list, inode));
                inode.set_list_slot(Some(slot));
                slot
            }
        };
        self.entries[slot as usize].when = when;
        self.link(slot, list);
    }

    /// Takes `inode` off its list.
    pub(crate) fn remove(&mut self, inode: &Inode) {
        if let Some(slot) = inode.list_slot() {
            inode.set_list_slot(None);
            // The caller holds a reference of its own, so this is never the last one and no destructor runs here.
            self.forget(slot);
        }
    }

    /// Takes all inodes that are not clean off their lists. Clean ones leave when they are freed.
    pub(crate) fn clear(&mut self) -> Vec<Arc<Inode>> {
        let mut inodes = Vec::new();
        for list in [ListName::Dirty, ListName::Io, ListName::MoreIo, ListName::Retry, ListName::Busy] {
            while let Some(inode) = self.oldest(list) {
                self.remove(&inode);
                inodes.push(inode);
            }
        }
        inodes
    }

    fn oldest(&self, list: ListName) -> Option<Arc<Inode>> {
        let slot = self.ends[list as usize].oldest;
        if slot == NIL { None } else { self.entries[slot as usize].inode.get() }
    }

    /// Frees the entry of a clean inode that is being freed; `slot` was its own.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.unlink(slot);
        let entry = &mut self.entries[slot as usize];
        (entry.inode, entry.next) = (Held::Nothing, self.free);
        self.free = slot;
    }

    /// Fills `Io`: first the inodes left by the last pass (if `more`), then those dirtied at or before `cutoff`, oldest
    /// first. Returns the number moved. Kernel: `queue_io`.
    pub(crate) fn queue_io(&mut self, cutoff: Tick, more: bool) -> usize {
        let mut moved = if more { self.splice(ListName::MoreIo, ListName::Io, None, usize::MAX) } else { 0 };
        moved += self.splice(ListName::Dirty, ListName::Io, Some(cutoff), usize::MAX);
        moved
    }

    /// Moves one inode to `Io`: the oldest one dirtied at or before `cutoff`, or else, if `more`, the first one left by
    /// the last pass. For a pass that leaves the other inodes in place. Returns the number moved.
    pub(crate) fn queue_oldest(&mut self, cutoff: Tick, more: bool) -> usize {
        match self.splice(ListName::Dirty, ListName::Io, Some(cutoff), 1) {
            0 if more => self.splice(ListName::MoreIo, ListName::Io, None, 1),
            moved => moved,
        }
    }

    /// Moves the inodes whose retry is due at `now` (all of them for `None`) to `Io`.
    pub(crate) fn queue_retries(&mut self, now: Option<Tick>) -> usize {
        self.splice(ListName::Retry, ListName::Io, now, usize::MAX)
    }

    /// When the oldest inode on `list` became dirty, or the first retry is due.
    pub(crate) fn first(&self, list: ListName) -> Option<Tick> {
        let oldest = self.ends[list as usize].oldest;
        (oldest != NIL).then(|| self.entries[oldest as usize].when)
    }

    /// When the oldest dirty inode that no flusher has visited became dirty.
    pub(crate) fn oldest_dirty(&self) -> Option<Tick> {
        [ListName::Dirty, ListName::Io].into_iter().filter_map(|list| self.first(list)).min()
    }

    /// Takes the oldest inode of `Io` for the flusher and moves it to `Busy`.
    pub(crate) fn take_io(&mut self) -> Option<Arc<Inode>> {
        let slot = self.ends[ListName::Io as usize].oldest;
        let inode = self.oldest(ListName::Io)?;
        self.unlink(slot);
        self.link(slot, ListName::Busy);
        Some(inode)
    }

    /// The clean inodes that still exist. The caller drops them after unlocking the lists, because dropping the last
    /// reference to an inode locks them.
    pub(crate) fn attached(&self) -> Vec<Arc<Inode>> {
        let mut inodes = Vec::with_capacity(self.len(ListName::Attached));
        let mut slot = self.ends[ListName::Attached as usize].oldest;
        while slot != NIL {
            let entry = &self.entries[slot as usize];
            inodes.extend(entry.inode.get());
            slot = entry.next;
        }
        inodes
    }

    /// When the inode became dirty, or when its retry is due: its key on its list.
    pub(crate) fn when(&self, inode: &Inode) -> Option<Tick> {
        inode.list_slot().map(|slot| self.entries[slot as usize].when)
    }

    /// Returns an inode that [`IoLists::take_io`] gave and that could not be submitted. It stays first.
    pub(crate) fn put_back(&mut self, inode: &Inode) {
        let Some(slot) = inode.list_slot() else { return };
        self.unlink(slot);
        let ends = &mut self.ends[ListName::Io as usize];
        let next = std::mem::replace(&mut ends.oldest, slot);
        match next {
            NIL => ends.newest = slot,
            next => self.entries[next as usize].prev = slot,
        }
        let entry = &mut self.entries[slot as usize];
        (entry.list, entry.prev, entry.next) = (ListName::Io, NIL, next);
        self.len[ListName::Io as usize] += 1;
    }

    /// Moves up to `most` entries from the old end of `from` to the new end of `to`, oldest first, stopping after
    /// `cutoff` if given.
    fn splice(&mut self, from: ListName, to: ListName, cutoff: Option<Tick>, most: usize) -> usize {
        let mut moved = 0;
        loop {
            let slot = self.ends[from as usize].oldest;
            if moved == most || slot == NIL || cutoff.is_some_and(|cutoff| self.entries[slot as usize].when > cutoff) {
                return moved;
            }
            self.unlink(slot);
            self.link(slot, to);
            moved += 1;
        }
    }

    fn new_entry(&mut self, inode: Held) -> u32 {
        let entry = Entry { inode, list: ListName::Dirty, prev: NIL, next: NIL, when: Tick(0) };
        if self.free == NIL {
            self.entries.push(entry);
            return (self.entries.len() - 1) as u32;
        }
        let slot = self.free;
        self.free = self.entries[slot as usize].next;
        self.entries[slot as usize] = entry;
        slot
    }

    fn unlink(&mut self, slot: u32) {
        let Entry { list, prev, next, .. } = self.entries[slot as usize];
        let ends = &mut self.ends[list as usize];
        match prev {
            NIL => ends.oldest = next,
            prev => self.entries[prev as usize].next = next,
        }
        match next {
            NIL => ends.newest = prev,
            next => self.entries[next as usize].prev = prev,
        }
        self.len[list as usize] -= 1;
    }

    /// Links `slot` into `list`. The two lists ordered by time insert it at its key, searching from the newest end,
    /// where it almost always belongs. The others append it at their newest end.
    fn link(&mut self, slot: u32, list: ListName) {
        let when = self.entries[slot as usize].when;
        let ordered = matches!(list, ListName::Dirty | ListName::Retry);
        let mut prev = self.ends[list as usize].newest;
        while ordered && prev != NIL && self.entries[prev as usize].when > when {
            prev = self.entries[prev as usize].prev;
        }
        let next = match prev {
            NIL => std::mem::replace(&mut self.ends[list as usize].oldest, slot),
            prev => std::mem::replace(&mut self.entries[prev as usize].next, slot),
        };
        match next {
            NIL => self.ends[list as usize].newest = slot,
            next => self.entries[next as usize].prev = slot,
        }
        let entry = &mut self.entries[slot as usize];
        (entry.list, entry.prev, entry.next) = (list, prev, next);
        self.len[list as usize] += 1;
    }
}
