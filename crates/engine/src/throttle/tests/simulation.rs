//! A device, a flusher and writers, on a clock with steps of one millisecond. Fully deterministic.
//!
//! The device writes units of 1 MiB one after the other. Each wb keeps a few in flight while it writes in the
//! background. Writers take turns at memory speed, one request each, and pause as the throttle says.

use std::collections::VecDeque;

use super::super::*;

const UNIT_PAGES: u64 = 256;
/// Units of one wb in flight.
const DEPTH: u64 = 8;
/// The most pages that all writers together can copy in a millisecond: 16 GiB/s.
const COPIED_PAGES_PER_MS: u64 = 4096;
const STAT_ERROR_PAGES: u64 = 96;

/// The kernel's defaults.
pub(super) const RATIOS: DirtyRatios = DirtyRatios { dirty_percent: 20, background_percent: 10 };

/// A dirty domain and what it holds.
pub(super) struct Domain {
    domain: WbDomain,
    pub(super) thresholds: Thresholds,
    dirty: u64,
    writeback: u64,
}

impl Domain {
    fn new(thresholds: Thresholds) -> Self {
        Self { domain: WbDomain::new(), thresholds, dirty: 0, writeback: 0 }
    }

    fn held(&self) -> u64 {
        self.dirty + self.writeback
    }

    /// Begins to write `pages` back.
    fn write(&mut self, pages: u64) {
        self.dirty -= pages;
        self.writeback += pages;
    }

    fn sample(&self, completions: &FpropLocal, wb: &Wb, mode: LimitMode, now_ms: u64) -> DomainSample {
        let limits = self.domain.wb_limits(completions, self.thresholds, self.held(), mode, now_ms);
        DomainSample {
            thresholds: self.thresholds,
            dirty_pages: self.dirty,
            writeback_pages: self.writeback,
            dirty_limit_pages: limits.dirty_limit_pages,
            share: limits.share,
            wb_dirty_pages: wb.dirty + wb.writeback,
        }
    }
}

/// A wb of a tenant, or of none.
pub(super) struct Wb {
    device: usize,
    completions: FpropLocal,
    /// The domains of its tenant and of those above, the nearest first, and its counters there.
    memcgs: Vec<(usize, FpropLocal)>,
    pub(super) rates: WbRates,
    dirty: u64,
    writeback: u64,
    dirtied: u64,
    written: u64,
    is_writing: bool,
    dirty_exceeded: bool,
    /// Unsettled pages of writers that ended.
    leaked: u64,
}

pub(super) struct Writer {
    wb: usize,
    dirtier: Dirtier,
    request_pages: u64,
    /// The writer's own rate; `None` for as fast as it can.
    pub(super) pages_per_s: Option<u64>,
    /// Whether each request comes from a new program.
    pub(super) is_short_lived: bool,
    wake_ms: u64,
    must_retry: bool,
    pub(super) dirtied: u64,
    pub(super) paused_ms: u64,
}

struct Device {
    pages_per_s: u64,
    /// Thousandths of a page of unused write capacity.
    credit: u64,
    in_flight: VecDeque<(usize, u64)>,
    written: u64,
}

/// Least and most pages that a domain or a wb held at the end of a millisecond.
#[derive(Copy, Clone, Debug)]
pub(super) struct Range {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Range {
    const EMPTY: Range = Range { min: u64::MAX, max: 0 };

    fn take(&mut self, held: u64) {
        (self.min, self.max) = (self.min.min(held), self.max.max(held));
    }
}

pub(super) struct Simulation {
    now_ms: u64,
    pub(super) global: Domain,
    /// Those of tenants.
    pub(super) memcgs: Vec<Domain>,
    pub(super) wbs: Vec<Wb>,
    pub(super) writers: Vec<Writer>,
    devices: Vec<Device>,
    mode: LimitMode,
    /// Since the last [`measure`](Self::measure).
    since_ms: u64,
    pub(super) held: Range,
    pub(super) wb_held: Vec<Range>,
    pub(super) memcg_held: Vec<Range>,
}

impl Simulation {
    pub(super) fn new(thresholds: Thresholds, mode: LimitMode) -> Self {
        Self {
            now_ms: 0,
            global: Domain::new(thresholds),
            memcgs: Vec::new(),
            wbs: Vec::new(),
            writers: Vec::new(),
            devices: Vec::new(),
            mode,
            since_ms: 0,
            held: Range::EMPTY,
            wb_held: Vec::new(),
            memcg_held: Vec::new(),
        }
    }

