//! Compares the page tree with a plain map.

use std::collections::BTreeMap;

use slackwater_arena::{Arena, ArenaConfig, FrameId};

use super::{AddressSpace, LEAF_PAGES, LeafState, Mark, Scan, slots};
use crate::units::PageIndex;

/// Indexes that need one to nine levels, some adjacent and some far apart.
fn index(seed: u64) -> u64 {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed << 7);
    (mixed >> 20) & ((1 << [5, 7, 13, 20, 31, 44, 51][(mixed % 7) as usize]) - 1)
}

fn frames() -> Vec<FrameId> {
    let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).unwrap();
    (0..64).map(|number| arena.frame(number).unwrap()).collect()
}

fn marked(mapping: &AddressSpace, mark: Option<Mark>) -> Vec<u64> {
    let mut found = Vec::new();
    mapping.scan(PageIndex(0), PageIndex(u64::MAX), mark, |base, leaf| {
        let bits = mark.map_or(leaf.present(), |mark| leaf.bits(mark));
        found.extend(slots(bits).map(|slot| base.0 + slot as u64));
        Scan::On
    });
    found
}

#[test]
fn pages_and_marks_are_found_exactly_where_they_were_put() {
    let frames = frames();
    for round in 0..40 {
        let mapping = AddressSpace::new();
        let mut model: BTreeMap<u64, (FrameId, bool)> = BTreeMap::new();
        for step in 0..600_u64 {
            let seed = round * 1_000_003 + step;
            let at = index(seed / 2);
            match seed % 5 {
                0..=2 => {
                    let frame = frames[(seed % 64) as usize];
                    let dirty = seed % 3 == 0;
                    mapping.with_page_or_new(PageIndex(at), |leaf, slot| {
                        let _ = leaf.remove(slot);
                        leaf.insert(slot, frame);
                        if dirty {
                            leaf.set(Mark::Dirty, slot);
                        }
                    });
                    model.insert(at, (frame, dirty));
                }
                3 => {
                    let removed = mapping.with_page(PageIndex(at), |leaf, slot| leaf.remove(slot)).flatten();
                    assert_eq!(removed, model.remove(&at).map(|(frame, _)| frame));
                }
                _ => {
                    let clear = |leaf: &mut LeafState, slot| leaf.clear(Mark::Dirty, slot);
                    let cleared = mapping.with_page_and_bytes(PageIndex(at), |_| (), clear);
                    if cleared.is_some()
                        && let Some((_, dirty)) = model.get_mut(&at)
                    {
                        *dirty = false;
                    }
                }
            }
            if seed % 5 == 3 {
                let left = model.keys().any(|key| key / LEAF_PAGES == at / LEAF_PAGES);
                assert_eq!(mapping.remove_if_empty(PageIndex(at)), !left);
            }
            if step % 97 == 0 {
                mapping.prune();
            }
        }
        assert_eq!(marked(&mapping, None), model.keys().copied().collect::<Vec<_>>());
        let dirty: Vec<u64> = model.iter().filter(|(_, (_, dirty))| *dirty).map(|(at, _)| *at).collect();
        assert_eq!(marked(&mapping, Some(Mark::Dirty)), dirty);
        for (at, (frame, _)) in &model {
            assert_eq!(mapping.with_page(PageIndex(*at), |leaf, slot| leaf.frame(slot)), Some(Some(*frame)));
            mapping.with_page(PageIndex(*at), |leaf, slot| leaf.remove(slot));
        }
        assert!(!mapping.is_empty() || model.is_empty());
        if round % 2 == 0 {
            mapping.prune();
        } else {
            model.keys().for_each(|at| assert!(mapping.remove_if_empty(PageIndex(*at))));
        }
        assert!(mapping.is_empty(), "no leaf is left without pages");
    }
}

#[test]
fn a_scan_stays_within_its_range() {
    let frames = frames();
    let mapping = AddressSpace::new();
    for at in [3, 70, 200, 5000] {
        mapping.with_page_or_new(PageIndex(at), |leaf, slot| leaf.insert(slot, frames[0]));
    }
    let mut leaves = Vec::new();
    mapping.scan(PageIndex(70), PageIndex(200), None, |base, _| {
        leaves.push(base.0);
        Scan::On
    });
    assert_eq!(leaves, [70 / LEAF_PAGES * LEAF_PAGES, 192]);
}
