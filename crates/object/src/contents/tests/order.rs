//! When units are answered, and for what they wait.

use crate::contents::tests::rig::{How, Rig, block_on};
use crate::layers::{Failure, Operation, Rule};

const INO: u64 = 5;
const SYNC: How = How { is_for_sync: true, is_scattered: false };
const MIB: usize = 1 << 20;

#[test]
fn a_stuck_request_delays_neither_syncs_nor_later_units() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        volume.make(INO).await;
        rig.fault.add(Rule::hang().on(Operation::Put).under("seg/").next(1));
        let stuck = volume.submit_write(INO, 0, &vec![1; MIB], How::default());
        rig.fault.held(1).await;
        let (later, _) = volume.submit_write(INO, 1 << 20, &vec![2; MIB], How::default()).wait().await;
        assert_eq!(later.expect("the store works"), MIB);
        let (synced, _) = volume.submit_write(INO, 2 << 20, &vec![3; MIB], SYNC).wait().await;
        assert_eq!(synced.expect("the store works"), MIB);
        volume.commit().await;
        assert!(!stuck.is_answered());
        assert_eq!(volume.read(INO, 0, MIB).await.expect("the store works"), vec![0; MIB], "not there yet");
        rig.fault.release();
        assert_eq!(stuck.wait().await.0.expect("it goes on"), MIB);
        assert_eq!(volume.read(INO, 0, MIB).await.expect("the store works"), vec![1; MIB]);
    });
}

#[test]
fn units_of_syncs_do_not_wait_for_any_number_of_stuck_ones() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        volume.make(INO).await;
        // As many as there are slots at the start.
        rig.fault.add(Rule::hang().on(Operation::Put).under("seg/").next(8));
        let unit = vec![1; MIB];
        let stuck: Vec<_> =
            (0..160).map(|number| volume.submit_write(INO, number << 20, &unit, How::default())).collect();
        rig.fault.held(8).await;
        let (synced, _) = volume.submit_write(INO, 200 << 20, &unit, SYNC).wait().await;
        assert_eq!(synced.expect("the store works"), MIB);
        assert!(!stuck.iter().any(super::rig::Pending::is_answered));
        rig.fault.release();
        for unit in stuck {
            assert_eq!(unit.wait().await.0.expect("it goes on"), MIB);
        }
    });
}

#[test]
fn a_failed_request_fails_its_units_and_changes_nothing() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        volume.make(INO).await;
        volume.write(INO, 0, &vec![1; MIB]).await;
        rig.fault.add(Rule::fail(Failure::Server).on(Operation::Put).under("seg/").next(1));
        let (failed, _) = volume.submit_write(INO, 0, &vec![2; MIB], How::default()).wait().await;
        assert!(failed.is_err());
        assert_eq!(volume.read(INO, 0, MIB).await.expect("the store works"), vec![1; MIB]);
        // The answer is lost, although the object is there: the unit is written again, to another object.
        rig.fault.add(Rule::lose_reply().on(Operation::Put).under("seg/").next(1));
        let (lost, _) = volume.submit_write(INO, 0, &vec![3; MIB], How::default()).wait().await;
        assert!(lost.is_err());
        assert_eq!(volume.read(INO, 0, MIB).await.expect("the store works"), vec![1; MIB]);
        volume.write(INO, 0, &vec![3; MIB]).await;
        assert_eq!(volume.read(INO, 0, MIB).await.expect("the store works"), vec![3; MIB]);
    });
}

#[test]
fn a_unit_of_a_removed_file_fails_alone() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        volume.make(INO).await;
        rig.fault.add(Rule::hang().on(Operation::Put).under("seg/").next(1));
        let first = volume.submit_write(INO, 0, &vec![1; MIB], SYNC);
        rig.fault.held(1).await;
        let gone = volume.submit_write(INO + 1, 0, &vec![2; MIB], SYNC);
        let small = volume.submit_write(INO + 1, 0, &vec![2; 4096], SYNC);
        rig.fault.release();
        assert_eq!(first.wait().await.0.expect("the store works"), MIB);
        let stale = Some(slackwater::ErrorKind::Stale);
        assert_eq!(gone.wait().await.0.err().map(|error| error.kind()), stale);
        assert_eq!(small.wait().await.0.err().map(|error| error.kind()), stale);
    });
}
