//! Space comes back, and nothing that lives goes, whatever happens in between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::TryStreamExt;
use slackwater::{BackendError, ErrorKind};

use crate::contents::map;
use crate::contents::tests::rig::{How, Rig, Volume, block_on, bytes, rounds};
use crate::format::{Encode, Footer, Key, SegmentId, SegmentPlace, SegmentRecord};
use crate::layers::{Operation, Rule};
use crate::segments::id_of;
use crate::space::collect::{Limits, collect};
use crate::space::compact::{Compacted, Compactor};
use crate::space::records;
use crate::space::report::{GcOptions, GcReport};

const MIB: usize = 1 << 20;
const NOW: GcOptions = GcOptions { dry_run: false, grace: Duration::ZERO };

/// The bytes of files.
type Model = BTreeMap<u64, Vec<u8>>;

/// Writes a unit, also to the model.
async fn write(volume: &Volume, model: &mut Model, ino: u64, at: usize, new: &[u8]) {
    volume.write(ino, at as u64, new).await;
    let file = model.entry(ino).or_default();
    file.resize(file.len().max(at + new.len()), 0);
    file[at..at + new.len()].copy_from_slice(new);
}

/// Large files of which little is left, small files of several commits, and objects that no commit names.
async fn fill(rig: &Rig, volume: &Volume) -> Model {
    let mut model = Model::new();
    for ino in 10..14 {
        volume.make(ino).await;
        write(volume, &mut model, ino, 0, &bytes(ino as usize, MIB)).await;
    }
    for ino in 20..40 {
        volume.make(ino).await;
        write(volume, &mut model, ino, 0, &bytes(ino as usize, 5000)).await;
        volume.commit().await;
    }
    for ino in 10..13 {
        write(volume, &mut model, ino, 4096, &bytes(ino as usize + 1, 700_000)).await;
    }
    volume.tree.run(|view| map::truncate(view, 13, 70_000)).await.expect("the store works");
    model.get_mut(&13).expect("it was made").truncate(70_000);
    rig.fault.add(Rule::lose_reply().on(Operation::Put).under("seg/").next(1));
    let (lost, _) = volume.submit_write(10, 0, &bytes(99, MIB), How::default()).wait().await;
    assert!(lost.is_err());
    rig.fault.clear();
    volume.commit().await;
    model
}

async fn check(volume: &Volume, model: &Model, state: &str) {
    for (ino, expected) in model {
        let read = volume.read(*ino, 0, MIB).await.expect("every byte that lives is there");
        assert!(read == *expected, "file {ino} differs {state}");
    }
}

async fn objects(rig: &Rig) -> BTreeSet<SegmentId> {
    let folder = object_store::path::Path::from("seg");
    let found: Vec<_> = rig.store.list(Some(&folder)).try_collect().await.expect("the store works");
    found.iter().map(|meta| id_of(&meta.location).expect("it is a segment")).collect()
}

/// The segments with records, and their live and all bytes.
async fn segments(volume: &Volume) -> BTreeMap<SegmentId, (u64, u64)> {
    let mut found = BTreeMap::new();
    records::for_each(
        &volume.tree,
        |_, segment| Ok(Some((segment.id, (segment.live_bytes, segment.record.total_bytes)))),
        |(id, bytes)| {
            found.insert(id, bytes);
        },
    )
    .await
    .expect("the store works");
    found
}

/// Collects what is older than `options` say.
async fn collect_with(volume: &Volume, options: &GcOptions) -> Result<GcReport, BackendError> {
    let limits = Limits::new(options, volume.tree.new_segment_id());
    collect(&volume.tree, &volume.segments, &limits, &mut |_| ()).await
}

/// Compacts and collects all there is.
async fn clean(volume: &Volume) -> Result<GcReport, BackendError> {
    let mut compactor = Compactor::eager();
    while compactor.step(&volume.tree, &volume.segments).await? != Compacted::Nothing {
        volume.tree.commit().await?;
    }
    collect_with(volume, &NOW).await
}

async fn assert_clean(rig: &Rig, volume: &Volume) {
    let records = segments(volume).await;
    let objects = objects(rig).await;
    assert!(objects.iter().all(|id| records.contains_key(id)), "no object without a record");
    for (id, (live, total)) in &records {
        assert!(live * 2 >= *total && *live > 0, "{live} of {total} bytes of {id} live");
    }
}

#[test]
fn compaction_and_collection_leave_what_lives_and_nothing_else() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        let model = fill(&rig, &volume).await;
        let before = segments(&volume).await;
        assert!(objects(&rig).await.iter().any(|id| !before.contains_key(id)), "there is an orphan");
        let report = clean(&volume).await.expect("the store works");
        assert!(report.deleted_objects >= 5, "{report:?}");
        assert_clean(&rig, &volume).await;
        let after = segments(&volume).await;
        assert!(after.len() + 15 < before.len(), "{} segments became {}", before.len(), after.len());
        check(&volume, &model, "after the collection").await;
        drop(volume);
        check(&rig.open().await, &model, "in the next process").await;
    });
}

