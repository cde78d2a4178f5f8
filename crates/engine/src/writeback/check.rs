//! Consistency checks for tests: that the counts of inodes, wbs and tenants agree with the pages and the lists.
//!
//! Exact only while nothing changes: no writer, no unit or commit in flight, no switch. Any difference found then is a
//! bug.

use slackwater_sync::shim::Arc;

use crate::cgroup::Memcg;
use crate::inode::Inode;
use crate::page_cache::{Mark, Scan, slots};
use crate::super_block::SuperBlock;
use crate::units::PageIndex;
use crate::writeback::io_lists::ListName;
use crate::writeback::{BdiWriteback, Pages};

/// The result of walking an inode's pages.
#[derive(Default)]
struct Walked {
    pages: Pages,
    unclean: u64,
    /// Unstable pages that will leave the cache and that no commit covers yet.
    dropbehind_unstable: i64,
    /// The owner's slot for each page that cannot be dropped.
    owners: Vec<u32>,
}

impl SuperBlock {
    /// Compares every count of the volume with the pages it counts. See the module documentation for when to call it.
    ///
    /// # Errors
    /// The first difference found.
    #[doc(hidden)]
    pub fn check_counts(&self) -> Result<(), String> {
        self.check_and_collect().map(drop)
    }

    /// Does the same, and returns the owners' slots of all pages that cannot be dropped.
    pub(crate) fn check_and_collect(&self) -> Result<Vec<u32>, String> {
        let (wbs, inodes) = (self.wbs(), self.all_inodes());
        let mut owners = Vec::new();
        let mut dropbehind_unstable = 0;
        for inode in &inodes {
            let checked = check_inode(inode, &wbs).map_err(|what| format!("{inode:?} of {}: {what}", self.name()))?;
            dropbehind_unstable += checked.dropbehind_unstable;
            owners.extend(checked.owners);
        }
        equal("unstable drop-behind pages and their count", dropbehind_unstable, self.bdi().dropbehind_unstable())?;
        for wb in &wbs {
            let mine: Vec<_> = inodes.iter().filter(|inode| inode.belongs_to(wb)).collect();
            check_wb(wb, &mine).map_err(|what| format!("wb of {:?} on {}: {what}", wb.memcg, self.name()))?;
        }
        Ok(owners)
    }
}

fn check_inode(inode: &Arc<Inode>, wbs: &[Arc<BdiWriteback>]) -> Result<Walked, String> {
    let walked = walk(inode);
    let pages = walked.pages;
    let count = |mark| inode.mapping.count(mark) as i64;
    let mapping = Pages {
        reclaimable: count(Mark::Dirty),
        writeback: count(Mark::Writeback),
        unstable: count(Mark::Unstable),
        ..pages
    };
    equal("pages and the mapping's counts", pages, mapping)?;
    equal("unclean pages and their count", walked.unclean, inode.mapping.count_unclean())?;
    equal("pages and the inode's contribution", pages, inode.counted())?;
    let wb = inode.wb();
    if !wbs.iter().any(|other| Arc::ptr_eq(other, &wb)) {
        return Err(format!("its wb, of {:?}, does not belong to the volume", wb.memcg));
    }
    if inode.is_switching() {
        return Err("still switching to another wb".into());
    }
    let lists = wb.lists.lock();
    let list = lists.list_of(inode);
    if list.is_some() && !lists.has(inode) {
        return Err(format!("its slot on {list:?} is not its own"));
    }
    if list.is_none() && !wb.is_root() {
        return Err(format!("on no list of its wb, of {:?}", wb.memcg)); // W5 of `inode::owner`
    }
    let state = inode.state.lock();
    let is_dirty = !state.doomed && (pages.reclaimable != 0 || state.meta != 0);
    let waits = list.is_some_and(|list| list != ListName::Attached);
    if is_dirty && !waits {
        return Err(format!("dirty ({pages:?}, metadata {}), and on {list:?}", state.meta));
    }
    Ok(walked)
}

fn walk(inode: &Inode) -> Walked {
    let frames = &inode.super_block().engine().owners;
    let mut walked = Walked::default();
    inode.mapping.scan(PageIndex(0), PageIndex(u64::MAX), None, |_, leaf| {
        let pages = |bits: u64| i64::from(bits.count_ones());
        walked.pages.reclaimable += pages(leaf.bits(Mark::Dirty));
        walked.pages.writeback += pages(leaf.bits(Mark::Writeback));
        walked.pages.unstable += pages(leaf.bits(Mark::Unstable) | leaf.bits(Mark::Committing));
        walked.pages.dontcache_dirty += leaf.count_both(Mark::Dirty, Mark::Dropbehind);
        walked.dropbehind_unstable += leaf.count_both(Mark::Unstable, Mark::Dropbehind);
        walked.unclean += u64::from(leaf.unclean().count_ones());
        walked.owners.extend(slots(leaf.unclean()).filter_map(|slot| Some(frames.of(leaf.frame(slot)?))));
        Scan::On
    });
    walked
}

fn check_wb(wb: &BdiWriteback, inodes: &[&Arc<Inode>]) -> Result<(), String> {
    let counted = inodes.iter().fold(Pages::default(), |sum, inode| sum.plus(inode.counted()));
    equal("its counts and the sum over its inodes", wb.stat.sum(), counted)?;
    let lists = wb.lists.lock();
    let waits = |inode: &&&Arc<Inode>| lists.list_of(inode).is_some_and(|list| list != ListName::Attached);
    equal("inodes on its lists and inodes that are unclean", lists.unclean(), {
        inodes.iter().filter(waits).count() as u64
    })
}

/// Compares the charges of `memcgs` with `owners`, the owners' slots of all pages that cannot be dropped.
pub(crate) fn check_charges(memcgs: &[Arc<Memcg>], owners: &[u32]) -> Result<(), String> {
    let owner_of = |slot: &u32| memcgs.iter().find(|memcg| memcg.slot() == *slot);
    for memcg in memcgs.iter().filter(|memcg| !memcg.is_root()) {
        let pays = |slot: &&u32| owner_of(slot).is_some_and(|owner| owner.is_self_or_descendant_of(memcg));
        let pages = owners.iter().filter(pays).count() as u64;
        equal("charged pages and owned pages", memcg.charged_pages(), pages)
            .map_err(|what| format!("{memcg:?}: {what}"))?;
    }
    Ok(())
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, one: T, other: T) -> Result<(), String> {
    if one == other { Ok(()) } else { Err(format!("{what}: {one:?} and {other:?}")) }
}
