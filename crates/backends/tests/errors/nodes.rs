//! Many small files, which use up nodes before they use up memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use slackwater::{ErrorKind, Tunables, UmountOptions};
use slackwater_testkit::Rule;

use crate::rig::{Disk, Rig, by_hand};

/// Files that cannot be written keep nodes short. Files written beside them used to be committed one by one.
#[test]
fn a_commit_for_want_of_nodes_waits_for_a_quarter_of_them() {
    let rig = Rig::with(Disk::new(), Tunables { pinned_nodes: 64, ..by_hand() });
    let fails = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    for number in 0..40 {
        rig.create(&format!("stuck-{number}")).write_at(0, b"x").unwrap();
    }
    rig.advance(Duration::from_secs(1));
    rig.disk.faults.remove(fails);
    let commits = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&commits);
    let counted = move |_: &_| {
        count.fetch_add(1, Ordering::Relaxed);
        false
    };
    let counts = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("sync_volume").matching(counted));
    let fails =
        rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write").matching(|call| call.range_bytes() == Some((0, 1))));
    for number in 0..32 {
        rig.create(&format!("fine-{number}")).write_at(0, b"two").unwrap();
        rig.engine.step();
        rig.engine.step();
    }
    let commits = commits.load(Ordering::Relaxed);
    assert!((1..=2).contains(&commits), "{commits} commits for 32 files, 16 at a time");
    rig.disk.faults.remove(fails);
    rig.disk.faults.remove(counts);
    rig.volume.umount(UmountOptions::default()).unwrap();
}
