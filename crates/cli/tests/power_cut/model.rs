//! The allowed contents of one writer's files after a power cut.
//!
//! Each file, and each slot of the file of slots, has a version that was made durable, and versions begun since. After
//! the cut it holds the durable version or one of the later ones, completely. A file that was truncated first may also
//! hold the beginning of a later version, with zeroes in it. When the truncation is durable, the file has its length, and
//! zeroes for bytes that were on their way.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Bytes of a slot, and the distance between slots. Some slots span two pages.
pub(crate) const SLOT_BYTES: usize = 100;
pub(crate) const SLOT_STRIDE: usize = 5000;
pub(crate) const SLOTS: usize = 60;
/// The file of slots.
pub(crate) const SLOT_FILE: &str = "slots";

/// The content of a file in one version: a number, repeated. Version 0 is no file, or no bytes.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Version {
    pub(crate) number: u64,
    pub(crate) words: usize,
}

impl Version {
    pub(crate) const NONE: Self = Self { number: 0, words: 0 };

    pub(crate) fn bytes(self) -> Vec<u8> {
        format!("{:09} ", self.number).into_bytes().repeat(self.words)
    }
}

/// The state of a file or slot.
#[derive(Clone, Debug)]
struct State {
    durable: Version,
    begun: Vec<Version>,
    /// Whether one of the begun versions truncated the file first.
    is_cut: bool,
    /// Whether the bytes of the durable version were sent to the disk, and may not have arrived.
    is_sent: bool,
}

impl Default for State {
    fn default() -> Self {
        Self { durable: Version::NONE, begun: Vec::new(), is_cut: false, is_sent: false }
    }
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Model {
    files: BTreeMap<String, State>,
    slots: BTreeMap<usize, State>,
    pub(crate) acknowledged: u64,
}

impl Model {
    /// A file is about to receive `version`.
    pub(crate) fn begin(&mut self, name: &str, version: Version) {
        self.files.entry(name.to_owned()).or_default().begun.push(version);
    }

    /// A file is about to be truncated to zero and then to receive `version`.
    pub(crate) fn begin_anew(&mut self, name: &str, version: Version) {
        self.begin(name, version);
        self.files.get_mut(name).unwrap().is_cut = true;
    }

    /// The last version of a file is durable.
    pub(crate) fn durable(&mut self, name: &str) {
        let state = self.files.get_mut(name).unwrap();
        if let Some(last) = state.begun.last().copied() {
            *state = State { durable: last, ..State::default() };
        }
        self.acknowledged += 1;
    }

    /// The truncation before the last version of a file is durable, and its bytes were sent to the disk.
    pub(crate) fn sent(&mut self, name: &str) {
        self.durable(name);
        self.files.get_mut(name).unwrap().is_sent = true;
    }

    pub(crate) fn begin_slot(&mut self, slot: usize, version: Version) {
        self.slots.entry(slot).or_default().begun.push(version);
    }

    pub(crate) fn durable_slot(&mut self, slot: usize) {
        let state = self.slots.get_mut(&slot).unwrap();
        let last = *state.begun.last().unwrap();
        *state = State { durable: last, ..State::default() };
        self.acknowledged += 1;
    }

    /// All violations in `directory`.
    pub(crate) fn check(&self, directory: &Path) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, state) in &self.files {
            let found = match fs::read(directory.join(name)) {
                Ok(found) => Some(found),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => panic!("{name}: {error}"),
            };
            if !state.allows(found.as_deref()) {
                let found = found
                    .map(|found| (found.len(), String::from_utf8_lossy(&found[..found.len().min(20)]).into_owned()));
                wrong.push(format!("{name}: {found:?} is not allowed by {state:?}"));
            }
        }
        if !self.slots.is_empty() {
            let bytes = fs::read(directory.join(SLOT_FILE)).unwrap_or_default();
            for (slot, state) in &self.slots {
                let at = slot * SLOT_STRIDE;
                let found: Vec<u8> = (at..at + SLOT_BYTES).map(|at| bytes.get(at).copied().unwrap_or(0)).collect();
                if !state.allows_slot(&found) {
                    wrong
                        .push(format!("slot {slot}: {:?} is none of {state:?}", String::from_utf8_lossy(&found[..20])));
                }
            }
        }
        wrong
    }
}

impl State {
    fn allows(&self, found: Option<&[u8]>) -> bool {
        let Some(found) = found else {
            return self.durable == Version::NONE || self.begun.contains(&Version::NONE);
        };
        let is = |version: Version| version != Version::NONE && found == version.bytes();
        // ext4 sets the size of a file when it submits the bytes; bytes that did not arrive are zeroes.
        let is_part = |version: &Version| {
            let bytes = version.bytes();
            found.len() <= bytes.len() && found.iter().zip(&bytes).all(|(found, byte)| found == byte || *found == 0)
        };
        // A new or truncated file may be shorter than its version.
        let may_be_short = self.is_cut || self.durable == Version::NONE;
        let is_on_its_way = || self.is_sent && found.len() == self.durable.bytes().len() && is_part(&self.durable);
        is(self.durable)
            || is_on_its_way()
            || self.begun.iter().any(|version| is(*version) || may_be_short && is_part(version))
    }

    /// A slot across two pages may hold two versions.
    fn allows_slot(&self, found: &[u8]) -> bool {
        let versions: Vec<_> = self.begun.iter().chain([&self.durable]).map(|version| version.bytes()).collect();
        found
            .iter()
            .enumerate()
            .all(|(at, byte)| versions.iter().any(|bytes| bytes.get(at).copied().unwrap_or(0) == *byte))
    }
}
