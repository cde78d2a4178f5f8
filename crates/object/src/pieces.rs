//! Bytes in pieces, as an answer of a store brings them. Joining the pieces would copy each byte once more.

use std::ops::Range;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{GetResult, GetResultPayload, Result};

/// See the [module documentation](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces(Vec<Bytes>);

impl Pieces {
    /// The body of an answer.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn of(answer: GetResult) -> Result<Self> {
        match answer.payload {
            GetResultPayload::Stream(pieces) => pieces.try_collect().await.map(Self),
            // A file would come in many small pieces.
            GetResultPayload::File(..) => answer.bytes().await.map(Self::from),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// The pieces of a range.
    ///
    /// # Panics
    /// The range ends behind the last piece.
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        let (mut pieces, mut at) = (Vec::new(), 0);
        for piece in &self.0 {
            let (start, end) = (range.start.max(at), range.end.min(at + piece.len()));
            if start < end {
                pieces.push(piece.slice(start - at..end - at));
            }
            at += piece.len();
        }
        assert!(range.end <= at, "{range:?} of {at} bytes");
        Self(pieces)
    }

    /// The bytes as a single piece, copied if there are several.
    pub(crate) fn joined(mut self) -> Bytes {
        match self.0.len() {
            0 | 1 => self.0.pop().unwrap_or_default(),
            _ => self.0.concat().into(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Bytes::as_ref)
    }

    /// Each piece with its offset, if the first one begins at `at`.
    pub(crate) fn placed(self, mut at: usize) -> impl Iterator<Item = (usize, Bytes)> {
        self.0.into_iter().map(move |piece| {
            let place = at;
            at += piece.len();
            (place, piece)
        })
    }
}

impl From<Bytes> for Pieces {
    fn from(bytes: Bytes) -> Self {
        Self(vec![bytes])
    }
}

impl IntoIterator for Pieces {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_places_do_not_depend_on_the_pieces() {
        let whole: Vec<u8> = (0..100).collect();
        for len in [1, 7, 99, 100, 1000] {
            let pieces = Pieces(whole.chunks(len).map(Bytes::copy_from_slice).collect());
            assert_eq!(pieces.len(), 100);
            for range in [0..100, 0..0, 6..8, 7..14, 13..100, 100..100] {
                let mut found = [0; 100];
                for (at, piece) in pieces.slice(range.clone()).placed(range.start) {
                    found[at..at + piece.len()].copy_from_slice(&piece);
                }
                assert_eq!(found[range.clone()], whole[range.clone()], "{range:?} in pieces of {len}");
                assert_eq!(pieces.slice(range.clone()).iter().flatten().count(), range.len());
            }
        }
    }
}
