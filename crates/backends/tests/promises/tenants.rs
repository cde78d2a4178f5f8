//! P8: a tenant gets its part of a volume's slots, however much another has to write.

use slackwater::backend::Limits;
use slackwater::{File, PAGE_BYTES, Tunables};
use slackwater_backends::Rule;

use crate::rig::{Disk, PAGE, Rig, by_hand, limits};

#[test]
fn p08_tenants_of_a_volume_share_its_slots_in_any_order_of_arrival() {
    let disk = Disk::with_limits(Limits { unit_bytes: 4 * PAGE_BYTES as u32, ..limits() });
    let rig = Rig::with(disk, Tunables { dirty_background_percent: 1, ..by_hand() });
    rig.disk.faults.add(Rule::hold().on("write"));
    let tenants = ["hog", "late"].map(|name| rig.engine.memcg_create(name, None, None));
    let write = |tenant: usize, name: &str| {
        let inode = rig.create(name).inode().clone();
        let file = File::open_for(&inode, &tenants[tenant]).unwrap();
        file.write_at(0, &[1; 200 * PAGE]).unwrap();
        file
    };
    let (first, second) = (write(0, "a"), write(0, "b"));
    let _ = rig.engine.step();
    let late = write(1, "c");
    let _ = rig.engine.step();
    let in_flight = |file: &File| {
        let held = rig.disk.faults.held();
        held.iter().filter(|call| call.node == Some(file.inode().id())).count()
    };
    let parts = || (in_flight(&first) + in_flight(&second), in_flight(&late));
    assert_eq!(parts(), (8, 0), "all are taken");
    for (ended, expected) in [(1, (7, 1)), (2, (6, 2)), (3, (5, 3)), (4, (4, 4))] {
        let oldest = rig.disk.faults.held()[0].ticket;
        assert!(rig.disk.faults.release(oldest));
        let _ = rig.engine.step();
        assert_eq!(parts(), expected, "after {ended} units");
    }
    for _ in 0..20 {
        let oldest = rig.disk.faults.held()[0].ticket;
        assert!(rig.disk.faults.release(oldest));
        let _ = rig.engine.step();
        let (hog, late) = parts();
        assert!(hog + late == 8 && hog.abs_diff(late) <= 2, "{hog} and {late}");
    }
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
}
