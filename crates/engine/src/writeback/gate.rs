//! The device gate, shared by the volumes on one device: keeps background writes out of the way of syncs.
//!
//! While a sync is in flight on the device, no background unit of any of its volumes is started. For a second
//! afterwards background units are small, so that the next sync finds at most 1 MiB ahead of it. An uninterrupted
//! stream of syncs cannot starve write-back: a unit held for `gate_hold` is let through. Nor can a hung sync: after a
//! second it is ignored.
//!
//! # Kernel counterpart
//! None. The nearest is `wbt`, which does this below the file system by measured latency.

use std::collections::HashMap;
use std::time::Duration;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::{
    Arc, Weak,
    atomic::{AtomicU32, Ordering},
};

use crate::lock_order::LEAVES;
use crate::units::Tick;
use crate::writeback::wb::BdiWriteback;

/// How long after a sync background units stay small.
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// Size of a background unit during and shortly after syncs.
const SMALL_UNIT_BYTES: u32 = 256 << 10;
/// Bytes of background units in flight on the device during and shortly after syncs (promise P7).
const SMALL_IN_FLIGHT_BYTES: u64 = 1 << 20;

struct State {
    syncs: u32,
    last_sync: Option<Tick>,
    /// When background units began to be held without one let through.
    held_since: Option<Tick>,
    background_bytes: u64,
    held: Vec<Arc<BdiWriteback>>,
}

/// See the [module documentation](self).
pub(crate) struct DeviceGate {
    state: Mutex<State>,
    /// Nonzero during and shortly after syncs; the fast path without the lock.
    recent: AtomicU32,
}

/// The gates of all devices that volumes are on.
pub(crate) struct DeviceGates(Mutex<HashMap<u64, Weak<DeviceGate>>>);

impl DeviceGates {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LEAVES, HashMap::new()))
    }

    /// The gate of `device`, shared by its volumes. A volume without a device has a gate of its own.
    pub(crate) fn of(&self, device: Option<u64>) -> Arc<DeviceGate> {
        let Some(device) = device else { return DeviceGate::new() };
        let mut gates = self.0.lock();
        gates.retain(|_, gate| gate.strong_count() != 0);
        if let Some(gate) = gates.get(&device).and_then(Weak::upgrade) {
            return gate;
        }
        let gate = DeviceGate::new();
        gates.insert(device, Arc::downgrade(&gate));
        gate
    }
}

/// Whether a flusher may start background units now.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Pass {
    /// Start units of up to this many bytes.
    Open(u32),
    /// Wait: the flusher is woken when a sync or a unit ends, and otherwise checks again at this time.
    Held(Tick),
}

impl DeviceGate {
    pub(crate) fn new() -> Arc<Self> {
        let state = State { syncs: 0, last_sync: None, held_since: None, background_bytes: 0, held: Vec::new() };
        Arc::new(Self { state: Mutex::new(LEAVES, state), recent: AtomicU32::new(0) })
    }

    /// Registers a sync on the device. It ends when the guard is dropped.
    pub(crate) fn sync(self: &Arc<Self>, now: Tick) -> SyncGuard {
        let mut state = self.state.lock();
        state.syncs += 1;
        state.last_sync = Some(now);
        self.recent.store(1, Ordering::Relaxed);
        SyncGuard(Arc::clone(self))
    }

    /// Whether `wb` may start a background unit at `now`.
    pub(crate) fn pass(&self, wb: &Arc<BdiWriteback>, now: Tick, hold: Duration, unit_bytes: u32) -> Pass {
        if self.recent.load(Ordering::Relaxed) == 0 {
            return Pass::Open(unit_bytes);
        }
        let mut state = self.state.lock();
        let quiet = state.last_sync.is_none_or(|last| now.since(last) >= QUIET_AFTER);
        if quiet {
            // Waiting does not help a sync that has been in flight for so long; it may be hung.
            if state.syncs == 0 {
                self.recent.store(0, Ordering::Relaxed);
            }
            return Pass::Open(unit_bytes);
        }
        let small = unit_bytes.min(SMALL_UNIT_BYTES);
        let crowded = state.background_bytes + u64::from(small) > SMALL_IN_FLIGHT_BYTES;
        if state.syncs == 0 && !crowded {
            state.held_since = None;
            return Pass::Open(small);
        }
        let since = *state.held_since.get_or_insert(now);
        if !crowded && now.since(since) >= hold {
            state.held_since = None;
            return Pass::Open(small);
        }
        if !state.held.iter().any(|held| Arc::ptr_eq(held, wb)) {
            state.held.push(Arc::clone(wb));
        }
        Pass::Held((since + hold).max(now + hold / 4))
    }

    /// Records that a background unit of `bytes` was started.
    pub(crate) fn unit_started(&self, bytes: u64) {
        self.state.lock().background_bytes += bytes;
    }

    /// Records the end of a background unit, and wakes the wbs that are held.
    pub(crate) fn unit_ended(&self, bytes: u64) {
        let held = {
            let mut state = self.state.lock();
            state.background_bytes -= bytes;
            if state.syncs == 0 { std::mem::take(&mut state.held) } else { Vec::new() }
        };
        held.iter().for_each(BdiWriteback::wake);
    }
}

/// A sync in flight on the device.
pub(crate) struct SyncGuard(Arc<DeviceGate>);

impl Drop for SyncGuard {
    fn drop(&mut self) {
        let held = {
            let mut state = self.0.state.lock();
            state.syncs -= 1;
            if state.syncs != 0 {
                return;
            }
            state.held_since = None;
            std::mem::take(&mut state.held)
        };
        held.iter().for_each(BdiWriteback::wake);
    }
}
