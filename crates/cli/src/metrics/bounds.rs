//! Which volumes and tenants have their own series, and which are summed up as `other`.
//!
//! Those that hold the most have their own series. That set changes, so a sum of counters over the rest would go down
//! when one of them gets its own series or ends. Therefore the sums add the growth of each counter since the previous
//! scrape. For the same reason a label keeps the counts of earlier items with the same name, such as a cgroup that was
//! removed and created again, while one of them is left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use crate::metrics::catalogue::{Kind, Metric};

/// Volumes that have their own series.
pub(super) const VOLUMES_MAX: usize = 100;
/// Tenants that have their own series: on all volumes together, and on each volume.
pub(super) const TENANTS_MAX: usize = 50;

/// The label of the rest. An item with that name is part of the rest.
pub(super) const OTHER: &str = "other";

/// An item to count.
pub(super) struct Item<'a, K, T> {
    /// The identity, unique over all past and present items.
    pub(super) key: K,
    pub(super) label: &'a str,
    pub(super) held_bytes: u64,
    pub(super) of: &'a T,
}

/// A label and its values, in the order of the table.
pub(super) type Row = (String, Vec<Option<f64>>);

/// The state after the previous scrape, for one table.
#[derive(Debug)]
pub(super) struct Bounded<K> {
    seen: HashMap<K, Vec<Option<f64>>>,
    /// Counters by label.
    totals: BTreeMap<String, Vec<f64>>,
    /// Counters of the rest.
    other: Vec<f64>,
}

impl<K> Default for Bounded<K> {
    fn default() -> Self {
        Self { seen: HashMap::new(), totals: BTreeMap::new(), other: Vec::new() }
    }
}

/// The current values of one label, and the growth of its counters.
struct Sum {
    held_bytes: u64,
    gauges: Vec<Option<f64>>,
    grown: Vec<f64>,
}

impl Sum {
    fn new(metrics: usize) -> Self {
        Self { held_bytes: 0, gauges: vec![None; metrics], grown: vec![0.0; metrics] }
    }

    fn add<T>(&mut self, table: &[Metric<T>], now: &[Option<f64>], before: Option<&Vec<Option<f64>>>) {
        for (at, (metric, value)) in table.iter().zip(now).enumerate() {
            let Some(value) = *value else { continue };
            let gauge = &mut self.gauges[at];
            match metric.kind {
                Kind::Gauge => *gauge = Some(gauge.unwrap_or(0.0) + value),
                Kind::GaugeMax => *gauge = Some(gauge.unwrap_or(0.0).max(value)),
                Kind::Counter => {
                    let before = before.and_then(|before| before[at]).unwrap_or(0.0);
                    self.grown[at] += (value - before).max(0.0);
                }
            }
        }
    }

    fn join<T>(&mut self, table: &[Metric<T>], other: &Self) {
        self.add(table, &other.gauges, None);
        add_all(&mut self.grown, &other.grown);
    }
}

fn add_all(to: &mut [f64], more: &[f64]) {
    to.iter_mut().zip(more).for_each(|(to, more)| *to += more);
}

/// Takes counters from `totals` and the others from `gauges`.
fn values<T>(table: &[Metric<T>], gauges: &[Option<f64>], totals: &[f64]) -> Vec<Option<f64>> {
    let value = |(at, metric): (usize, &Metric<T>)| match metric.kind {
        Kind::Counter => Some(totals[at]),
        Kind::Gauge | Kind::GaugeMax => gauges[at],
    };
    table.iter().enumerate().map(value).collect()
}

impl<K: Eq + Hash> Bounded<K> {
    /// The rows for `items` in `table`: one for each of the `most` items that hold the most, and one for the rest if
    /// there is any.
    pub(super) fn rows<'a, T: 'a>(
        &mut self,
        table: &[Metric<T>],
        most: usize,
        items: impl IntoIterator<Item = Item<'a, K, T>>,
    ) -> Vec<Row> {
        let mut sums = BTreeMap::<&str, Sum>::new();
        let mut seen = HashMap::new();
        for Item { key, label, held_bytes, of } in items {
            let now: Vec<_> = table.iter().map(|metric| (metric.value)(of)).collect();
            let sum = sums.entry(label).or_insert_with(|| Sum::new(table.len()));
            sum.held_bytes += held_bytes;
            sum.add(table, &now, self.seen.get(&key));
            seen.insert(key, now);
        }
        self.seen = seen;
        self.totals.retain(|label, _| sums.contains_key(label.as_str()));
        for (label, sum) in &sums {
            match self.totals.get_mut(*label) {
                Some(totals) => add_all(totals, &sum.grown),
                None => drop(self.totals.insert((*label).to_owned(), sum.grown.clone())),
            }
        }

        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(label, sum)| (*label == OTHER, Reverse(sum.held_bytes)));
        let named = sums.iter().take(most).take_while(|(label, _)| *label != OTHER).count();
        let mut rows: Vec<Row> = sums[..named]
            .iter()
            .map(|(label, sum)| ((*label).to_owned(), values(table, &sum.gauges, &self.totals[*label])))
            .collect();
        let mut others = Sum::new(table.len());
        sums[named..].iter().for_each(|(_, sum)| others.join(table, sum));
        if named < sums.len() && self.other.is_empty() {
            self.other = vec![0.0; table.len()];
        }
        add_all(&mut self.other, &others.grown);
        if !self.other.is_empty() {
            rows.push((OTHER.to_owned(), values(table, &others.gauges, &self.other)));
        }
        rows
    }
}
