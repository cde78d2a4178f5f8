//! Sessions by token.

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::TRANSPORT;
use crate::session::Shared;

/// All sessions of a pool, kept alive until they end.
pub(super) struct Table {
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Slot {
    uses: u32,
    session: Option<Arc<Shared>>,
}

/// The slot of a token.
pub(super) const fn slot_of(token: u64) -> usize {
    token as u32 as usize
}

impl Table {
    pub(super) fn new() -> Self {
        Self { slots: Mutex::new(TRANSPORT, Slots::default()) }
    }

    pub(super) fn insert(&self, session: &Arc<Shared>) -> u64 {
        let mut table = self.slots.lock();
        let number = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Slot::default());
            table.slots.len() - 1
        });
        let slot = &mut table.slots[number];
        slot.uses = slot.uses.wrapping_add(1);
        slot.session = Some(session.clone());
        u64::from(slot.uses) << 32 | number as u64
    }

    pub(super) fn get(&self, token: u64) -> Option<Arc<Shared>> {
        let table = self.slots.lock();
        let slot = table.slots.get(slot_of(token))?;
        if u64::from(slot.uses) == token >> 32 { slot.session.clone() } else { None }
    }

    pub(super) fn remove(&self, token: u64) {
        let mut table = self.slots.lock();
        let number = slot_of(token);
        let Some(slot) = table.slots.get_mut(number) else { return };
        if u64::from(slot.uses) == token >> 32
            && let Some(session) = slot.session.take()
        {
            table.free.push(number);
            drop(table);
            drop(session);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Shared>> {
        self.slots.lock().slots.iter().filter_map(|slot| slot.session.clone()).collect()
    }
}
