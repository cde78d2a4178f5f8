//! A cache for small ranges of segments.
//!
//! The small writes of one time are neighbours in one segment, and are often read together: the files of a folder, for
//! example. A small range is therefore read with all of its window, once for all who need the window at the same time.

use std::collections::HashMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use slackwater::BackendError;
use slackwater_sync::shim::Arc;
use tokio::sync::OnceCell;

use crate::format::SegmentId;
use crate::segments::{Segments, damaged};

/// Segments are divided into windows of this size.
const WINDOW_BYTES: u32 = 1 << 20;
/// The most windows in memory: 64 MiB.
const WINDOWS_MAX: usize = 64;

/// A segment and the number of a window of it.
type Name = (SegmentId, u32);

/// See the [module documentation](self).
pub(super) struct Windows {
    segments: Segments,
    cached: Mutex<Cached>,
}

#[derive(Default)]
struct Cached {
    windows: HashMap<Name, Window>,
    /// Counts uses.
    clock: u64,
}

struct Window {
    bytes: Arc<OnceCell<Bytes>>,
    used: u64,
}

impl Windows {
    pub(super) fn new(segments: Segments) -> Self {
        Self { segments, cached: Mutex::default() }
    }

    /// A range of a segment.
    ///
    /// # Errors
    /// As [`Segments::get`].
    pub(super) async fn get(&self, segment: SegmentId, range: Range<u32>) -> Result<Bytes, BackendError> {
        let first = range.start / WINDOW_BYTES;
        let bytes = self.part(segment, first, &range).await?;
        if bytes.len() == range.len() {
            return Ok(bytes);
        }
        let mut both = BytesMut::from(bytes);
        both.extend_from_slice(&self.part(segment, first + 1, &range).await?);
        if both.len() == range.len() {
            Ok(both.freeze())
        } else {
            Err(damaged(segment, format_args!("it ends before byte {}", range.end)))
        }
    }

    /// The bytes that a window has of a range.
    async fn part(&self, segment: SegmentId, number: u32, range: &Range<u32>) -> Result<Bytes, BackendError> {
        let start = number * WINDOW_BYTES;
        let cell = self.cached.lock().cell((segment, number));
        let window = cell
            .get_or_try_init(async || {
                let pieces = self.segments.get_at_most(segment, start..start.saturating_add(WINDOW_BYTES)).await?;
                Ok::<_, BackendError>(pieces.joined())
            })
            .await?;
        let at = (range.start.max(start) - start) as usize;
        let end = ((range.end - start).min(WINDOW_BYTES) as usize).min(window.len());
        Ok(if at < end { window.slice(at..end) } else { Bytes::new() })
    }
}

impl Cached {
    fn cell(&mut self, name: Name) -> Arc<OnceCell<Bytes>> {
        self.clock += 1;
        if self.windows.len() >= WINDOWS_MAX && !self.windows.contains_key(&name) {
            let oldest = self.windows.iter().min_by_key(|(_, window)| window.used).map(|(name, _)| *name);
            oldest.map(|name| self.windows.remove(&name));
        }
        let window = self.windows.entry(name).or_insert_with(|| Window { bytes: Arc::new(OnceCell::new()), used: 0 });
        window.used = self.clock;
        Arc::clone(&window.bytes)
    }
}
