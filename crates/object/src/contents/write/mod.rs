//! Writing: from units of write-back to segments.
//!
//! - A small unit is copied into the pack of the running transaction, and answered at once. The next commit stores it.
//! - Large units are gathered into segments of up to [`SEGMENT_BYTES`], each of which is one object. A unit is answered
//!   when its object is stored and its extents are in the running transaction.
//!
//! # Invariants
//! U1. A transaction names bytes of a segment only after its object is stored (T3).
//! U2. A unit is answered only after no request refers to its frames any more, on whatever thread that is.
//! U3. Units of syncs have their own queue and slots; they never wait for other data.
//! U4. A unit waits for the requests of other units at most until a slot is free. While one is, it waits for
//!     [`GATHER_MS`] at most.
//!
//! # Lock order
//! The lock of the queues is a leaf: no unit is answered and no task is started under it.

mod lent;
mod queue;
mod segment;

use std::time::Duration;

use bytes::BytesMut;
use futures::future::join_all;
use parking_lot::Mutex;
use slackwater::backend::WriteUnit;
use slackwater_sync::shim::Arc;
use tokio::runtime::Handle;

use crate::clock;
use crate::contents::map;
use crate::format::{Encode, Key, SegmentPlace, SegmentRecord, Stored};
use crate::segments::Segments;
use crate::tree::Tree;

use queue::{Batch, Queue};
use segment::Builder;

/// Units below this go into the pack: they are one block of a checksum, and as an object each would cost a request for
/// little data. A larger unit would double its bytes in memory until the commit.
const SMALL_BYTES: usize = 64 << 10;
/// A segment with this much data is not given more.
const SEGMENT_BYTES: usize = 8 << 20;
/// The most requests of background data, and of syncs, on their way at a time. Their data stays in the frames of their
/// units.
const BACKGROUND_SLOTS: usize = 16;
const SYNC_SLOTS: usize = 8;
/// How long background data is gathered for a segment while others are on their way.
const GATHER_MS: u64 = 20;

/// See the [module documentation](self).
pub(crate) struct Writer {
    tree: Arc<Tree>,
    segments: Segments,
    runtime: Handle,
    background: Mutex<Queue>,
    sync: Mutex<Queue>,
}

impl Writer {
    /// Data that is on its way when all slots are taken.
    pub(crate) const IN_FLIGHT_BYTES: usize = (BACKGROUND_SLOTS + SYNC_SLOTS) * SEGMENT_BYTES;

    pub(crate) fn new(tree: Arc<Tree>, segments: Segments, runtime: Handle) -> Arc<Self> {
        let background = Mutex::new(Queue::gathering(BACKGROUND_SLOTS));
        let sync = Mutex::new(Queue::eager(SYNC_SLOTS));
        Arc::new(Self { tree, segments, runtime, background, sync })
    }

    /// Writes a unit to the file `ino`, and completes it.
    ///
    /// # Blocking
    /// Never.
    pub(crate) fn write(self: &Arc<Self>, ino: u64, unit: WriteUnit) {
        if unit.len_bytes() < SMALL_BYTES {
            self.write_small(ino, unit);
        } else {
            self.enqueue(ino, unit);
        }
    }

    fn write_small(&self, ino: u64, unit: WriteUnit) {
        let mut bytes = BytesMut::with_capacity(unit.len_bytes());
        unit.slices().for_each(|slice| bytes.extend_from_slice(slice));
        let (bytes, offset_bytes) = (bytes.freeze(), unit.offset_bytes());
        let crc32c = crc32c::crc32c(&bytes);
        self.tree.submit(
            move |view| {
                let (segment, offset) = view.append_small(ino, offset_bytes, crc32c, bytes.clone());
                let stored_len = bytes.len() as u32;
                let stored = Stored { segment, offset, stored_len, skip: 0, crc32c: vec![crc32c] };
                map::write(view, ino, offset_bytes, &stored)
            },
            move |written| {
                let len_bytes = unit.len_bytes();
                unit.complete(written.map(|()| len_bytes));
            },
        );
    }

    fn enqueue(self: &Arc<Self>, ino: u64, unit: WriteUnit) {
        let queue = if unit.is_for_sync() { &self.sync } else { &self.background };
        let (batches, gathers) = {
            let mut queue = queue.lock();
            queue.push(ino, unit);
            (queue.ready(), queue.begin_gathering())
        };
        self.start(batches);
        if gathers {
            let writer = Arc::clone(self);
            self.runtime.spawn(async move {
                tokio::time::sleep(Duration::from_millis(GATHER_MS)).await;
                let batches = {
                    let mut queue = writer.background.lock();
                    queue.end_gathering();
                    queue.ready()
                };
                writer.start(batches);
            });
        }
    }

    fn start(self: &Arc<Self>, batches: Vec<Batch>) {
        for batch in batches {
            let writer = Arc::clone(self);
            self.runtime.spawn(async move { writer.store(batch).await });
        }
    }

    /// Stores the units of a batch, answers them, and starts what can start in the slot.
    async fn store(self: Arc<Self>, batch: Batch) {
        let queue = if batch.is_for_sync() { &self.sync } else { &self.background };
        let segment = Builder::build(self.tree.new_segment_id(), batch);
        let began_ms = clock::monotonic_ms();
        let stored = self.segments.put(segment.id, segment.data, &segment.footer).await;
        let batches = {
            let mut queue = queue.lock();
            queue.end_upload(Duration::from_millis(clock::monotonic_ms() - began_ms));
            queue.ready()
        };
        self.start(batches);
        if let Err(error) = stored {
            segment.units.into_iter().for_each(|unit| unit.lent.complete(Err(error.clone())));
            return;
        }
        let record = SegmentRecord::new(SegmentPlace::Object, segment.len_bytes);
        let recorded = self.tree.run(|view| {
            view.put(Key::Segment(segment.id), record.encode());
            Ok(())
        });
        if let Err(error) = recorded.await {
            segment.units.into_iter().for_each(|unit| unit.lent.complete(Err(error.clone())));
            return;
        }
        let tree = &self.tree;
        let units = segment.units.into_iter().map(|unit| async move {
            let mapped = tree.run(|view| map::write(view, unit.ino, unit.offset_bytes, &unit.stored)).await;
            unit.lent.complete(mapped.map(|()| unit.stored.stored_len as usize));
        });
        join_all(units).await;
    }
}
