//! The questions of a call to the store, and the store's answers.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use slackwater::BackendError;

use crate::format::Key;
use crate::tree::base::Base;

/// Requests of one call that are on their way together.
const PARALLEL: usize = 32;
/// Keys of a range that are read at least, and at most, by one question.
const RANGE_KEYS: std::ops::RangeInclusive<usize> = 256..=4096;
/// Inodes whose numbers are at most this far apart are read as one range: their records share blocks.
const GAP_INOS: u64 = 64;

/// Keys and ranges that are not in memory.
#[derive(Default, Debug)]
pub(super) struct Questions {
    keys: Vec<Key>,
    ranges: Vec<Question>,
}

/// A range to read.
#[derive(Debug)]
struct Question {
    first: Key,
    /// Everything up to this key is known already.
    after: Option<Key>,
    last: Key,
    keys: usize,
}

/// The store's answers to one call. See invariant S2 for how long they count.
#[derive(Default, Debug)]
pub(super) struct Answers {
    keys: HashMap<Key, Option<Bytes>>,
    /// By their first keys.
    ranges: BTreeMap<Key, Range>,
}

/// All keys of the store from `first` to `known_to`.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) first: Key,
    pub(super) known_to: Key,
    pub(super) entries: BTreeMap<Key, Bytes>,
}

impl Questions {
    pub(super) fn ask(&mut self, key: Key) {
        self.keys.push(key);
    }

    pub(super) fn ask_range(&mut self, first: Key, after: Option<Key>, last: Key, keys: usize) {
        self.ranges.push(Question { first, after, last, keys });
    }

    /// The answers of a store that has nothing.
    #[cfg(test)]
    pub(super) fn answer_nothing(self, answers: &mut Answers) {
        answers.keys.extend(self.keys.into_iter().map(|key| (key, None)));
        for range in self.ranges {
            answers
                .ranges
                .insert(range.first, Range { first: range.first, known_to: range.last, entries: BTreeMap::new() });
        }
    }
}

impl Answers {
    pub(super) fn get(&self, key: &Key) -> Option<Option<Bytes>> {
        if let Some(value) = self.keys.get(key) {
            return Some(value.clone());
        }
        let range = self.range(*key)?;
        Some(range.entries.get(key).cloned())
    }

    /// The range that has the key `first`.
    pub(super) fn range(&self, first: Key) -> Option<&Range> {
        let (_, range) = self.ranges.range(..=first).next_back()?;
        (first <= range.known_to).then_some(range)
    }

    /// All keys with their values, absent ones too, for the cache.
    pub(super) fn keys(&self) -> impl Iterator<Item = (Key, Option<Bytes>)> {
        let keys = self.keys.iter().map(|(key, value)| (*key, value.clone()));
        let ranges = self.ranges.values().flat_map(|range| &range.entries);
        keys.chain(ranges.map(|(key, value)| (*key, Some(value.clone()))))
    }

    /// The directories all of whose entries are here.
    pub(super) fn whole_directories(&self) -> impl Iterator<Item = u64> {
        self.ranges.iter().filter_map(|(first, range)| match (first, range.known_to) {
            (Key::Entries { dir, hash: 0 }, Key::Entries { dir: last, hash: u64::MAX }) => {
                (*dir == last).then_some(*dir)
            }
            _ => None,
        })
    }

    /// Asks the store, all at once.
    ///
    /// # Errors
    /// The store's; a part of the answers may have been added.
    pub(super) async fn fetch(&mut self, base: &Base, questions: Questions) -> Result<(), BackendError> {
        let Questions { mut keys, mut ranges } = questions;
        keys.sort_unstable();
        keys.dedup();
        for run in keys.chunk_by(are_near) {
            if let [first, _, .., last] = *run {
                ranges.push(Question { first, after: None, last, keys: usize::MAX });
            }
        }
        let single = keys.chunk_by(are_near).filter(|run| run.len() < 3).flatten();
        let gets = stream::iter(single.copied().collect::<Vec<_>>())
            .map(|key| async move { Ok::<_, BackendError>((key, base.get(key).await?)) })
            .buffer_unordered(PARALLEL)
            .try_collect::<Vec<_>>();
        for question in &mut ranges {
            let known = self.ranges.get(&question.first).map_or(0, |range| range.entries.len());
            let wanted = question.keys.max(2 * known);
            question.keys = wanted.clamp(*RANGE_KEYS.start(), *RANGE_KEYS.end());
        }
        let scans = stream::iter(ranges)
            .map(|question| async move {
                let first = question.after.map_or(Bound::Included(question.first), Bound::Excluded);
                let found = base.scan(first, question.last, question.keys).await?;
                Ok::<_, BackendError>((question, found))
            })
            .buffer_unordered(PARALLEL)
            .try_collect::<Vec<_>>();
        let (gets, scans) = futures::try_join!(gets, scans)?;
        self.keys.extend(gets);
        for (question, found) in scans {
            let known_to = match found.last() {
                Some((last, _)) if found.len() >= question.keys => *last,
                _ => question.last,
            };
            let range = Range { first: question.first, known_to, entries: BTreeMap::new() };
            let range = self.ranges.entry(question.first).or_insert(range);
            range.known_to = range.known_to.max(known_to);
            range.entries.extend(found);
        }
        Ok(())
    }
}

fn are_near(one: &Key, next: &Key) -> bool {
    matches!((one, next), (Key::Inode(one), Key::Inode(next)) if next - one <= GAP_INOS)
}
