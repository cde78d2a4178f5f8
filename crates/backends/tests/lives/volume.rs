//! A volume of a life: its backend and its faults, the data written to it, and how it ends.
//!
//! A page is written as a whole, with words that name its place. Unless the volume is discarded, the data accepted last
//! is in the backend at the end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::{Backend, Limits, MemBackend, NewNode, Removal};
use slackwater::{
    ErrorKind, File, NamespaceError, SuperBlock, UmountError, UmountOptions, WaitFor, WriteFlags, WriteRequest, Written,
};
use slackwater_testkit::{Delay, Fault, FaultControl, Random, Rule};

use crate::World;
use crate::rig::{PAGE, eventually, limits};

const FILES: u64 = 3;
const PAGES: u64 = 24;
/// A deadline that only a volume with little to write can meet.
const SOON: Duration = Duration::from_millis(2);

/// How a volume ended.
#[derive(Copy, Clone, Debug)]
pub(crate) enum End {
    /// Unmounted, with a backend that works again.
    Plain,
    /// Unmounted, with a backend that still failed now and then.
    Failing,
    /// Past a deadline, and then again.
    Late,
    /// Unmounted with a file open, which fails, and then again.
    Busy,
    /// Unmounted with its data discarded.
    Discarded,
    /// Removed from the namespace while a file was open.
    Lazy,
    /// Several at once, by path.
    Together,
}

pub(crate) const ENDS: [End; 7] =
    [End::Plain, End::Failing, End::Late, End::Busy, End::Discarded, End::Lazy, End::Together];

pub(crate) struct Volume {
    memory: Arc<MemBackend>,
    faults: FaultControl,
    sb: Arc<SuperBlock>,
    /// The volume's place in the namespace, if it has one.
    path: Option<PathBuf>,
    /// Writes do not return: no thread may wait for them.
    hangs: bool,
    /// The word of each page of each file; no file where it is not known.
    words: [Option<HashMap<u64, u64>>; FILES as usize],
}

fn name(file: u64) -> String {
    format!("f{file}")
}

impl Volume {
    /// `None` if its root could not be opened.
    pub(crate) fn mount(world: &World, own: &str, random: &mut Random) -> Option<Self> {
        let memory = Arc::new(MemBackend::with_limits(Limits { unit_bytes: 16 << 10, ..limits() }));
        let mut backend: Arc<dyn Backend> = memory.clone();
        if random.below(5) == 0 {
            let delay = Duration::from_micros(50 + random.below(500));
            backend = Arc::new(Delay::new(backend).on("write", delay).on("sync", delay).on("sync_volume", delay));
        }
        let (fault, faults) = Fault::new(backend);
        if random.below(20) == 0 {
            faults.add(Rule::fail(ErrorKind::Io).on("root"));
        }
        let (backend, path) = (Arc::new(fault), PathBuf::from(format!("/{own}")));
        let has_path = random.below(2) == 0;
        let mounted = if has_path {
            world.namespace.mount(&path, own, backend).map(|mount| mount.super_block())
        } else {
            world.engine.mount(own, backend).map_err(NamespaceError::from)
        };
        let sb = match mounted {
            Ok(sb) => sb,
            Err(NamespaceError::Mount(slackwater::MountError::Root(_))) => return None,
            Err(error) => panic!("{error}"),
        };
        let hangs = Self::inject(&faults, random);
        let path = has_path.then_some(path);
        Some(Self { memory, faults, sb, path, hangs, words: Default::default() })
    }

    /// Chooses the faults from now on. True if writes hang.
    fn inject(faults: &FaultControl, random: &mut Random) -> bool {
        let (calls, kind): (&[_], _) = match random.below(10) {
            0 | 1 => (&["write", "sync", "sync_volume", "setattr"], ErrorKind::Io),
            2 => (&["write"], ErrorKind::NoSpace),
            3 => (&["lookup", "make", "read", "remove"], ErrorKind::Io),
            4 => {
                faults.add(Rule::short_write(PAGE).chance(0.2, random.next()));
                return false;
            }
            5 => {
                faults.add(Rule::hold().on("write"));
                return true;
            }
            _ => return false,
        };
        for call in calls {
            faults.add(Rule::fail(kind).on(call).chance(0.2, random.next()));
        }
        false
    }

