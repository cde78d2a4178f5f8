//! P8: a tenant gets its part of a volume's slots, however much another has to write, and its unwritten data stays its own
//! over a kill.

use std::sync::Arc;

use slackwater::backend::Limits;
use slackwater::{Engine, ErrorKind, File, Memcg, PAGE_BYTES, SuperBlock, Tunables, UmountOptions};
use slackwater_testkit::Rule;

use crate::rig::{Disk, PAGE, Rig, by_hand, limits, recover, remount, snapshot};

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

#[test]
fn p08_unwritten_data_belongs_to_the_same_tenant_after_a_kill() {
    let rig = Rig::by_hand();
    let tenant = |engine: &Engine, key: u64| {
        let memcg = engine.memcg_create(&format!("tenant {key}"), None, Some(1 << 30));
        memcg.set_key(key);
        memcg
    };
    let (first, second, gone) = (tenant(&rig.engine, 1), tenant(&rig.engine, 2), tenant(&rig.engine, 3));
    let write = |memcg: &Arc<Memcg>, name: &str, pages: usize| {
        let file = File::open_for(rig.create(name).inode(), memcg).unwrap();
        file.write_at(0, &vec![1; pages * PAGE]).unwrap();
    };
    write(&first, "a", 10);
    write(&second, "b", 20);
    write(&second, "c", 5);
    write(&gone, "d", 40);
    write(rig.volume.root_memcg(), "e", 80);
    let left = snapshot(&rig.engine);
    let mem = rig.disk.mem.clone();
    rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
    drop(rig);
    let mount_again = |left| {
        let (engine, _) = recover(left);
        let known = Arc::new([1, 2].map(|key| tenant(&engine, key)));
        let found = Arc::clone(&known);
        engine.find_tenants_by(move |key| found.get(key as usize - 1).cloned());
        let volume = remount(&engine, &mem).unwrap();
        (engine, volume, known)
    };
    let pages = |bytes: u64| bytes as usize / PAGE;
    let charged = |known: &[Arc<Memcg>; 2]| known.each_ref().map(|memcg| pages(memcg.charged_bytes()));
    let dirty = |volume: &SuperBlock| {
        let tenants = volume.tenants();
        let of = |name: &str| tenants.iter().find(|tenant| tenant.name == name).map(|tenant| tenant.dirty_bytes);
        ["root", "tenant 1", "tenant 2", "tenant 3"].map(|name| pages(of(name).unwrap_or(0)))
    };
    let (engine, volume, known) = mount_again(left);
    assert_eq!((charged(&known), dirty(&volume)), ([10, 25], [120, 10, 25, 0]));
    let left = snapshot(&engine);
    drop((engine, volume, known));
    let (engine, volume, known) = mount_again(left);
    assert_eq!((charged(&known), dirty(&volume)), ([10, 25], [120, 10, 25, 0]));
    volume.sync().unwrap();
    assert_eq!((charged(&known), dirty(&volume)), ([0, 0], [0; 4]));
    assert!(known.iter().all(|memcg| engine.memcg_offline(memcg)));
    volume.umount(UmountOptions::default()).unwrap();
}
