//! How the time of an operation over the device is divided between the kernel, the source and this project.

use std::hint::black_box;
use std::time::Instant;

use super::access::{CREATE, PAGE, SEQUENTIAL, STAT_OF_SERVER, UNLINK};
use super::servers::{BARE, DISK, OURS};
use crate::harness::{Series, Stacks, Table, p50};

/// The parts of a bar.
const PARTS: [&str; 4] =
    ["round trips of a server that does nothing", "the same operation on the disk", "copying the data", "the rest"];
/// Pages that are copied to: more than the CPU's caches hold.
const PAGES: usize = 16_384;

/// An operation of the comparison.
struct Operation {
    name: &'static str,
    /// Requests that the caller waits for.
    requests: f64,
    /// The row with the rate, unless the operation is the small write.
    rate: Option<&'static str>,
}

const OPERATIONS: [Operation; 4] = [
    Operation { name: "4 KiB write", requests: 1.0, rate: None },
    Operation { name: "stat, forced", requests: 1.0, rate: Some(STAT_OF_SERVER) },
    // LOOKUP, GETATTR of the directory, CREATE and FLUSH.
    Operation { name: "create and close", requests: 4.0, rate: Some(CREATE) },
    // GETATTR of the directory and UNLINK.
    Operation { name: "unlink", requests: 2.0, rate: Some(UNLINK) },
];

/// The microseconds of each operation and their parts; no rows if something was not measured.
pub(crate) struct Budget(Vec<(&'static str, [f64; 4])>);

impl Budget {
    /// The budget from the medians of a comparison, and the time of a copy measured now. Client and server share one
    /// CPU.
    pub(crate) fn of(series: &Series) -> Self {
        Self::with(series, copy_us())
    }

    fn with(series: &Series, copy_us: f64) -> Self {
        let write = p50(SEQUENTIAL[0]);
        let us = |row: &str, subject| Some(1e6 / series.median(row, subject)?);
        let parts = |operation: &Operation| {
            let trips = operation.requests * series.median(&write, BARE)?;
            let (whole, disk, copy) = match operation.rate {
                None => (series.median(&write, OURS)?, 0.0, copy_us),
                // The server answers it from memory.
                Some(STAT_OF_SERVER) => (us(STAT_OF_SERVER, OURS)?, 0.0, 0.0),
                Some(rate) => (us(rate, OURS)?, us(rate, DISK)?, 0.0),
            };
            Some((operation.name, [trips, disk, copy, (whole - trips - disk - copy).max(0.0)]))
        };
        Self(OPERATIONS.iter().filter_map(parts).collect())
    }

    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new("Where the time goes over /dev/fuse, us", format!("| {} | sum", PARTS.join(" | ")));
        for (name, parts) in &self.0 {
            let sum = parts.iter().sum();
            table.row(*name).figures(parts.iter().copied().chain([sum]).map(Some));
        }
        table
    }

    /// `None` without rows.
    pub(crate) fn plot(&self) -> Option<Stacks> {
        let bars: Vec<_> = self.0.iter().map(|(name, parts)| ((*name).to_owned(), parts.to_vec())).collect();
        let title = "Where the time goes over /dev/fuse, microseconds".to_owned();
        (!bars.is_empty()).then(|| Stacks { title, parts: PARTS.to_vec(), bars })
    }
}

/// The time of copying a page to memory that is in no cache, in microseconds.
fn copy_us() -> f64 {
    let (from, mut to) = (vec![1_u8; PAGE], vec![0_u8; PAGE * PAGES]);
    let mut pass = || {
        let start = Instant::now();
        to.chunks_exact_mut(PAGE).for_each(|page| page.copy_from_slice(black_box(&from)));
        start.elapsed().as_secs_f64() * 1e6 / PAGES as f64
    };
    pass(); // faults the memory in
    (0..5).map(|_| pass()).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_time_of_the_operation() {
        let mut series = Series::default();
        assert!(Budget::with(&series, 1.0).plot().is_none());
        for (row, subject, value) in [
            (p50(SEQUENTIAL[0]), BARE, 5.0),
            (p50(SEQUENTIAL[0]), OURS, 7.0),
            (CREATE.to_owned(), OURS, 20_000.0),
            (CREATE.to_owned(), DISK, 100_000.0),
        ] {
            series.add(&row, subject, value);
        }
        let budget = Budget::with(&series, 0.5);
        assert_eq!(budget.0, [("4 KiB write", [5.0, 0.0, 0.5, 1.5]), ("create and close", [20.0, 10.0, 0.0, 20.0])]);
        assert_eq!(budget.plot().map(|plot| plot.bars.len()), Some(2));
    }

    #[test]
    fn a_copy_takes_time() {
        let us = copy_us();
        assert!(us > 0.0 && us < 1000.0, "{us}");
    }
}
