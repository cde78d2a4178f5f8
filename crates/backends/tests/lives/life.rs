//! A life: volumes are mounted, tenants use them, and all of them end.

use std::sync::atomic::Ordering;

use slackwater_testkit::Random;

use crate::volume::{End, Volume};
use crate::{World, limit};

/// The members of a life, which is repeated.
pub(crate) struct Life<'w> {
    pub(crate) world: &'w World,
    pub(crate) thread: u64,
    pub(crate) random: Random,
}

impl Life<'_> {
    pub(crate) fn live(&mut self) {
        let (world, random) = (self.world, &mut self.random);
        let count = 1 + random.below(3);
        let mut volumes: Vec<_> =
            (0..count).filter_map(|nth| Volume::mount(world, &format!("{}.{nth}", self.thread), random)).collect();
        for _ in 0..random.below(4 + 12 * count) {
            match random.below(40) {
                0..4 => world.replace_tenant(random),
                4 => world.tenant(random).set_limit_bytes(limit(random)),
                5 => drop(world.engine.shrink(random.below(6) as u32)),
                _ if volumes.is_empty() => {}
                _ => {
                    let nth = random.below(volumes.len() as u64) as usize;
                    volumes[nth].step(world, random);
                }
            }
        }
        if volumes.iter().all(Volume::has_path) && random.below(3) == 0 {
            Volume::end_together(world, volumes);
            world.ends[End::Together as usize].fetch_add(1, Ordering::Relaxed);
            return;
        }
        for volume in volumes {
            let end = volume.end(world, random);
            world.ends[end as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}