    pub(crate) fn has_path(&self) -> bool {
        self.path.is_some()
    }

    /// The backend works from here on.
    fn heal(&mut self) {
        self.faults.clear();
        self.faults.release_all();
        self.hangs = false;
    }

    /// Uses a file, if the backend permits it.
    pub(crate) fn step(&mut self, world: &World, random: &mut Random) {
        let nth = random.below(FILES);
        let what = random.below(20);
        if what == 19 && !self.hangs {
            drop(self.sb.sync());
            return;
        }
        let Some(file) = self.open(nth) else { return };
        match what {
            0..11 => self.write(&file, nth, world, random),
            11..14 => self.read(&file, nth, random),
            // A thread that hangs with the backend waits for it.
            _ if self.hangs => {}
            14 | 15 => drop(file.fsync()),
            16 => {
                let pages = random.below(PAGES);
                match (file.set_len(pages * PAGE as u64), &mut self.words[nth as usize]) {
                    (Ok(()), Some(words)) => words.retain(|page, _| *page < pages),
                    (_, words) => *words = None,
                }
            }
            _ => {
                drop(file);
                drop(self.sb.root().and_then(|root| self.sb.remove(&root, name(nth), Removal::File)));
                self.words[nth as usize] = None;
            }
        }
    }

    /// Opens a file, or makes it.
    fn open(&mut self, nth: u64) -> Option<File> {
        let inode = match self.sb.walk(name(nth)) {
            Ok(inode) => inode,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = self.sb.root().and_then(|root| self.sb.make(&root, name(nth), NewNode::File, 0o644));
                self.words[nth as usize] = Some(HashMap::new());
                made.ok()?
            }
            Err(_) => return None,
        };
        File::open(&inode).ok()
    }

    /// Writes pages for random tenants, as far as frames are free.
    fn write(&mut self, file: &File, nth: u64, world: &World, random: &mut Random) {
        let (memcg, first) = (world.tenant(random), random.below(PAGES));
        let flags = [WriteFlags::NONE, WriteFlags::DONTCACHE][random.below(2) as usize];
        for page in first..PAGES.min(first + 1 + random.below(10)) {
            let word = nth << 56 | page << 32 | random.next() & 0xffff_ffff | 1;
            let bytes = word.to_le_bytes().repeat(PAGE / 8);
            let request = WriteRequest::at(page * PAGE as u64).memcg(&memcg).flags(flags).wait(WaitFor::Backend);
            match file.write(request, &bytes) {
                Ok(Written::Bytes(PAGE)) => self.note(nth, page, word),
                Ok(Written::Bytes(bytes)) => panic!("{bytes} bytes of a page were taken"),
                Ok(_) | Err(_) => return,
            }
        }
    }

    fn note(&mut self, nth: u64, page: u64, word: u64) {
        if let Some(words) = &mut self.words[nth as usize] {
            words.insert(page, word);
        }
    }

    fn read(&self, file: &File, nth: u64, random: &mut Random) {
        let (page, mut bytes) = (random.below(PAGES), vec![0; PAGE]);
        let Ok(read) = file.read_at(page * PAGE as u64, &mut bytes) else { return };
        if let Some(words) = &self.words[nth as usize] {
            let word = words.get(&page).copied().unwrap_or_default();
            assert!(read == PAGE || word == 0, "page {page} of {nth} ends after {read} bytes");
            expect_word(&bytes[..read], word, page, nth);
        }
    }

    /// Writes with a backend that works, so that frames become free in the end.
    fn write_one(&mut self, file: &File, nth: u64, random: &mut Random) {
        let (page, stamp) = (random.below(PAGES), random.next());
        let word = nth << 56 | page << 32 | stamp & 0xffff_ffff | 1;
        file.write_at(page * PAGE as u64, &word.to_le_bytes().repeat(PAGE / 8)).unwrap();
        self.note(nth, page, word);
    }

    fn umount(&self, world: &World, options: UmountOptions) -> Result<(), UmountError> {
        match &self.path {
            None => self.sb.umount(options),
            Some(path) => match world.namespace.umount(path, options) {
                Ok(()) => Ok(()),
                Err(NamespaceError::Umount(error)) => Err(error),
                Err(error) => panic!("{error}"),
            },
        }
    }

    /// Unmounts it in one of the possible ways.
    pub(crate) fn end(mut self, world: &World, random: &mut Random) -> End {
        let end = match random.below(6) {
            0 => self.end_late(world, random),
            1 if !self.hangs => self.end_failing(world),
            2 => self.end_busy(world, random),
            3 => {
                self.umount(world, UmountOptions { deadline: None, discard: true }).unwrap();
                self.heal();
                self.words = Default::default();
                End::Discarded
            }
            4 if self.has_path() => self.end_lazily(world, random),
            _ => {
                self.heal();
                self.umount(world, UmountOptions::default()).unwrap();
                End::Plain
            }
        };
        self.verify(world);
        end
    }

    fn end_late(&mut self, world: &World, random: &mut Random) -> End {
        self.faults.add(Rule::hold().on("write"));
        let soon = UmountOptions { deadline: Some(SOON), discard: false };
        match self.umount(world, soon) {
            // There was nothing to write.
            Ok(()) => {
                self.heal();
                return End::Plain;
            }
            Err(UmountError::Deadline { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        // It is mounted and works.
        self.heal();
        let file = self.open(0).unwrap();
        self.write_one(&file, 0, random);
        drop(file);
        self.umount(world, UmountOptions::default()).unwrap();
        End::Late
    }

    fn end_failing(&mut self, world: &World) -> End {
        for nth in 1..=20 {
            let soon = UmountOptions { deadline: Some(SOON * nth), discard: false };
            match self.umount(world, soon) {
                Ok(()) => return End::Failing,
                Err(UmountError::Deadline { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        self.heal();
        self.umount(world, UmountOptions::default()).unwrap();
        End::Late
    }

    fn end_busy(&mut self, world: &World, random: &mut Random) -> End {
        self.heal();
        let file = self.open(0).unwrap();
        for discard in [false, true] {
            let refused = self.umount(world, UmountOptions { deadline: None, discard });
            assert!(matches!(refused, Err(UmountError::Busy { .. })), "{refused:?}");
        }
        self.write_one(&file, 0, random);
        drop(file);
        self.umount(world, UmountOptions::default()).unwrap();
        End::Busy
    }

    fn end_lazily(&mut self, world: &World, random: &mut Random) -> End {
        self.heal();
        drop(self.open(0).unwrap());
        let path = self.path.clone().unwrap();
        let file = world.namespace.open(path.join(name(0))).unwrap();
        world.namespace.umount_lazily(&path).unwrap();
        self.write_one(&file, 0, random);
        drop(file); // the last one
        End::Lazy
    }

    /// Unmounts several volumes by one call.
    pub(crate) fn end_together(world: &World, mut volumes: Vec<Self>) {
        volumes.iter_mut().for_each(Self::heal);
        let paths: Vec<_> = volumes.iter().filter_map(|volume| volume.path.clone()).collect();
        for ended in world.namespace.umount_all(&paths, UmountOptions::default()) {
            ended.unwrap();
        }
        volumes.iter().for_each(|volume| volume.verify(world));
    }

    /// Checks a volume that has ended: all accepted data is in the backend, and nothing is left here.
    fn verify(&self, world: &World) {
        assert!(matches!(self.sb.umount(UmountOptions::default()), Err(UmountError::NotMounted)));
        for (nth, words) in (0..).zip(&self.words) {
            for (page, word) in words.iter().flatten() {
                let bytes = self.memory.durable_file(name(nth).as_str()).unwrap_or_default();
                let at = *page as usize * PAGE;
                expect_word(bytes.get(at..at + PAGE).unwrap_or_default(), *word, *page, nth);
            }
        }
        eventually("nothing is left of it", || {
            self.sb.bdi().pinned_frames() == 0 && self.sb.status().bytes_left() == 0 && self.sb.status().inodes == 0
        });
        world.gone.lock().unwrap().push(Arc::downgrade(&self.memory));
    }
}

/// Whether the page holds this word from its beginning to its end.
#[track_caller]
fn expect_word(bytes: &[u8], word: u64, page: u64, nth: u64) {
    let found = bytes.chunks(8).find(|found| **found != word.to_le_bytes());
    assert!(found.is_none() && (word == 0 || bytes.len() == PAGE), "page {page} of {nth}: {found:x?}, not {word:x}");
}
