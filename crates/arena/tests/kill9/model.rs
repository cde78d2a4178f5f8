//! The expected contents of the arena: the acknowledged steps, and at most one more per writer.

use std::collections::BTreeMap;

use slackwater_arena::{Arena, FRAME_BYTES, Survivors};

use crate::step::{Report, Step, WRITERS, blank};

#[derive(Default)]
pub(crate) struct Model {
    inodes: BTreeMap<u64, Inode>,
    /// The step that each writer has begun and not acknowledged.
    under_way: [Option<Step>; WRITERS as usize],
    acknowledged: u64,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Inode {
    size_bytes: u64,
    mtime_ns: u64,
    /// By index: version and bytes.
    pages: BTreeMap<u64, (u64, Box<[u8; FRAME_BYTES]>)>,
}

impl Step {
    fn ino(&self) -> u64 {
        match *self {
            Self::NewInode { ino }
            | Self::FreeInode { ino }
            | Self::SetSize { ino, .. }
            | Self::SetMtime { ino, .. }
            | Self::Clean { ino, .. } => ino,
            Self::WriteFrame(write) | Self::WriteInPlace(write) => write.ino,
        }
    }
}

impl Model {
    pub(crate) fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub(crate) fn learn(&mut self, report: Report) {
        let writer = (report.step.ino() % WRITERS) as usize;
        if report.is_done {
            assert_eq!(self.under_way[writer], Some(report.step), "a step is begun before it is done");
            self.under_way[writer] = None;
            apply(&mut self.inodes, report.step);
            self.acknowledged += 1;
        } else {
            assert_eq!(self.under_way[writer], None, "one step at a time");
            self.under_way[writer] = Some(report.step);
        }
    }

    /// Compares, and then takes the contents as the start of the next run.
    pub(crate) fn compare_and_adopt(&mut self, arena: &Arena, survivors: &Survivors) {
        let mut found = read(arena, survivors);
        let frames: usize = found.values().map(|inode| inode.pages.len()).sum();
        assert_eq!(arena.free_frames(), u64::from(arena.frames()) - frames as u64, "every other frame is free");
        let all_found = found.clone();
        for step in self.under_way.iter_mut().filter_map(Option::take) {
            let before = self.inodes.get(&step.ino()).cloned();
            apply(&mut self.inodes, step);
            let after = self.inodes.get(&step.ino());
            let there = found.get(&step.ino());
            let is_torn = matches!(step, Step::WriteInPlace(_)) && is_mixture(there, before.as_ref(), after);
            assert!(
                there == before.as_ref() || there == after || is_torn,
                "{step:?} under way: neither before nor after"
            );
            // Compared; the rest must be exact.
            self.inodes.remove(&step.ino());
            found.remove(&step.ino());
        }
        assert!(found.keys().eq(self.inodes.keys()), "inodes {:?}, expected {:?}", found.keys(), self.inodes.keys());
        for (ino, inode) in &self.inodes {
            let there = &found[ino];
            assert_eq!((there.size_bytes, there.mtime_ns), (inode.size_bytes, inode.mtime_ns), "inode {ino}");
            assert!(there.pages.keys().eq(inode.pages.keys()), "inode {ino}: pages {:?}", there.pages.keys());
            for (index, page) in &inode.pages {
                assert_eq!(there.pages[index].0, page.0, "version of page {index} of inode {ino}");
                assert!(there.pages[index].1 == page.1, "bytes of page {index} of inode {ino}");
            }
        }
        self.inodes = all_found;
    }
}

fn apply(inodes: &mut BTreeMap<u64, Inode>, step: Step) {
    let inode = inodes.entry(step.ino()).or_default();
    match step {
        Step::NewInode { .. } => {}
        Step::FreeInode { ino } => drop(inodes.remove(&ino)),
        Step::SetSize { size_bytes, .. } => inode.size_bytes = size_bytes,
        Step::SetMtime { mtime_ns, .. } => inode.mtime_ns = mtime_ns,
        Step::Clean { index, .. } => drop(inode.pages.remove(&index)),
        Step::WriteFrame(write) | Step::WriteInPlace(write) => {
            let new = || (write.version, Box::new(blank(write.ino, write.index)));
            let page = inode.pages.entry(write.index).or_insert_with(new);
            page.0 = write.version;
            write.apply(&mut page.1);
        }
    }
}

/// Bytes changed in place may be partly old and partly new while the call has not returned.
fn is_mixture(there: Option<&Inode>, before: Option<&Inode>, after: Option<&Inode>) -> bool {
    let (Some(there), Some(before), Some(after)) = (there, before, after) else { return false };
    (there.size_bytes, there.mtime_ns) == (before.size_bytes, before.mtime_ns)
        && there.pages.keys().eq(before.pages.keys())
        && there.pages.iter().all(|(index, (version, bytes))| {
            let (old, new) = (&before.pages[index], &after.pages[index]);
            let is_old_or_new = |(at, byte): (usize, &u8)| *byte == old.1[at] || *byte == new.1[at];
            *version == old.0 && bytes.iter().enumerate().all(is_old_or_new)
        })
}

fn read(arena: &Arena, survivors: &Survivors) -> BTreeMap<u64, Inode> {
    let inodes = survivors.volumes.iter().flat_map(|volume| &volume.inodes);
    let read = inodes.map(|inode| {
        let ino = inode.record.ino;
        assert_eq!(inode.record.handle.as_slice(), ino.to_le_bytes());
        assert_eq!(inode.record.generation, !ino);
        assert!(inode.pages.is_sorted_by(|a, b| a.0 < b.0));
        let page = |&(index, frame)| (index, (arena.version(frame), Box::new(*arena.read(frame))));
        let pages = inode.pages.iter().map(page).collect();
        (ino, Inode { size_bytes: inode.record.size_bytes, mtime_ns: inode.record.mtime_ns.cast_unsigned(), pages })
    });
    read.collect()
}
