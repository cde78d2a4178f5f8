//! The device gate, shared by the volumes on one device: keeps background writes out of the way of syncs.
//!
//! While a sync is in flight on the device, no background unit of any of its volumes is started. For a while
//! afterwards background units are small and few, so that the next sync finds little ahead of it. This lasts for a
//! second, or longer if syncs come regularly but less often than that. An uninterrupted stream of syncs cannot starve
//! write-back: a unit held for `gate_hold` is let through. Nor can a long or hung sync: it holds units for a second.
//!
//! A sync flushes the cache of the device. So it also waits for units that ended before it began and are still in this
//! cache. If the backend can, it therefore [flushes](crate::backend::WriteUnit::flushing) each of these small units.
//!
//! # Invariants
//! D1. During and shortly after syncs, the background units in flight on the device have at most
//!     [`Speed::in_flight_max`] bytes together (promise P7). Each unit reserves its bytes before its pages are gathered,
//!     under the lock that compares them with the limit.
//! D2. A wb that was refused is on `held`, and is woken when a unit or the last sync ends. It is refused only while one
//!     of these is in flight.
//!
//! # Kernel counterpart
//! None. The nearest is `wbt`, which does this below the file system by measured latency.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::{
    Arc, Weak,
    atomic::{AtomicU32, Ordering},
};

use crate::backend::Limits;
use crate::lock_order::LEAVES;
use crate::units::{PAGE_BYTES, Tick};
use crate::writeback::wb::BdiWriteback;

/// How long after a sync background units stay small. It is lengthened by syncs that come later, but not much.
const QUIET_AFTER: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(8);
/// The units that share the bytes in flight.
const UNITS_IN_FLIGHT: u64 = 4;
/// The time over which the device's speed is measured.
const SPEED_WINDOW: Duration = Duration::from_millis(50);

/// The most work of other volumes that a sync finds ahead of it.
struct Ahead {
    /// Work of the device.
    time: Duration,
    /// The least and the most bytes of background units in flight, whatever its speed: with less, a unit is so small that
    /// its fixed cost counts; more makes a fast device no faster.
    bytes: RangeInclusive<u64>,
    /// The least bytes of a unit.
    unit_bytes: u64,
}

/// The limit for units that may stay in the cache of the device.
const CACHED: Ahead = Ahead { time: Duration::from_millis(2), bytes: 1 << 20..=8 << 20, unit_bytes: 256 << 10 };
/// The limit for units that are flushed, which is part of their time in flight.
const FLUSHED: Ahead = Ahead { time: Duration::from_micros(500), bytes: 128 << 10..=8 << 20, unit_bytes: 128 << 10 };

struct State {
    syncs: u32,
    last_sync: Option<Tick>,
    /// How long after the last sync the limits hold.
    quiet_after: Duration,
    /// When background units began to be held without one let through.
    held_since: Option<Tick>,
    background_bytes: u64,
    speed: Speed,
    held: Vec<Arc<BdiWriteback>>,
}

/// The speed at which the device writes background units, of those that are flushed if the backend can flush them.
#[derive(Default)]
struct Speed {
    /// The mean of the last windows; 0 before the first one.
    bytes_per_s: u64,
    /// Written in the current window.
    bytes: u64,
    /// How long units were in flight in it, up to `busy_until`.
    busy: Duration,
    busy_until: Tick,
}

impl Speed {
    /// The most bytes of background units in flight during and shortly after syncs (D1).
    fn in_flight_max(&self, ahead: &Ahead) -> u64 {
        let bytes = u128::from(self.bytes_per_s) * ahead.time.as_nanos() / Duration::from_secs(1).as_nanos();
        (bytes as u64).clamp(*ahead.bytes.start(), *ahead.bytes.end())
    }

    /// The device, idle before, begins to write at `now`.
    fn begin(&mut self, now: Tick) {
        self.busy_until = now;
    }

    /// The device has written `bytes` at `now`.
    fn written(&mut self, now: Tick, bytes: u64) {
        self.bytes += bytes;
        self.busy += now.since(self.busy_until);
        self.busy_until = self.busy_until.max(now);
        if self.busy < SPEED_WINDOW {
            return;
        }
        let seen = (u128::from(self.bytes) * Duration::from_secs(1).as_nanos() / self.busy.as_nanos()) as u64;
        self.bytes_per_s = if self.bytes_per_s == 0 { seen } else { self.bytes_per_s.midpoint(seen) };
        (self.bytes, self.busy) = (0, Duration::ZERO);
    }
}

/// See the [module documentation](self).
pub(crate) struct DeviceGate {
    /// Whether the backends of the device flush units.
    flushes: bool,
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

    /// The gate of the device that `limits` name, shared by its volumes. A volume without a device has a gate of its own.
    pub(crate) fn of(&self, limits: &Limits) -> Arc<DeviceGate> {
        let Some(device) = limits.device else { return DeviceGate::new(limits.flushes) };
        let mut gates = self.0.lock();
        gates.retain(|_, gate| gate.strong_count() != 0);
        if let Some(gate) = gates.get(&device).and_then(Weak::upgrade) {
            return gate;
        }
        let gate = DeviceGate::new(limits.flushes);
        gates.insert(device, Arc::downgrade(&gate));
        gate
    }
}

/// Whether a flusher may start background units now.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Pass {
    /// Start units of up to `unit_bytes` that have `bytes` together, `flushing` them or not.
    Open { unit_bytes: u32, bytes: u64, flushing: bool },
    /// Wait: the flusher is woken when a sync or a unit ends, and otherwise checks again at this time.
    Held(Tick),
}

