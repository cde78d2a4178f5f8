//! Takes pages out of the queues until enough frames are free.
//!
//! # Kernel counterpart
//! `shrink_node_memcgs`, `shrink_folio_list`, `folio_check_references`.

use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::{Arc, thread};

use crate::cgroup::Memcg;
use crate::page_cache::{LEAF_PAGES, Mark, slots};
use crate::reclaim::Reclaim;
use crate::reclaim::lruvec::{LeafRef, file_key};
use crate::reclaim::policy::{Entry, PageUse, Queue, Verdict, Victims};

/// The result of an attempt to free frames.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Evicted {
    /// Nothing could be dropped.
    Nothing,
    /// Some frames were freed, or another thread may have freed some.
    Some,
}

/// Frames taken from a tenant before the tenant is chosen anew.
const PIECE: usize = LEAF_PAGES as usize;
/// How often the pages of a queue are examined. Going round takes one look at each page in the small queue, one in the
/// main queue that clears the mark, and one that finds it cleared.
const ROUNDS: usize = 3;

/// The right to work on the queues; one thread at a time has it.
pub(super) struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    /// `None`: another thread has it.
    pub(super) fn begin(busy: &'a AtomicBool) -> Option<Self> {
        (!busy.swap(true, Ordering::AcqRel)).then(|| Self(busy))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Reclaim {
    /// Drops clean pages until `target` frames are freed, or every page has been examined.
    ///
    /// # Blocking
    /// Never blocks. If another thread is evicting, it yields the processor once.
    pub(super) fn evict(&self, target: usize) -> Evicted {
        let Some(_busy) = Busy::begin(&self.busy) else {
            thread::yield_now();
            return Evicted::Some; // V2
        };
        let tenants: Vec<Arc<Memcg>> =
            self.tenants.all().into_iter().filter(|memcg| memcg.lruvec.pages() != 0).collect();
        let mut budgets: Vec<usize> = tenants.iter().map(|memcg| ROUNDS * memcg.lruvec.entries() + 1).collect();
        let cached = tenants.iter().map(|memcg| (memcg.lruvec.pages(), memcg.limit_pages()));
        let mut victims = Victims::new(cached, self.arena.frames().into());
        let mut freed = 0;
        while freed < target
            && let Some(nth) = victims.next()
        {
            let memcg = &tenants[nth];
            freed += self.shrink(memcg, PIECE.min(target - freed), &mut budgets[nth]);
            victims.set(nth, if budgets[nth] == 0 { 0 } else { memcg.lruvec.pages() });
        }
        if freed == 0 { Evicted::Nothing } else { Evicted::Some }
    }

    /// Frees at least `target` frames of one tenant, or fewer once it has examined `budget` entries.
    fn shrink(&self, memcg: &Memcg, target: usize, budget: &mut usize) -> usize {
        let mut freed = 0;
        while freed < target && *budget != 0 {
            *budget -= 1;
            let Some((queue, entry)) = memcg.lruvec.pop() else {
                *budget = 0;
                break;
            };
            freed += self.shrink_leaf(memcg, queue, entry);
        }
        freed
    }

    /// Drops the pages of an entry that are to be evicted, and lists the others again. Returns how many were dropped.
    fn shrink_leaf(&self, memcg: &Memcg, queue: Queue, entry: Entry<LeafRef>) -> usize {
        let Entry { leaf, pages } = entry;
        let Some(inode) = leaf.inode.upgrade() else { return 0 };
        let arena = &self.arena;
        let mut frames = [None; LEAF_PAGES as usize];
        let mut count = 0;
        let examined = inode.mapping.with_page(leaf.first, |state, _| {
            let listed = pages & state.bits(Mark::Listed);
            let clean = listed & state.clean();
            state.clear_bits(Mark::Listed, listed & !clean); // it is listed again once clean
            let (referenced, active) = (state.bits(Mark::Referenced), state.bits(Mark::Active));
            let mut verdict = Verdict::on(queue, PageUse { clean, referenced, active });
            for slot in slots(verdict.out) {
                frames[count] = state.take_out(arena, slot);
                match frames[count] {
                    Some(_) => count += 1,
                    None => verdict.hold(queue, slot), // being read at the moment
                }
            }
            state.clear_bits(Mark::Referenced, verdict.main);
            state.set_bits(Mark::Referenced, verdict.small);
            (verdict, state.present() == 0)
        });
        // If the leaf is gone, so are its pages.
        let Some((verdict, is_empty)) = examined else { return 0 };
        for frame in frames.iter().flatten() {
            arena.free(*frame);
        }
        if queue == Queue::Small {
            self.ghost.remember(file_key(&inode), leaf.first.0, verdict.out);
        }
        if is_empty && inode.mapping.remove_if_empty(leaf.first) {
            if inode.users() == 0 && inode.mapping.is_empty() {
                inode.super_block().forget_if_unused(&inode);
            } else {
                inode.super_block().note_unused(&inode);
            }
        }
        let again = |leaf: &LeafRef| LeafRef { inode: leaf.inode.clone(), first: leaf.first };
        self.push(memcg, Queue::Main, again(&leaf), verdict.main);
        self.push(memcg, Queue::Small, leaf, verdict.small);
        count
    }
}
