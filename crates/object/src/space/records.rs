//! The records of all segments.

use slackwater::{BackendError, ErrorKind};

use crate::format::{Decode, Key, SegmentId, SegmentRecord};
use crate::tree::{Stop, Tree, View};

/// Records that one call on the tree reads.
const PAGE: usize = 1024;

/// A segment as a call on the tree sees it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Segment {
    pub(super) id: SegmentId,
    pub(super) record: SegmentRecord,
    /// The live bytes of the record and of calls that are not committed.
    pub(super) live_bytes: u64,
}

impl Segment {
    /// Whether nothing refers to it, in the store and in memory (G2).
    pub(super) fn is_dead(&self) -> bool {
        self.live_bytes == 0 && self.record.live_bytes == 0
    }
}

/// Calls `each` with all segments in the order of their ids, in several calls on the tree. A call that has to ask the
/// store repeats its part of them: `each` must only change the view, and what it returns.
///
/// # Errors
/// The store's, or a record that cannot be read.
pub(super) async fn for_each<T>(
    tree: &Tree,
    mut each: impl FnMut(&mut View<'_>, &Segment) -> Result<Option<T>, Stop>,
    mut found: impl FnMut(T),
) -> Result<(), BackendError> {
    let last = SegmentId::from_bytes([0xff; 16]);
    let mut first = SegmentId::from_bytes([0; 16]);
    loop {
        let (page, answers) = tree
            .run(|view| {
                let page = view.scan(Key::Segment(first), Key::Segment(last), PAGE)?;
                let mut answers = Vec::new();
                for (key, value) in &page {
                    let Key::Segment(id) = *key else { continue };
                    let record = SegmentRecord::decode(value).map_err(|error| {
                        BackendError::new(ErrorKind::Io, format!("record of segment {id}: {error}"))
                    })?;
                    let live_bytes = record.live_bytes.saturating_add_signed(view.uncommitted_live(id));
                    answers.extend(each(view, &Segment { id, record, live_bytes })?);
                }
                Ok((page, answers))
            })
            .await?;
        answers.into_iter().for_each(&mut found);
        match page.last() {
            Some((Key::Segment(id), _)) if page.len() == PAGE && *id < last => first = id.next(),
            _ => return Ok(()),
        }
    }
}