impl Pass {
    /// Start any number of units of up to `unit_bytes`.
    pub(crate) fn unlimited(unit_bytes: u32) -> Self {
        Self::Open { unit_bytes, bytes: u64::MAX, flushing: false }
    }
}

impl DeviceGate {
    /// The gate of a device whose backends flush units if `flushes`.
    pub(crate) fn new(flushes: bool) -> Arc<Self> {
        let state = State {
            syncs: 0,
            last_sync: None,
            quiet_after: *QUIET_AFTER.start(),
            held_since: None,
            background_bytes: 0,
            speed: Speed::default(),
            held: Vec::new(),
        };
        Arc::new(Self { flushes, state: Mutex::new(LEAVES, state), recent: AtomicU32::new(0) })
    }

    fn ahead(&self) -> &'static Ahead {
        if self.flushes { &FLUSHED } else { &CACHED }
    }

    /// Registers a sync on the device. It ends when the guard is dropped.
    pub(crate) fn sync(self: &Arc<Self>, now: Tick) -> SyncGuard {
        let mut state = self.state.lock();
        state.syncs += 1;
        state.note_sync(now);
        self.recent.store(1, Ordering::Relaxed);
        SyncGuard(Arc::clone(self))
    }

    /// Whether `wb` may start background units at `now`.
    pub(crate) fn pass(&self, wb: &Arc<BdiWriteback>, now: Tick, hold: Duration, unit_bytes: u32) -> Pass {
        let unlimited = Pass::unlimited(unit_bytes);
        if self.recent.load(Ordering::Relaxed) == 0 {
            return unlimited;
        }
        let mut state = self.state.lock();
        if state.is_quiet(now) {
            if state.syncs == 0 {
                self.recent.store(0, Ordering::Relaxed);
            }
            return unlimited;
        }
        let most = state.speed.in_flight_max(self.ahead());
        let small = (most / UNITS_IN_FLIGHT).max(self.ahead().unit_bytes) as u32 & !(PAGE_BYTES as u32 - 1);
        let small = unit_bytes.min(small);
        let is_crowded = state.background_bytes + u64::from(small) > most;
        if !state.is_holding(now) && !is_crowded {
            state.held_since = None;
            return Pass::Open { unit_bytes: small, bytes: most, flushing: self.flushes };
        }
        let since = *state.held_since.get_or_insert(now);
        if !is_crowded && now.since(since) >= hold {
            state.held_since = None;
            return Pass::Open { unit_bytes: small, bytes: small.into(), flushing: self.flushes };
        }
        state.hold(wb);
        Pass::Held((since + hold).max(now + hold / 4))
    }

    /// Reserves `bytes` for a unit of `wb` (D1). If this is refused, which only happens with `gated`, `wb` is woken when
    /// it may try again.
    pub(crate) fn start_unit(&self, wb: &Arc<BdiWriteback>, now: Tick, bytes: u64, gated: bool) -> bool {
        let mut state = self.state.lock();
        let sum = state.background_bytes + bytes;
        let is_limited = gated && self.recent.load(Ordering::Relaxed) != 0 && !state.is_quiet(now);
        if is_limited && state.background_bytes != 0 && sum > state.speed.in_flight_max(self.ahead()) {
            state.hold(wb);
            return false;
        }
        if state.background_bytes == 0 {
            state.speed.begin(now);
        }
        state.background_bytes = sum;
        true
    }

    /// Returns at `now` `bytes` that a unit has reserved and does not need: none, if it is as large as it may be.
    pub(crate) fn shrink_unit(&self, now: Tick, bytes: u64) {
        if bytes != 0 {
            self.end(now, bytes, |_| {});
        }
    }

    /// Records at `now` the end of a background unit of `bytes`, which was `flushing` or not.
    pub(crate) fn end_unit(&self, now: Tick, bytes: u64, flushing: bool) {
        let counts = flushing == self.flushes;
        self.end(now, bytes, |speed| if counts { speed.written(now, bytes) } else { speed.begin(now) });
    }

    /// Returns `bytes`, and wakes the wbs that are held (D2).
    fn end(&self, now: Tick, bytes: u64, note: impl FnOnce(&mut Speed)) {
        let held = {
            let mut state = self.state.lock();
            state.background_bytes -= bytes;
            note(&mut state.speed);
            if state.is_holding(now) { Vec::new() } else { std::mem::take(&mut state.held) }
        };
        held.iter().for_each(BdiWriteback::wake);
    }
}

impl State {
    /// A pause between syncs that is a little too long makes the limits hold for twice as long.
    fn note_sync(&mut self, now: Tick) {
        let pause = self.last_sync.replace(now).map_or(Duration::MAX, |last| now.since(last));
        if pause > *QUIET_AFTER.end() {
            self.quiet_after = *QUIET_AFTER.start();
        } else if pause >= self.quiet_after {
            self.quiet_after = (pause * 2).min(*QUIET_AFTER.end());
        }
    }

    /// Whether a sync in flight holds units back. Waiting does not help one that has been in flight for long.
    fn is_holding(&self, now: Tick) -> bool {
        self.syncs != 0 && self.last_sync.is_some_and(|last| now.since(last) < *QUIET_AFTER.start())
    }

    /// Whether the last sync is so long ago that the next one is not expected soon.
    fn is_quiet(&self, now: Tick) -> bool {
        self.last_sync.is_none_or(|last| now.since(last) >= self.quiet_after)
    }

    fn hold(&mut self, wb: &Arc<BdiWriteback>) {
        if !self.held.iter().any(|held| Arc::ptr_eq(held, wb)) {
            self.held.push(Arc::clone(wb));
        }
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
