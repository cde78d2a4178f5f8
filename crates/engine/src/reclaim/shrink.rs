//! Taking pages out of the queues until enough frames are free.
//!
//! # Kernel counterpart
//! `shrink_node_memcgs`, `shrink_folio_list`, `folio_check_references`.

use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::{Arc, thread};

use crate::cgroup::Memcg;
use crate::engine::Shared;
use crate::page_cache::{LEAF_PAGES, Mark, slots};
use crate::reclaim::lruvec::{LeafRef, file_key, push};
use crate::reclaim::policy::{Entry, Givers, Looked, Queue, Verdict};

/// What became of an attempt to free frames.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Evicted {
    /// There is nothing that could be dropped.
    Nothing,
    /// Some were freed, or another thread may have freed some.
    Some,
}

/// Frames taken of a tenant before it is asked again who gives.
const PIECE: usize = LEAF_PAGES as usize;
/// How often what is in a queue is looked at: to go round takes a look at each page in the small queue, one
/// in the main queue that takes the mark, and one that finds it gone.
const ROUNDS: usize = 3;

/// The right to work on the queues, of one thread at a time.
pub(super) struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    /// `None`: another thread does.
    pub(super) fn begin(engine: &'a Shared) -> Option<Self> {
        let busy = &engine.reclaim.busy;
        (!busy.swap(true, Ordering::AcqRel)).then(|| Self(busy))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Drops clean pages until `target` frames are freed, or every page has been looked at.
///
/// # Blocking
/// Never; if another thread does the same, the processor is left to it for a moment.
pub(super) fn evict(engine: &Shared, target: usize) -> Evicted {
    let Some(_busy) = Busy::begin(engine) else {
        thread::yield_now();
        return Evicted::Some; // V2
    };
    let tenants: Vec<Arc<Memcg>> = engine.owners.all().into_iter().filter(|memcg| memcg.lruvec.pages() != 0).collect();
    let mut looks: Vec<usize> = tenants.iter().map(|memcg| ROUNDS * memcg.lruvec.entries() + 1).collect();
    let cached = tenants.iter().map(|memcg| (memcg.lruvec.pages(), memcg.limit_pages()));
    let mut givers = Givers::new(cached, engine.arena.frames().into());
    let mut freed = 0;
    while freed < target
        && let Some(nth) = givers.next()
    {
        let memcg = &tenants[nth];
        freed += shrink(engine, memcg, PIECE.min(target - freed), &mut looks[nth]);
        givers.set(nth, if looks[nth] == 0 { 0 } else { memcg.lruvec.pages() });
    }
    if freed == 0 { Evicted::Nothing } else { Evicted::Some }
}

/// Frees up to `target` frames of one tenant, or some more; fewer once it has looked at `looks` entries.
fn shrink(engine: &Shared, memcg: &Memcg, target: usize, looks: &mut usize) -> usize {
    let mut freed = 0;
    while freed < target && *looks != 0 {
        *looks -= 1;
        let Some((queue, entry)) = memcg.lruvec.pop() else {
            *looks = 0;
            break;
        };
        freed += shrink_leaf(engine, memcg, queue, entry);
    }
    freed
}

/// Drops what is to go of the pages of an entry, and lists the others again. Returns how many went.
fn shrink_leaf(engine: &Shared, memcg: &Memcg, queue: Queue, entry: Entry<LeafRef>) -> usize {
    let Entry { leaf, pages } = entry;
    let Some(inode) = leaf.inode.upgrade() else { return 0 };
    let arena = &engine.arena;
    let mut frames = [None; LEAF_PAGES as usize];
    let mut count = 0;
    let looked = inode.mapping.with_page(leaf.first, |state, _| {
        let listed = pages & state.bits(Mark::Listed);
        let clean = listed & state.clean();
        state.clear_bits(Mark::Listed, listed & !clean); // it is listed again when it is clean
        let (referenced, active) = (state.bits(Mark::Referenced), state.bits(Mark::Active));
        let mut verdict = Verdict::on(queue, Looked { clean, referenced, active });
        for slot in slots(verdict.out) {
            frames[count] = state.take_out(arena, slot);
            match frames[count] {
                Some(_) => count += 1,
                None => verdict.hold(queue, slot), // somebody reads it just now
            }
        }
        state.clear_bits(Mark::Referenced, verdict.main);
        state.set_bits(Mark::Referenced, verdict.small);
        (verdict, state.present() == 0)
    });
    // With the leaf went its pages, in whatever way.
    let Some((verdict, is_empty)) = looked else { return 0 };
    for frame in frames.iter().flatten() {
        arena.free(*frame);
    }
    if queue == Queue::Small {
        engine.reclaim.ghost.remember(file_key(&inode), leaf.first.0, verdict.out);
    }
    if is_empty && inode.mapping.remove_if_empty(leaf.first) {
        if inode.users() == 0 && inode.mapping.is_empty() {
            inode.super_block().forget_if_unused(&inode);
        } else {
            inode.super_block().note_unused(&inode);
        }
    }
    let again = |leaf: &LeafRef| LeafRef { inode: leaf.inode.clone(), first: leaf.first };
    push(engine, memcg, Queue::Main, again(&leaf), verdict.main);
    push(engine, memcg, Queue::Small, leaf, verdict.small);
    count
}