    pub(super) fn device(&mut self, pages_per_s: u64) -> usize {
        self.devices.push(Device { pages_per_s, credit: 0, in_flight: VecDeque::new(), written: 0 });
        self.devices.len() - 1
    }

    pub(super) fn set_speed(&mut self, device: usize, pages_per_s: u64) {
        self.devices[device].pages_per_s = pages_per_s;
    }

    /// Adds a tenant.
    pub(super) fn memcg(&mut self, thresholds: Thresholds) -> usize {
        self.memcgs.push(Domain::new(thresholds));
        self.memcg_held.push(Range::EMPTY);
        self.memcgs.len() - 1
    }

    /// Adds a wb of the first of `memcgs`, each of which is below the next.
    pub(super) fn wb(&mut self, device: usize, memcgs: &[usize]) -> usize {
        self.wbs.push(Wb {
            device,
            completions: FpropLocal::new(),
            memcgs: memcgs.iter().map(|memcg| (*memcg, FpropLocal::new())).collect(),
            rates: WbRates::new(self.now_ms),
            dirty: 0,
            writeback: 0,
            dirtied: 0,
            written: 0,
            is_writing: false,
            dirty_exceeded: false,
            leaked: 0,
        });
        self.wb_held.push(Range::EMPTY);
        self.wbs.len() - 1
    }

    pub(super) fn writer(&mut self, wb: usize, request_pages: u64, pages_per_s: Option<u64>) -> usize {
        self.writers.push(Writer {
            wb,
            dirtier: Dirtier::new(),
            request_pages,
            pages_per_s,
            is_short_lived: false,
            wake_ms: 0,
            must_retry: false,
            dirtied: 0,
            paused_ms: 0,
        });
        self.writers.len() - 1
    }

    /// Changes a tenant's limit.
    pub(super) fn resize(&mut self, memcg: usize, thresholds: Thresholds) {
        let memcg = &mut self.memcgs[memcg];
        memcg.thresholds = thresholds;
        memcg.domain.resized();
    }

    pub(super) fn remove_writers(&mut self, left: usize) {
        self.writers.truncate(left);
    }

    pub(super) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 1000 {
            self.now_ms += 1;
            for device in 0..self.devices.len() {
                self.complete(device);
            }
            for wb in 0..self.wbs.len() {
                self.flush(wb);
            }
            self.write();
            self.held.take(self.global.held());
            for (range, wb) in self.wb_held.iter_mut().zip(&self.wbs) {
                range.take(wb.dirty + wb.writeback);
            }
            for (range, memcg) in self.memcg_held.iter_mut().zip(&self.memcgs) {
                range.take(memcg.held());
            }
        }
    }

    /// Resets the measurements, then measures for `seconds`.
    pub(super) fn measure(&mut self, seconds: u64) {
        self.writers.iter_mut().for_each(|writer| (writer.dirtied, writer.paused_ms) = (0, 0));
        self.devices.iter_mut().for_each(|device| device.written = 0);
        self.held = Range::EMPTY;
        self.wb_held.fill(Range::EMPTY);
        self.memcg_held.fill(Range::EMPTY);
        self.since_ms = self.now_ms;
        self.run(seconds);
    }

    /// Rates of the writers since `measure` began, in pages per second.
    pub(super) fn rates(&self) -> Vec<u64> {
        let ms = self.now_ms - self.since_ms;
        self.writers.iter().map(|writer| writer.dirtied * 1000 / ms).collect()
    }

    /// Utilisation of a device since `measure` began, in percent.
    pub(super) fn percent_used(&self, device: usize) -> u64 {
        let device = &self.devices[device];
        device.written * 100 * 1000 / (device.pages_per_s * (self.now_ms - self.since_ms))
    }

    /// Lets the device write for a millisecond.
    fn complete(&mut self, device: usize) {
        let device = &mut self.devices[device];
        device.credit += device.pages_per_s;
        while let Some((wb, pages)) = device.in_flight.front().copied().filter(|(_, n)| n * 1000 <= device.credit) {
            device.in_flight.pop_front();
            device.credit -= pages * 1000;
            device.written += pages;
            let wb = &mut self.wbs[wb];
            wb.writeback -= pages;
            wb.written += pages;
            self.global.writeback -= pages;
            self.global.domain.completed(&wb.completions, pages, self.now_ms);
            for (memcg, completions) in &wb.memcgs {
                let memcg = &mut self.memcgs[*memcg];
                memcg.writeback -= pages;
                memcg.domain.completed(completions, pages, self.now_ms);
            }
            wb.rates.bandwidth.update(wb.written, self.now_ms);
        }
        if device.in_flight.is_empty() {
            device.credit = 0;
        }
    }

