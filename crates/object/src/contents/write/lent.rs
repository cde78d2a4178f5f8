//! Units whose bytes are lent to requests.

use bytes::Bytes;
use parking_lot::Mutex;
use slackwater::BackendError;
use slackwater::backend::WriteUnit;
use slackwater_sync::shim::Arc;

/// Slices of a unit up to this number are lent. A unit of more, smaller ones is copied: sending them one by one costs
/// more than the copy.
const SLICES_MAX: usize = 16;

/// A unit that is answered when the last request has let go of its bytes (U2).
pub(super) struct Lent(Arc<Shared>);

struct Shared {
    unit: Option<WriteUnit>,
    /// `None` until [`Lent::complete`].
    answer: Mutex<Option<Result<usize, BackendError>>>,
}

/// A slice of a unit.
struct Slice {
    shared: Arc<Shared>,
    number: usize,
}

impl Lent {
    pub(super) fn new(unit: WriteUnit) -> Self {
        Self(Arc::new(Shared { unit: Some(unit), answer: Mutex::new(None) }))
    }

    /// The bytes of the unit, in order.
    pub(super) fn bytes(&self) -> Vec<Bytes> {
        let Some(unit) = &self.0.unit else { return Vec::new() };
        let count = unit.slices().count();
        if count <= SLICES_MAX {
            let slice = |number| Bytes::from_owner(Slice { shared: Arc::clone(&self.0), number });
            return (0..count).map(slice).collect();
        }
        let mut copy = Vec::with_capacity(unit.len_bytes());
        unit.slices().for_each(|slice| copy.extend_from_slice(slice));
        vec![copy.into()]
    }

    /// Answers the unit, as soon as nothing refers to its bytes.
    pub(super) fn complete(self, answer: Result<usize, BackendError>) {
        *self.0.answer.lock() = Some(answer);
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self.shared.unit.as_ref().and_then(|unit| unit.slices().nth(self.number)).unwrap_or_default()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Without an answer the unit is dropped, and so abandoned.
        if let (Some(unit), Some(answer)) = (self.unit.take(), self.answer.get_mut().take()) {
            unit.complete(answer);
        }
    }
}