#[test]
fn a_crash_at_any_request_loses_nothing_and_leaves_nothing_behind() {
    for after in [false, true] {
        let mut crashes = 0;
        loop {
            let is_over = block_on(async {
                let rig = Rig::new();
                let volume = rig.open().await;
                let model = fill(&rig, &volume).await;
                let rule = if after { Rule::crash_after() } else { Rule::crash_before() };
                rig.fault.add(rule.nth(u64::from(crashes) + 1));
                let result = clean(&volume).await;
                let is_over = !rig.fault.is_crashed();
                assert!(result.is_ok() || !is_over);
                drop(volume);
                rig.fault.revive();
                let volume = rig.open().await;
                check(&volume, &model, &format!("after a crash at request {}", crashes + 1)).await;
                clean(&volume).await.expect("the store works");
                assert_clean(&rig, &volume).await;
                check(&volume, &model, "after the next collection").await;
                is_over
            });
            if is_over {
                break;
            }
            crashes += rounds(3, 1);
        }
        assert!(crashes > 5, "only {crashes} crash points");
    }
}

#[test]
fn what_is_within_the_grace_time_stays_and_a_dry_run_removes_nothing() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        let model = fill(&rig, &volume).await;
        volume.tree.run(|view| map::truncate(view, 10, 0)).await.expect("the store works");
        volume.commit().await;
        let before = objects(&rig).await;
        let hour = GcOptions { dry_run: false, grace: Duration::from_secs(3600) };
        let kept = collect_with(&volume, &hour).await.expect("the store works");
        assert_eq!((kept.deleted_objects, kept.deleted_bytes), (0, 0));
        assert!(kept.young_objects >= 2, "{kept:?}");
        let dry = GcOptions { dry_run: true, ..NOW };
        let dry = collect_with(&volume, &dry).await.expect("the store works");
        assert_eq!(objects(&rig).await, before);
        let wet = collect_with(&volume, &NOW).await.expect("the store works");
        assert_eq!((dry.deleted_objects, dry.deleted_bytes), (wet.deleted_objects, wet.deleted_bytes));
        assert_eq!(dry.deleted_objects, kept.young_objects);
        assert_eq!(objects(&rig).await.len() as u64 + wet.deleted_objects, before.len() as u64);
        let rest = model.into_iter().filter(|(ino, _)| *ino != 10).collect();
        check(&volume, &rest, "after the collection").await;
    });
}

#[test]
fn a_write_during_a_compaction_wins() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        let mut model = fill(&rig, &volume).await;
        rig.fault.add(Rule::hang().on(Operation::Put).under("seg/").next(1));
        let mut compactor = Compactor::eager();
        let step = compactor.step(&volume.tree, &volume.segments);
        let writes = async {
            rig.fault.held(1).await;
            write(&volume, &mut model, 10, 0, &bytes(77, 4096)).await;
            write(&volume, &mut model, 11, 900_000 / 4096 * 4096, &bytes(78, 10_000)).await;
            volume.tree.run(|view| map::truncate(view, 13, 0)).await.expect("the store works");
            model.insert(13, Vec::new());
            rig.fault.release();
        };
        let (stepped, ()) = futures::join!(step, writes);
        assert!(matches!(stepped.expect("the store works"), Compacted::Moved(moved) if moved > 0));
        check(&volume, &model, "after the compaction").await;
        volume.commit().await;
        clean(&volume).await.expect("the store works");
        assert_clean(&rig, &volume).await;
        check(&volume, &model, "after the collection").await;
    });
}

#[test]
fn a_writer_that_was_fenced_removes_nothing() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        let model = fill(&rig, &volume).await;
        let next = rig.open().await;
        let before = objects(&rig).await;
        let error = collect_with(&volume, &NOW).await.expect_err("it is fenced");
        assert_eq!(error.kind(), ErrorKind::Stale);
        assert_eq!(objects(&rig).await, before);
        check(&next, &model, "of the next writer").await;
    });
}

#[test]
fn a_damaged_segment_is_left_alone() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        let mut model = fill(&rig, &volume).await;
        rig.fault.add(Rule::corrupt(100).on(Operation::Get).under("seg/"));
        let mut compactor = Compactor::eager();
        while compactor.step(&volume.tree, &volume.segments).await.expect("others are whole") != Compacted::Nothing {
            volume.commit().await;
        }
        rig.fault.clear();
        write(&volume, &mut model, 12, 0, &bytes(3, 4096)).await;
        check(&volume, &model, "after the compaction").await;
    });
}

/// The wall clock makes them look old: it is ahead, or the machine has slept while they were on their way.
#[test]
fn what_was_named_since_the_horizon_or_by_a_later_writer_is_kept() {
    block_on(async {
        let rig = Rig::new();
        let volume = rig.open().await;
        let horizon = volume.tree.new_segment_id();
        let [stored, recorded] = [(); 2].map(|()| volume.tree.new_segment_id());
        let later = SegmentId::new(0, horizon.writer_epoch() + 1, 1);
        for id in [stored, recorded, later] {
            volume.segments.put(id, [], &Footer::default()).await.expect("the store works");
        }
        let record = SegmentRecord::new(SegmentPlace::Object, 0).encode();
        let put = volume.tree.run(|view| {
            view.put(Key::Segment(recorded), record.clone());
            Ok(())
        });
        put.await.expect("the store works");
        let before = objects(&rig).await;
        let collect = async |horizon| {
            let limits = Limits::new(&NOW, horizon);
            collect(&volume.tree, &volume.segments, &limits, &mut |_| ()).await.expect("the store works")
        };
        assert_eq!(collect(horizon).await.young_objects, 3);
        assert_eq!(objects(&rig).await, before);
        assert_eq!(collect(volume.tree.new_segment_id()).await.deleted_objects, 2);
        assert_eq!(objects(&rig).await, BTreeSet::from([later]));
    });
}
