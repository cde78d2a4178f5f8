//! Tracks whose data an inode's write-back carries, and switches an inode that mostly carries another tenant's data.
//!
//! A *round* is one visit to write an inode's pages. Its winner is the tenant with the majority of bytes; ties favour
//! the current owner. Each inode has a history of sixteen slots of 125 ms of I/O time. When more than half of them went
//! to tenants other than the owner, the inode is switched to the last winner.
//!
//! # Kernel counterpart
//! `wbc_attach_fdatawrite_inode`, `wbc_account_cgroup_owner`, `wbc_detach_inode`.

use slackwater_sync::shim::Arc;

use crate::inode::Inode;
use crate::writeback::BdiWriteback;

/// Units of I/O time per second. Kernel: `WB_FRN_TIME_SHIFT`.
const UNITS_PER_SECOND: u64 = 1 << 13;
/// A new round has a weight of 1/`AVERAGE_PART` in the average. Kernel: `WB_FRN_TIME_AVG_SHIFT`.
const AVERAGE_PART: u64 = 8;
/// Rounds shorter than 1/`CUT_PART` of the average are ignored. Kernel: `WB_FRN_TIME_CUT_DIV`.
const CUT_PART: u64 = 8;
/// I/O time of one slot of the history: a sixteenth of two seconds. Kernel: `WB_FRN_HIST_UNIT`.
const UNITS_PER_SLOT: u64 = 2 * UNITS_PER_SECOND / 16;
/// Most slots that one round fills. Kernel: `WB_FRN_HIST_MAX_SLOTS`.
const MAX_SLOTS: u64 = 5;
/// More foreign slots than this move the inode. Kernel: `WB_FRN_HIST_THR_SLOTS`.
const FOREIGN_SLOTS: u32 = 8;

/// An inode's history of rounds; protected by `Inode::state`.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Foreign {
    /// Slot of the tenant that won the last round.
    winner: u32,
    avg_time: u16,
    /// A bit per slot of time, the newest lowest: set if a tenant other than the owner won it.
    history: u16,
}

/// Pages per tenant in one round.
pub(crate) struct Round {
    wb: Arc<BdiWriteback>,
    owner: u32,
    owner_pages: u64,
    last: u32,
    last_pages: u64,
    /// The candidate for the majority, and its lead over all others together (Boyer and Moore).
    candidate: u32,
    candidate_pages: u64,
}

impl Round {
    /// Begins a round of write-back of `inode`. Kernel: `wbc_attach_and_unlock_inode`.
    pub(crate) fn begin(inode: &Inode) -> Self {
        let wb = inode.wb();
        let owner = wb.memcg.slot();
        let last = inode.state.lock().foreign.winner;
        Self { wb, owner, owner_pages: 0, last, last_pages: 0, candidate: 0, candidate_pages: 0 }
    }

    /// Counts a page of the tenant in `slot` that is in a unit of this round.
    #[inline]
    pub(crate) fn page(&mut self, slot: u32) {
        if slot == self.owner {
            self.owner_pages += 1;
            return;
        }
        if slot == self.last {
            self.last_pages += 1;
        }
        if self.candidate_pages == 0 {
            self.candidate = slot;
        }
        if slot == self.candidate {
            self.candidate_pages += 1;
        } else {
            self.candidate_pages -= 1;
        }
    }

    /// Ends the round, and requests a switch if the history calls for one. Kernel: `wbc_detach_inode`.
    pub(crate) fn end(self, inode: &Arc<Inode>) {
        let (winner, pages) = self.winner();
        if pages == 0 {
            return;
        }
        let foreign = winner != self.owner;
        let bandwidth = self.wb.avg_write_bandwidth();
        let history = {
            let mut state = inode.state.lock();
            state.foreign.note(winner, foreign, pages, bandwidth);
            state.foreign.history
        };
        if foreign {
            tracing::trace!(target: "slackwater::writeback", ino = inode.id().ino, history, "inode_foreign_history");
        }
        if history.count_ones() > FOREIGN_SLOTS && foreign {
            inode.switch_wbs(winner);
        }
    }

    fn winner(&self) -> (u32, u64) {
        if self.owner_pages >= self.last_pages && self.owner_pages >= self.candidate_pages {
            (self.owner, self.owner_pages)
        } else if self.last_pages >= self.candidate_pages {
            (self.last, self.last_pages)
        } else {
            (self.candidate, self.candidate_pages)
        }
    }
}

impl Foreign {
    /// Records a round in which `winner` wrote `pages`.
    fn note(&mut self, winner: u32, is_foreign: bool, pages: u64, bandwidth_pages: u64) {
        let time = (pages.saturating_mul(UNITS_PER_SECOND)).div_ceil(bandwidth_pages.max(1));
        let avg = u64::from(self.avg_time);
        let avg = if avg == 0 { time } else { avg + time / AVERAGE_PART - avg / AVERAGE_PART };
        if time >= avg / CUT_PART {
            let slots = time.div_ceil(UNITS_PER_SLOT).min(MAX_SLOTS);
            self.history <<= slots;
            if is_foreign {
                self.history |= (1 << slots) - 1;
            }
        }
        self.winner = winner;
        self.avg_time = avg.min(u16::MAX.into()) as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: u64 = 25_600;
    const MIB: u64 = 256;

    fn rounds_to_a_verdict(pages: u64) -> usize {
        let mut foreign = Foreign::default();
        (1..100)
            .find(|_| {
                foreign.note(7, true, pages, BANDWIDTH);
                foreign.history.count_ones() > FOREIGN_SLOTS
            })
            .unwrap()
    }

    #[test]
    fn sem_5_2_an_inode_moves_after_the_documented_number_of_rounds() {
        assert_eq!(rounds_to_a_verdict(16 * MIB), 5, "160 ms are two slots");
        assert_eq!(rounds_to_a_verdict(64 * MIB), 2, "a round fills at most five");
        assert_eq!(rounds_to_a_verdict(1 << 40), 2);
        assert_eq!(rounds_to_a_verdict(1), 9, "one slot each");
    }

    #[test]
    fn a_relatively_short_round_changes_only_the_winner() {
        let mut foreign = Foreign::default();
        foreign.note(7, true, 64 * MIB, BANDWIDTH);
        let before = foreign;
        foreign.note(3, true, 1, BANDWIDTH);
        assert_eq!((foreign.history, foreign.winner), (before.history, 3));
    }

    #[test]
    fn rounds_of_the_owner_push_foreign_rounds_out_of_the_history() {
        let mut foreign = Foreign::default();
        foreign.note(7, true, 16 * MIB, BANDWIDTH);
        for _ in 0..8 {
            foreign.note(0, false, 16 * MIB, BANDWIDTH);
        }
        assert_eq!(foreign.history, 0);
    }
}
