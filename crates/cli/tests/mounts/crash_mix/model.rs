//! The allowed contents of files after a crash: at each place the bytes that were acknowledged last, or any of those
//! begun since.

use std::collections::{BTreeMap, HashSet};

use super::log::Event;

/// Number of slots of a file, and their distance. Some slots span two pages.
pub(crate) const SLOTS: u64 = 60;
const STRIDE: usize = 1000;
const SLOT_BYTES: usize = 96;
pub(crate) const FILE_BYTES: usize = SLOTS as usize * STRIDE;
/// Size of a number in a file. No chunk spans two pages.
const CHUNK: usize = 8;
const PAGE: usize = 4096;

/// Set-user-ID and set-group-ID.
pub(crate) const SET_ID: u32 = 0o6000;

/// Age at which a store counts as acknowledged. The mount fetches it at half of `--dirty-expire` (100 ms); the rest is
/// slack for a loaded machine.
const FETCHED_MS: u64 = 5000;

fn chunk(number: u64) -> Vec<u8> {
    format!("{number:08}").into_bytes()
}

/// The bytes of a slot.
pub(crate) fn slot_bytes(number: u64) -> Vec<u8> {
    chunk(number).repeat(SLOT_BYTES / CHUNK)
}

/// Offset of a slot.
pub(crate) fn slot_at(slot: u64) -> usize {
    slot as usize * STRIDE
}

/// A file of slots that all hold the bytes of `number`.
pub(crate) fn slotted_bytes(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    (0..SLOTS).map(slot_at).for_each(|at| bytes[at..at + SLOT_BYTES].copy_from_slice(&slot_bytes(number)));
    bytes
}

/// The content of a file that is saved as a whole.
pub(crate) fn saved_bytes(number: u64) -> Vec<u8> {
    chunk(number).repeat(1 + (number.wrapping_mul(0x9e37_79b9) % 12_000) as usize)
}

/// A file as found: its bytes and its mode.
pub(crate) type Found = (Vec<u8>, u32);

/// The allowed contents of a file.
pub(crate) enum State {
    Slotted(Slotted),
    Saved(Saved),
    /// Changed in the source of a dead mount.
    Foreign(Foreign),
}

/// A file whose slots are written one by one, and whose mode changes.
pub(crate) struct Slotted {
    slots: Vec<Slot>,
    mode: u32,
    begun_modes: Vec<u32>,
    /// Numbers that the unprivileged user has written.
    nobodys: HashSet<u64>,
    /// The number of the last operation that set set-user-ID or set-group-ID.
    granted: u64,
}

struct Slot {
    bytes: Vec<u8>,
    /// The event that acknowledged them.
    by: Option<Event>,
    begun: Vec<Begun>,
}

struct Begun {
    number: u64,
    /// The time of a store through a mapping that is not acknowledged.
    stored_ms: Option<u64>,
}

/// A file that is replaced as a whole. `None`: it does not exist.
pub(crate) struct Saved {
    bytes: Option<Vec<u8>>,
    /// The event that gave the file these bytes.
    last: Option<Event>,
    begun: Option<Event>,
}

/// A file that was changed in the source.
pub(crate) struct Foreign {
    /// Content after the change.
    pub(crate) theirs: Option<Vec<u8>>,
    /// Content before the change, and its inode number.
    pub(crate) before: Vec<u8>,
    pub(crate) ino: u64,
    /// The acknowledged data: each byte is in `before`, or was kept in a rescue file.
    pub(crate) was: Box<State>,
}

impl State {
    pub(crate) fn slotted(number: u64, mode: u32) -> Self {
        let slots = (0..SLOTS).map(|_| Slot { bytes: slot_bytes(number), by: None, begun: Vec::new() }).collect();
        Self::Slotted(Slotted { slots, mode, begun_modes: Vec::new(), nobodys: HashSet::new(), granted: 0 })
    }

    pub(crate) fn saved(number: u64) -> Self {
        Self::Saved(Saved { bytes: Some(saved_bytes(number)), last: None, begun: None })
    }