    fn flush(&mut self, index: usize) {
        let wb = &mut self.wbs[index];
        while wb.is_writing && wb.dirty > 0 && wb.writeback + UNIT_PAGES <= DEPTH * UNIT_PAGES {
            let over = |domain: &Domain, completions| {
                domain.domain.is_over_background(
                    completions,
                    domain.thresholds,
                    domain.dirty,
                    wb.dirty,
                    self.mode,
                    self.now_ms,
                )
            };
            wb.is_writing = over(&self.global, &wb.completions)
                || wb.memcgs.iter().any(|(memcg, completions)| over(&self.memcgs[*memcg], completions));
            if !wb.is_writing {
                return;
            }
            if wb.writeback == 0 {
                wb.rates.bandwidth.write_starts(wb.written, self.now_ms);
            }
            let pages = wb.dirty.min(UNIT_PAGES);
            self.global.write(pages);
            wb.memcgs.iter().for_each(|(memcg, _)| self.memcgs[*memcg].write(pages));
            wb.dirty -= pages;
            wb.writeback += pages;
            self.devices[wb.device].in_flight.push_back((index, pages));
        }
    }

    /// Writers take turns, one request each, until all are paused or the memory bandwidth of this millisecond is used
    /// up.
    fn write(&mut self) {
        let mut copied = 0;
        let first = self.now_ms as usize;
        loop {
            let before = copied;
            for turn in 0..self.writers.len() {
                let writer = (first + turn) % self.writers.len();
                if copied < COPIED_PAGES_PER_MS && self.writers[writer].wake_ms <= self.now_ms {
                    copied += self.turn(writer);
                }
            }
            if copied == before || copied >= COPIED_PAGES_PER_MS {
                return;
            }
        }
    }

    /// Runs a writer's turn. Returns the number of pages it copied.
    fn turn(&mut self, index: usize) -> u64 {
        let writer = &mut self.writers[index];
        let wb = &mut self.wbs[writer.wb];
        let mut pages = 0;
        if !std::mem::take(&mut writer.must_retry) {
            pages = writer.request_pages;
            writer.dirtied += pages;
            wb.dirtied += pages;
            wb.dirty += pages;
            self.global.dirty += pages;
            wb.memcgs.iter().for_each(|(memcg, _)| self.memcgs[*memcg].dirty += pages);
            if let Some(pages_per_s) = writer.pages_per_s {
                writer.wake_ms = self.now_ms + pages * 1000 / pages_per_s;
            }
            if writer.is_short_lived {
                wb.leaked += std::mem::replace(&mut writer.dirtier, Dirtier::new()).close();
            }
            if !writer.dirtier.dirtied(pages + std::mem::take(&mut wb.leaked), wb.dirty_exceeded) {
                return pages;
            }
        }
        let input = Input {
            global: self.global.sample(&wb.completions, wb, self.mode, self.now_ms),
            memcgs: std::array::from_fn(|level| {
                let (memcg, completions) = wb.memcgs.get(level)?;
                Some(self.memcgs[*memcg].sample(completions, wb, self.mode, self.now_ms))
            }),
            mode: self.mode,
            dirtied_pages: wb.dirtied,
            written_pages: wb.written,
            stat_error_pages: STAT_ERROR_PAGES,
        };
        let verdict = balance(&input, &mut wb.rates, &mut writer.dirtier, self.now_ms);
        wb.is_writing |= verdict.start_background;
        wb.dirty_exceeded = verdict.dirty_exceeded;
        let (pause, must_retry) = match verdict.decision {
            Pause::None => return pages,
            Pause::For(pause) => (pause, false),
            Pause::RetryAfter(pause) => (pause, true),
        };
        let pause_ms = u64::try_from(pause.as_millis()).expect("at most 200 ms");
        writer.paused_ms += pause_ms;
        writer.wake_ms = writer.wake_ms.max(self.now_ms + pause_ms);
        writer.must_retry = must_retry;
        pages
    }
}
