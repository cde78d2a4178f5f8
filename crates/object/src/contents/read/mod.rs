//! Reading: from extents to frames.
//!
//! The extents of a unit are looked up in the tree. Bytes that are in memory are copied at once; the others are fetched
//! by ranged requests, all at the same time, verified, and copied by the runtime's threads.
//!
//! # Invariants
//! R1. No byte of a segment that a request brought reaches a frame before the checksum of its block was verified.
//! R2. Every byte of a unit before the end of its file is written: with stored bytes, or with zeroes.

mod fetch;
mod locate;
mod window;

use bytes::Bytes;
use futures::future::try_join_all;
use slackwater::BackendError;
use slackwater::backend::ReadUnit;
use slackwater_sync::shim::Arc;
use tokio::runtime::Handle;

use crate::contents::checksum;
use crate::format::CHECKSUM_BLOCK_BYTES;
use crate::pieces::Pieces;
use crate::segments::{Segments, damaged};
use crate::tree::Tree;

use fetch::Fetcher;
use locate::{Bytes as Found, Part, locate};
use window::Windows;

/// See the [module documentation](self).
pub(crate) struct Reader {
    tree: Arc<Tree>,
    runtime: Handle,
    fetcher: Arc<Fetcher>,
    windows: Windows,
}

impl Reader {
    pub(crate) fn new(tree: Arc<Tree>, segments: Segments, runtime: Handle) -> Arc<Self> {
        let fetcher = Fetcher::new(segments.clone(), runtime.clone());
        let windows = Windows::new(segments);
        Arc::new(Self { tree, runtime, fetcher, windows })
    }

    /// Fills a unit from the file `ino`, and completes it.
    ///
    /// # Blocking
    /// Never.
    pub(crate) fn read(self: &Arc<Self>, ino: u64, unit: ReadUnit) {
        let range = unit.offset_bytes()..unit.offset_bytes() + unit.len_bytes() as u64;
        let reader = Arc::clone(self);
        self.tree.submit(
            move |view| locate(view, ino, range.clone()),
            move |located| match located {
                Err(error) => unit.complete(Err(error)),
                Ok((len_bytes, parts)) if parts.iter().all(Part::is_in_memory) => {
                    fill(unit, len_bytes, parts.into_iter().filter_map(Part::in_memory));
                }
                Ok((len_bytes, parts)) => {
                    let runtime = reader.runtime.clone();
                    runtime.spawn(async move {
                        match try_join_all(parts.into_iter().map(|part| reader.bytes(ino, part))).await {
                            Ok(parts) => {
                                let placed = parts.into_iter().flat_map(|(at, pieces)| pieces.placed(at));
                                fill(unit, len_bytes, placed);
                            }
                            Err(error) => unit.complete(Err(error)),
                        }
                    });
                }
            },
        );
    }

    /// The bytes of a part of the file `ino`, verified.
    async fn bytes(&self, ino: u64, part: Part) -> Result<(usize, Pieces), BackendError> {
        let stored = match part.bytes {
            Found::InMemory(bytes) => return Ok((part.at, bytes.into())),
            Found::Stored(stored) => stored,
        };
        let range = stored.offset..stored.offset + stored.stored_len;
        let pieces = if stored.stored_len < CHECKSUM_BLOCK_BYTES {
            self.windows.get(stored.segment, range).await?.into()
        } else {
            self.fetcher.get(ino, stored.segment, range).await?
        };
        if let Some(block) = checksum::first_wrong(pieces.iter(), &stored.crc32c) {
            let at = stored.offset + block as u32 * CHECKSUM_BLOCK_BYTES;
            return Err(damaged(stored.segment, format_args!("wrong checksum of the block at byte {at}")));
        }
        let skip = stored.skip as usize;
        Ok((part.at, pieces.slice(skip..skip + part.len)))
    }
}

/// Copies pieces, which are in order, to their places in the unit, and zeroes the rest of its first `len_bytes` (R2).
fn fill(mut unit: ReadUnit, len_bytes: usize, pieces: impl Iterator<Item = (usize, Bytes)>) {
    let mut pieces = pieces.peekable();
    let mut at = 0;
    for slice in unit.slices_mut() {
        let mut slice = &mut slice[..];
        while !slice.is_empty() && at < len_bytes {
            let copied = match pieces.peek_mut() {
                Some((start, piece)) if *start <= at => {
                    let len = piece.len().min(slice.len());
                    slice[..len].copy_from_slice(&piece.split_to(len));
                    if piece.is_empty() {
                        pieces.next();
                    } else {
                        *start += len;
                    }
                    len
                }
                next => {
                    let end = next.map_or(len_bytes, |(start, _)| *start);
                    let len = (end - at).min(slice.len());
                    slice[..len].fill(0);
                    len
                }
            };
            at += copied;
            slice = &mut slice[copied..];
        }
    }
    unit.complete(Ok(len_bytes));
}