    /// Checks a file that was found in this state.
    pub(crate) fn check(&self, found: Option<&Found>) -> Result<(), String> {
        let bytes = found.map(|(bytes, _)| bytes.as_slice());
        match self {
            Self::Slotted(slotted) => {
                let (bytes, mode) = found.ok_or("it is gone")?;
                slotted.check_bytes(bytes, None)?;
                slotted.check_mode(bytes, *mode)
            }
            Self::Saved(saved) => saved.check(bytes),
            Self::Foreign(foreign) if bytes == foreign.theirs.as_deref() => Ok(()),
            Self::Foreign(foreign) => {
                Err(format!("{} is not what others left: {}", about(bytes), about(foreign.theirs.as_deref())))
            }
        }
    }

    /// Takes the found state as the only possible one.
    pub(crate) fn settle(&mut self, found: Option<Found>) {
        match (self, found) {
            (Self::Slotted(slotted), Some((bytes, mode))) => {
                slotted.mode = mode;
                slotted.begun_modes.clear();
                for (slot, at) in slotted.slots.iter_mut().zip((0..).map(slot_at)) {
                    *slot = Slot { bytes: bytes[at..at + SLOT_BYTES].to_vec(), by: None, begun: Vec::new() };
                }
            }
            (Self::Saved(saved), found) => {
                *saved = Saved { bytes: found.map(|(bytes, _)| bytes), last: None, begun: None }
            }
            (Self::Slotted(_) | Self::Foreign(_), _) => {}
        }
    }
}

