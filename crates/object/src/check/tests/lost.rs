//! Damage of segments, and of the data in them.

use bytes::Bytes;
use object_store::ObjectStoreExt;
use slackwater_sync::shim::Arc;

use super::rig::{BIG_BYTES, NoListing, Rig, block_on, change_inode};
use crate::check::Severity;
use crate::contents::map;
use crate::format::{Decode, Encode, Key, SegmentRecord};
use crate::layers::{Fault, Layered, Operation, Rule};
use crate::segments::path_of;

#[test]
fn data_behind_the_end_of_a_file_goes() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| change_inode(view, rig.small, |inode| inode.size_bytes = 100)).await;
        rig.is_repaired(Severity::Structure, "/dir/small: inode 4 has data behind its end at byte 100").await;
        assert_eq!(rig.inode(rig.small).await.allocated_bytes, 100);
    });
}

#[test]
fn a_missing_object_leaves_a_hole_and_the_name_of_the_file() {
    block_on(async {
        let rig = Rig::new().await;
        rig.store.delete(&path_of(rig.object)).await.expect("deletes");
        let text = format!("/dir/link: inode 2 has lost 200000 bytes at 0: {} is missing", path_of(rig.object));
        rig.is_repaired(Severity::Data, &text).await;
        let inode = rig.inode(rig.big).await;
        assert_eq!((inode.size_bytes, inode.allocated_bytes), (100 << 20, 0));
    });
}

#[test]
fn a_truncated_object_is_found_without_reading_it() {
    block_on(async {
        let rig = Rig::new().await;
        let path = path_of(rig.object);
        let whole = rig.store.get(&path).await.expect("gets").bytes().await.expect("reads");
        rig.store.put(&path, whole.slice(..100_000).into()).await.expect("puts");
        rig.is_repaired(Severity::Data, "is truncated").await;
    });
}

#[test]
fn a_missing_blob_leaves_a_hole() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.delete(Key::Blob(rig.blob));
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Data, "/dir/small: inode 4 has lost 5000 bytes at 0").await;
    });
}

#[test]
fn a_segment_without_record_leaves_a_hole_if_it_is_not_stored() {
    block_on(async {
        let rig = Rig::new().await;
        rig.store.delete(&path_of(rig.object)).await.expect("deletes");
        rig.damage(|view, rig| {
            view.delete(Key::Segment(rig.object));
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Data, "has no record").await;
        assert_eq!(rig.inode(rig.big).await.allocated_bytes, 0);
    });
}

#[test]
fn a_segment_that_is_stored_gets_its_record_back() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.delete(Key::Segment(rig.object));
            view.delete(Key::Segment(rig.blob));
            Ok(())
        })
        .await;
        let text = format!("segment {} is used and has no record", rig.object);
        rig.is_repaired(Severity::Structure, &text).await;
        let report = rig.check().await;
        assert_eq!((report.segments, report.garbage_objects), (2, 0));
        assert_eq!(report.verified_bytes, u64::from(BIG_BYTES) + 5_000);
    });
}

#[test]
fn a_record_of_a_segment_that_cannot_be_read_loses_no_data() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.put(Key::Segment(rig.object), Bytes::from_static(&[9; 8]));
            view.put(Key::Segment(rig.blob), Bytes::from_static(&[9; 8]));
            Ok(())
        })
        .await;
        let report = rig.repair().await;
        assert_eq!((report.findings.len(), report.errors_left), (2, 2), "{report:#?}");
        assert_eq!(rig.inode(rig.big).await.allocated_bytes, u64::from(BIG_BYTES));
        assert_eq!(rig.inode(rig.small).await.allocated_bytes, 5_000);
    });
}

/// An object that a listing lacks is asked for by its name.
#[test]
fn a_listing_that_lacks_objects_loses_no_data() {
    block_on(async {
        let rig = Rig::new().await;
        let report = rig.repair_on(Arc::new(NoListing(rig.store.clone()))).await;
        assert_eq!(report.findings, []);
        assert_eq!(rig.inode(rig.big).await.allocated_bytes, u64::from(BIG_BYTES));
    });
}

/// A writer collects a segment while a check that began before reads the data of other files.
#[test]
fn a_segment_that_is_collected_during_a_check_is_not_missing() {
    block_on(async {
        let rig = Rig::new().await;
        let fault = Arc::new(Fault::new());
        fault.add(Rule::hang().on(Operation::Get).under("seg/").next(1));
        let check = rig.check_on(Arc::new(Layered::new(fault.clone(), rig.store.clone())));
        let collect = async {
            fault.held(1).await;
            rig.damage(|view, rig| map::truncate(view, rig.big, 0).map(drop)).await;
            rig.store.delete(&path_of(rig.object)).await.expect("deletes");
            fault.release();
        };
        let (report, ()) = futures::join!(check, collect);
        assert_eq!(report.findings, []);
        assert_eq!(report.verified_bytes, 5_000);
    });
}

#[test]
fn corrupt_bytes_are_reported_and_left_alone() {
    block_on(async {
        let rig = Rig::new().await;
        let path = path_of(rig.object);
        let mut bytes = rig.store.get(&path).await.expect("gets").bytes().await.expect("reads").to_vec();
        bytes[70_000] ^= 1;
        rig.store.put(&path, bytes.into()).await.expect("puts");
        let report = rig.repair().await;
        assert_eq!((report.findings.len(), report.errors_left), (1, 1));
        assert_eq!(report.findings[0].severity, Severity::Data);
        let text = &report.findings[0].text;
        assert!(text.starts_with("/dir/link: inode 2 has 200000 corrupt bytes at 0: seg/"), "{text}");
        assert!(!report.findings[0].is_repaired);
        assert_eq!(rig.inode(rig.big).await.allocated_bytes, u64::from(BIG_BYTES));
    });
}

#[test]
fn wrong_live_bytes_are_set_right() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            let key = Key::Segment(rig.object);
            let record = SegmentRecord::decode(&view.get(key)?.expect("it has one")).expect("valid");
            view.put(key, SegmentRecord { live_bytes: 1, ..record }.encode());
            Ok(())
        })
        .await;
        rig.is_repaired(Severity::Count, "counts 1 live bytes and has 200000").await;
    });
}

#[test]
fn segments_are_not_counted_down_for_extents_that_cannot_be_read() {
    block_on(async {
        let rig = Rig::new().await;
        rig.damage(|view, rig| {
            view.put(Key::Chunk { ino: rig.big, index: 0 }, Bytes::from_static(b"\x02"));
            Ok(())
        })
        .await;
        let report = rig.repair().await;
        assert_eq!((report.findings.len(), report.errors_left), (1, 1), "{report:#?}");
        assert!(report.findings[0].text.contains("written by a newer version"), "{report:#?}");
    });
}
