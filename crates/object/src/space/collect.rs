//! Removing dead segments, and objects that belong to none.

use std::collections::HashSet;

use futures::{StreamExt, TryStreamExt};
use slackwater::BackendError;

use crate::clock;
use crate::format::{Collected, Encode, Key, SegmentId, SegmentPlace, VolumeKey};
use crate::progress::Progress;
use crate::segments::{Segments, id_of};
use crate::space::records::{self, Segment};
use crate::space::report::{GcOptions, GcReport};
use crate::tree::{Tree, View};

/// Objects that are removed together.
const REMOVED_TOGETHER: usize = 1000;

/// The age at which segments and objects may be removed.
#[derive(Copy, Clone, Debug)]
pub(super) struct Limits {
    pub(super) is_dry_run: bool,
    pub(super) now_ms: u64,
    pub(super) grace_ms: u64,
    /// Ids from this one on are kept: they are in use, or a later writer's (G1, G2).
    pub(super) horizon: SegmentId,
}

impl Limits {
    /// `horizon`: an id of this writer. Nothing that was named before is being written or compacted.
    pub(super) fn new(options: &GcOptions, horizon: SegmentId) -> Self {
        let grace_ms = options.grace.as_millis() as u64;
        Self { is_dry_run: options.dry_run, now_ms: clock::unix_ms(), grace_ms, horizon }
    }

    /// Whether what has been unused since `since_ms` may be removed.
    fn allow(&self, id: SegmentId, since_ms: u64) -> bool {
        let is_old = self.now_ms.saturating_sub(since_ms.max(id.unix_ms())) >= self.grace_ms;
        is_old && id.order() < self.horizon.order()
    }
}

/// Removes the segments that have been dead for longer than the grace time, and the objects of this age that belong to
/// no segment. It keeps the id of each segment in memory: about 3 MB for each TiB of a volume.
///
/// # Errors
/// The store's. Removed segments stay removed; the next collection continues.
pub(super) async fn collect<P: FnMut(Progress) + ?Sized>(
    tree: &Tree,
    segments: &Segments,
    limits: &Limits,
    progress: &mut P,
) -> Result<GcReport, BackendError> {
    let mut report = GcReport::default();
    let kept = remove_dead(tree, segments, limits, &mut report, progress).await?;
    remove_orphans(tree, segments, limits, &kept, &mut report, progress).await?;
    Ok(report)
}

/// Removes dead segments, and returns the ids of all others that have objects.
pub(super) async fn remove_dead<P: FnMut(Progress) + ?Sized>(
    tree: &Tree,
    segments: &Segments,
    limits: &Limits,
    report: &mut GcReport,
    progress: &mut P,
) -> Result<HashSet<SegmentId>, BackendError> {
    let (mut kept, mut dead, mut seen) = (HashSet::new(), Vec::new(), 0);
    let each = |view: &mut View<'_>, segment: &Segment| {
        let is_garbage = segment.is_dead() && limits.allow(segment.id, segment.record.dead_unix_ms);
        if is_garbage && !limits.is_dry_run {
            view.delete(Key::Segment(segment.id));
            if segment.record.place == SegmentPlace::Blob {
                view.delete(Key::Blob(segment.id));
            }
        }
        Ok(Some((*segment, is_garbage)))
    };
    records::for_each(tree, each, |(segment, is_garbage)| {
        seen += 1;
        if seen % 1000 == 0 {
            progress(Progress { step: "reading segment records", done: seen });
        }
        let is_object = segment.record.place == SegmentPlace::Object;
        if is_garbage {
            report.deleted_bytes += segment.record.total_bytes;
            report.deleted_objects += u64::from(is_object);
            dead.extend(is_object.then_some(segment.id));
        } else if is_object {
            report.young_objects += u64::from(segment.is_dead());
            kept.insert(segment.id);
        }
    })
    .await?;
    if limits.is_dry_run {
        kept.extend(dead);
        return Ok(kept);
    }
    report.objects += dead.len() as u64;
    if !dead.is_empty() {
        tree.commit().await?; // G1
        segments.delete(dead).await?;
    }
    Ok(kept)
}

/// Removes the objects that belong to no segment.
async fn remove_orphans<P: FnMut(Progress) + ?Sized>(
    tree: &Tree,
    segments: &Segments,
    limits: &Limits,
    kept: &HashSet<SegmentId>,
    report: &mut GcReport,
    progress: &mut P,
) -> Result<(), BackendError> {
    if !limits.is_dry_run {
        let collected = Collected { unix_ms: limits.now_ms };
        tree.run(|view| {
            view.put(Key::Volume(VolumeKey::Collected), collected.encode());
            Ok(())
        })
        .await?;
        tree.commit().await?; // G1: the ids were read before
    }
    let mut objects = segments.list().try_chunks(REMOVED_TOGETHER);
    while let Some(objects) = objects.next().await {
        let mut orphans = Vec::new();
        for object in objects.map_err(|failed| failed.1)? {
            report.objects += 1;
            let Some(id) = id_of(&object.location).filter(|id| !kept.contains(id)) else { continue };
            let modified_ms = object.last_modified.timestamp_millis().max(0) as u64;
            if !limits.allow(id, modified_ms) {
                report.young_objects += 1;
                continue;
            }
            report.deleted_objects += 1;
            report.deleted_bytes += object.size;
            orphans.push(id);
        }
        if !limits.is_dry_run && !orphans.is_empty() {
            segments.delete(orphans).await?;
        }
        progress(Progress { step: "listing objects", done: report.objects });
    }
    Ok(())
}