impl Slotted {
    /// `beside` may hold what is not in `bytes`.
    fn check_bytes(&self, bytes: &[u8], beside: Option<&[u8]>) -> Result<(), String> {
        if beside.is_none() && bytes.len() != FILE_BYTES {
            return Err(format!("it has {} bytes", bytes.len()));
        }
        let chunk_of = |bytes: &[u8], at: usize| bytes.get(at..at + CHUNK).map(<[u8]>::to_vec);
        for (slot, nth) in self.slots.iter().zip(0..) {
            let begun: Vec<_> = slot.begun.iter().map(|begun| chunk(begun.number)).collect();
            for (start, known) in slot.bytes.chunks(CHUNK).enumerate() {
                let at = slot_at(nth) + start * CHUNK;
                let is_known = |found: &Vec<u8>| found == known || begun.contains(found);
                let found = [chunk_of(bytes, at), beside.and_then(|beside| chunk_of(beside, at))];
                if !found.iter().flatten().any(is_known) {
                    let found = found.map(|found| found.map(|found| String::from_utf8_lossy(&found).into_owned()));
                    let begun: Vec<_> = slot.begun.iter().map(|begun| (begun.number, begun.stored_ms)).collect();
                    let known = String::from_utf8_lossy(known);
                    let by = &slot.by;
                    return Err(format!(
                        "slot {nth}, byte {at}: {found:?} is neither {known} of {by:?} nor of {begun:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_mode(&self, bytes: &[u8], mode: u32) -> Result<(), String> {
        if mode != self.mode && !self.begun_modes.contains(&mode) {
            let begun: Vec<_> = self.begun_modes.iter().map(|mode| format!("{mode:o}")).collect();
            return Err(format!("mode {mode:o} is neither {:o} nor one of {begun:?}", self.mode));
        }
        self.check_set_id(bytes, mode)
    }

    /// Bytes that another user wrote after set-user-ID was set never come together with it. This holds at every moment,
    /// also in the source of a dead mount.
    fn check_set_id(&self, bytes: &[u8], mode: u32) -> Result<(), String> {
        let numbers =
            (0..SLOTS).flat_map(|slot| bytes.get(slot_at(slot)..slot_at(slot) + SLOT_BYTES)).flat_map(|slot| {
                slot.chunks(CHUNK).filter_map(|chunk| std::str::from_utf8(chunk).ok()?.parse::<u64>().ok())
            });
        let mut later = numbers.filter(|number| self.nobodys.contains(number) && *number > self.granted);
        match later.next() {
            Some(number) if mode & SET_ID != 0 => {
                Err(format!("mode {mode:o} with bytes {number} of another user's, given at {}", self.granted))
            }
            _ => Ok(()),
        }
    }

    fn acknowledge_stores(&mut self, by: &Event, is_of_worker: impl Fn(u64) -> bool) {
        for (slot, _) in self.slots.iter_mut().zip(0..).filter(|(_, nth)| is_of_worker(*nth)) {
            if let Some(last) = slot.begun.last() {
                *slot = Slot { bytes: slot_bytes(last.number), by: Some(by.clone()), begun: Vec::new() };
            }
        }
    }
}

impl Saved {
    fn check(&self, found: Option<&[u8]>) -> Result<(), String> {
        let is_begun = match (&self.begun, found) {
            (Some(Event::Replace { number, .. }), Some(found)) => found == saved_bytes(*number),
            (Some(Event::Anew { number, .. }), Some(found)) => saved_bytes(*number).starts_with(found),
            (Some(Event::Remove { .. }), None) => true,
            _ => false,
        };
        if is_begun || found == self.bytes.as_deref() {
            return Ok(());
        }
        let (found, known) = (about(found), about(self.bytes.as_deref()));
        Err(format!("{found} is neither {known} of {:?} nor of {:?}", self.last, self.begun))
    }
}

impl Foreign {
    /// Checks that the acknowledged data is complete, if `beside` was kept.
    pub(crate) fn check_kept(&self, beside: Option<&[u8]>) -> Result<(), String> {
        match &*self.was {
            State::Slotted(slotted) => slotted.check_bytes(&self.before, Some(beside.unwrap_or_default())),
            State::Saved(saved) => {
                let both = beside.map_or_else(|| self.before.clone(), |beside| laid_over(&self.before, beside));
                let with = |error| {
                    format!("{error}; in the source {}, beside it {}", about(Some(&self.before)), about(beside))
                };
                saved.check(Some(&both)).map_err(with)
            }
            State::Foreign(_) => Ok(()),
        }
    }
}

/// The pages of `over` that are not holes, on top of those of `under`.
fn laid_over(under: &[u8], over: &[u8]) -> Vec<u8> {
    let mut both = over.to_vec();
    for (nth, page) in both.chunks_mut(PAGE).enumerate() {
        if page.iter().all(|byte| *byte == 0)
            && let Some(below) = under.get(nth * PAGE..)
        {
            let count = below.len().min(page.len());
            page[..count].copy_from_slice(&below[..count]);
        }
    }
    both
}

fn about(bytes: Option<&[u8]>) -> String {
    match bytes {
        None => "no file".to_owned(),
        Some(bytes) => {
            // The first chunks of its runs.
            let mut runs: Vec<_> = bytes.chunks(CHUNK).enumerate().collect();
            runs.dedup_by_key(|(_, chunk)| *chunk);
            let text = |(nth, chunk): &(usize, &[u8])| format!("{}: {:?}", nth * CHUNK, String::from_utf8_lossy(chunk));
            let runs: Vec<_> = runs.iter().take(9).map(text).collect();
            format!("{} bytes ({})", bytes.len(), runs.join(", "))
        }
    }
}

/// All files, by path relative to the outermost source.
pub(crate) type Files = BTreeMap<String, State>;

/// Replays the report of a worker in the model. `killed_ms` is the time at which its mount was killed, if it was.
/// Returns the last number.
pub(crate) fn replay(files: &mut Files, worker: u64, events: &[Event], killed_ms: Option<u64>) -> u64 {
    let (mut numbers, mut last) = (0, None);
    for event in events {
        if let Event::Done = event {
            acknowledge(files, worker, last.take().expect("something was begun"));
        } else if let Event::Stored(ms) = event {
            let Some(Event::Slot { file, slot, .. }) = last.take() else { panic!("{event:?} is of no store") };
            slotted(files, &file).slots[slot as usize].begun.last_mut().unwrap().stored_ms = Some(*ms);
        } else {
            numbers = begin(files, event).unwrap_or(numbers);
            last = Some(event.clone());
        }
    }
    let Some(killed_ms) = killed_ms else { return numbers };
    let is_fetched = |begun: &Begun| begun.stored_ms.is_some_and(|ms| ms + FETCHED_MS < killed_ms);
    let of_slots = files.values_mut().filter_map(|state| match state {
        State::Slotted(slotted) => Some(&mut slotted.slots),
        State::Saved(_) | State::Foreign(_) => None,
    });
    for slot in of_slots.flatten() {
        if let Some(fetched) = slot.begun.iter().rposition(is_fetched) {
            slot.by = None;
            slot.bytes = slot_bytes(slot.begun[fetched].number);
            slot.begun.drain(..=fetched);
        }
    }
    numbers
}

fn slotted<'a>(files: &'a mut Files, name: &str) -> &'a mut Slotted {
    match files.get_mut(name) {
        Some(State::Slotted(slotted)) => slotted,
        _ => panic!("{name} is not a file of slots"),
    }
}

fn saved<'a>(files: &'a mut Files, name: &str) -> &'a mut Saved {
    match files.get_mut(name) {
        Some(State::Saved(saved)) => saved,
        _ => panic!("{name} is not a saved file"),
    }
}

/// The number of the operation.
fn begin(files: &mut Files, event: &Event) -> Option<u64> {
    match event {
        Event::Slot { file, slot, number, by_nobody } => {
            let file = slotted(files, file);
            file.slots[*slot as usize].begun.push(Begun { number: *number, stored_ms: None });
            if *by_nobody {
                file.nobodys.insert(*number);
                file.begun_modes.push(file.mode & !SET_ID);
            }
            Some(*number)
        }
        Event::Mode { file, mode, number } => {
            let file = slotted(files, file);
            file.begun_modes.push(*mode);
            if mode & SET_ID != 0 {
                file.granted = *number;
            }
            Some(*number)
        }
        Event::Cut { file } => {
            let file = slotted(files, file);
            file.begun_modes.push(file.mode & !SET_ID);
            None
        }
        Event::Replace { file, number, .. } | Event::Anew { file, number } => {
            saved(files, file).begun = Some(event.clone());
            Some(*number)
        }
        Event::Remove { file } => {
            saved(files, file).begun = Some(event.clone());
            None
        }
        Event::Sync { .. } | Event::Stored(_) | Event::Done => None,
    }
}

fn acknowledge(files: &mut Files, worker: u64, event: Event) {
    match event {
        Event::Slot { ref file, slot, number, by_nobody } => {
            let file = slotted(files, file);
            file.slots[slot as usize] = Slot { bytes: slot_bytes(number), by: Some(event), begun: Vec::new() };
            if by_nobody {
                file.mode = file.begun_modes.pop().unwrap();
            }
        }
        Event::Sync { ref file, .. } => slotted(files, file).acknowledge_stores(&event, |slot| slot % 2 == worker),
        Event::Mode { file, .. } | Event::Cut { file } => {
            let file = slotted(files, &file);
            file.mode = file.begun_modes.pop().unwrap();
        }
        Event::Replace { ref file, number, .. } | Event::Anew { ref file, number } => {
            let file = saved(files, file);
            *file = Saved { bytes: Some(saved_bytes(number)), last: Some(event), begun: None };
        }
        Event::Remove { ref file } => {
            let file = saved(files, file);
            *file = Saved { bytes: None, last: Some(event), begun: None };
        }
        Event::Stored(_) | Event::Done => unreachable!("they begin nothing"),
    }
}

/// Checks that a file in the source of a dead mount cannot be executed with rights that its bytes do not have.
pub(crate) fn check_set_id(state: &State, found: &Found) -> Result<(), String> {
    match state {
        State::Slotted(slotted) => slotted.check_set_id(&found.0, found.1),
        State::Saved(_) | State::Foreign(_) => Ok(()),
    }
}
