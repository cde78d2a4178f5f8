//! A file whose extents a call changes.

use slackwater::ErrorKind;

use crate::contents::map::chunks::FileRange;
use crate::format::{CHUNK_BYTES, Chunk, Encode, Extent, Inode, Key, Source, Stored};
use crate::tree::{Stop, View};

/// An inode and the difference that the extents changed by the call make to it.
pub(super) struct File {
    pub(super) ino: u64,
    pub(super) inode: Inode,
    allocated: i64,
}

impl File {
    /// # Errors
    /// [`Stop::Missing`]; `Stale` if there is no such inode.
    pub(super) fn open(view: &mut View<'_>, ino: u64) -> Result<Self, Stop> {
        let inode = view.record(Key::Inode(ino))?.ok_or(ErrorKind::Stale)?;
        Ok(Self { ino, inode, allocated: 0 })
    }

    /// Whether it may have chunks (M2).
    pub(super) fn has_chunks(&self) -> bool {
        self.inode.allocated_bytes != 0
    }

    /// The chunk at `index`.
    pub(super) fn chunk(&self, view: &mut View<'_>, index: u64) -> Result<Chunk, Stop> {
        if !self.has_chunks() {
            return Ok(Chunk::default());
        }
        Ok(view.record(Key::Chunk { ino: self.ino, index })?.unwrap_or_default())
    }

    /// Counts extents that the file has lost.
    pub(super) fn lost(&mut self, view: &mut View<'_>, extents: &[Extent]) {
        for extent in extents {
            self.count(view, extent, -1);
        }
    }

    /// Counts an extent that the file has got.
    pub(super) fn gained(&mut self, view: &mut View<'_>, extent: &Extent) {
        self.count(view, extent, 1);
    }

    /// Counts bytes that are now allocated without being stored.
    pub(super) fn gained_zeroes(&mut self, bytes: u32) {
        self.allocated += i64::from(bytes);
    }

    fn count(&mut self, view: &mut View<'_>, extent: &Extent, sign: i64) {
        let bytes = i64::from(extent.len) * sign;
        self.allocated += bytes;
        if let Source::Segment(stored) = &extent.source {
            view.count_live(stored.segment, bytes);
        }
    }

    /// Stores a chunk that the call has changed (M1).
    pub(super) fn put(&self, view: &mut View<'_>, index: u64, chunk: &Chunk) {
        let key = Key::Chunk { ino: self.ino, index };
        if chunk.extents.is_empty() {
            view.delete(key);
        } else {
            view.put(key, chunk.encode());
        }
    }

    /// Stores the inode: its data changed now.
    pub(super) fn close(mut self, view: &mut View<'_>) {
        self.inode.mtime = view.now();
        self.inode.ctime = view.now();
        self.close_with_times(view);
    }

    /// Stores the inode, with its times as they are.
    pub(super) fn close_with_times(mut self, view: &mut View<'_>) {
        self.inode.allocated_bytes = self.inode.allocated_bytes.saturating_add_signed(self.allocated);
        view.count(0, self.allocated);
        view.put(Key::Inode(self.ino), self.inode.encode());
    }
}

/// Replaces a range of a file by a stored range of `len_bytes`, and extends the file to its end.
///
/// # Errors
/// [`Stop::Missing`]; `Stale` if there is no such inode; `TooLarge`.
pub(crate) fn write(view: &mut View<'_>, ino: u64, offset_bytes: u64, stored: &Stored) -> Result<(), Stop> {
    let len_bytes = u64::from(stored.stored_len - stored.skip);
    let end = super::end_of(offset_bytes, len_bytes)?;
    let mut file = File::open(view, ino)?;
    let parts = FileRange { at: offset_bytes, end };
    if file.has_chunks() {
        let keys: Vec<Key> = parts.chunks().map(|(index, _)| Key::Chunk { ino, index }).collect();
        view.expect(&keys)?;
    }
    for (index, part) in parts.chunks() {
        let mut chunk = file.chunk(view, index)?;
        let old = chunk.take(part.start, part.end);
        file.lost(view, &old);
        let from = (index * CHUNK_BYTES + u64::from(part.start) - offset_bytes) as u32;
        let len = part.end - part.start;
        let new = Extent { at: part.start, len, source: Source::Segment(stored.part(from, len)) };
        file.gained(view, &new);
        chunk.insert(new);
        file.put(view, index, &chunk);
    }
    file.inode.size_bytes = file.inode.size_bytes.max(end);
    file.close(view);
    Ok(())
}
