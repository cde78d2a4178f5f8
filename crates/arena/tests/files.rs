//! The files that an arena may be in, and the processes that may open them.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use slackwater_arena::{
    Arena, ArenaConfig, ArenaError, FRAME_BYTES, InodeRecord, Pool, Survivors, VolumeId, VolumeRecord,
};

/// A folder that is emptied, unmounted if necessary, and removed when the test ends in any way.
struct Folder {
    path: PathBuf,
    is_mounted: bool,
}

impl Folder {
    fn new(parent: &str, name: &str) -> Option<Self> {
        if !Path::new(parent).is_dir() {
            println!("skipped: no {parent}");
            return None;
        }
        let path = Path::new(parent).join(format!("slackwater-files-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a new folder");
        Some(Self { path, is_mounted: false })
    }

    fn mounted(name: &str, arguments: &[&str]) -> Option<Self> {
        let mut folder = Self::new("/dev/shm", name)?;
        let mount = Command::new("mount").args(arguments).arg("none").arg(&folder.path).output();
        folder.is_mounted = mount.is_ok_and(|output| output.status.success());
        if !folder.is_mounted {
            println!("skipped: mount {arguments:?} is not allowed here");
        }
        folder.is_mounted.then_some(folder)
    }

    fn file(&self) -> PathBuf {
        self.path.join("arena")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[test]
fn a_file_is_private_new_and_opened_once() {
    let Some(folder) = Folder::new("/dev/shm", "once") else { return };
    let config = ArenaConfig::file(folder.file(), 1 << 20);
    let arena = Arena::create(&config).expect("a new file");
    let mode = std::fs::metadata(folder.file()).expect("it has its name").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert!(matches!(Arena::open(&folder.file()), Err(ArenaError::InUse)));
    assert!(matches!(Arena::create(&config), Err(ArenaError::Os { source, .. })
        if source.kind() == std::io::ErrorKind::AlreadyExists));
    let kept = arena.try_clone_fd().expect("a descriptor");
    drop(arena);
    let (arena, survivors) = Arena::open(&folder.file()).expect("a descriptor handed on holds no lock");
    assert_eq!(survivors, Survivors::default());
    assert!(matches!(Arena::open_fd(kept), Err(ArenaError::InUse)));
    drop(arena);
}

#[test]
fn a_file_that_another_user_owns_or_may_write_is_refused() {
    let Some(folder) = Folder::new("/dev/shm", "others") else { return };
    drop(Arena::create(&ArenaConfig::file(folder.file(), 1 << 20)).expect("a new file"));
    let refused = |what: &str| match Arena::open(&folder.file()) {
        Err(ArenaError::NotPrivate(mismatch)) => assert!(mismatch.field.contains(what), "{mismatch}"),
        other => panic!("{:?}", other.map(drop)),
    };
    for mode in [0o620, 0o602, 0o666] {
        std::fs::set_permissions(folder.file(), Permissions::from_mode(mode)).expect("our file");
        refused("mode");
    }
    std::fs::set_permissions(folder.file(), Permissions::from_mode(0o600)).expect("our file");
    // Only root can give a file away.
    if std::os::unix::fs::chown(folder.file(), Some(65_534), None).is_ok() {
        refused("user");
        std::os::unix::fs::chown(folder.file(), Some(0), None).expect("by root");
    }
    Arena::open(&folder.file()).expect("nothing has changed in it");
}

#[test]
fn a_refused_creation_leaves_no_file() {
    let Some(folder) = Folder::new("/dev/shm", "refused") else { return };
    let huge = ArenaConfig::file(folder.file(), 1 << 42);
    let error = Arena::create(&huge).expect_err("4 TiB").to_string();
    assert!(error.contains("more than the") && error.contains("allows"), "{error}");
    assert!(Arena::create(&ArenaConfig::file(folder.file(), 0)).is_err());
    assert_eq!(std::fs::read_dir(&folder.path).expect("our folder").count(), 0);
}

#[test]
fn a_file_system_on_a_disk_is_refused_by_name() {
    let Some(folder) = Folder::new(env!("CARGO_TARGET_TMPDIR"), "disk") else { return };
    match Arena::create(&ArenaConfig::file(folder.file(), 1 << 20)) {
        Err(ArenaError::FileSystem { found }) => println!("refused {found}"),
        Ok(_) => println!("skipped: the target folder is in memory"),
        Err(error) => panic!("{error}"),
    }
    std::fs::write(folder.path.join("other"), [0; 8192]).expect("our folder");
    let opened = Arena::open(&folder.path.join("other"));
    assert!(matches!(opened, Err(ArenaError::FileSystem { .. } | ArenaError::Foreign(_))));
}

#[test]
fn a_fifo_or_a_link_is_refused_without_waiting() {
    let Some(folder) = Folder::new("/dev/shm", "fifo") else { return };
    let made = Command::new("mkfifo").arg(folder.path.join("fifo")).status();
    if made.is_ok_and(|status| status.success()) {
        assert!(Arena::open(&folder.path.join("fifo")).is_err());
    }
    std::os::unix::fs::symlink("arena", folder.path.join("link")).expect("our folder");
    drop(Arena::create(&ArenaConfig::file(folder.file(), 1 << 20)).expect("a new file"));
    assert!(Arena::open(&folder.path.join("link")).is_err());
    assert!(Arena::open(&folder.file()).is_ok());
}

/// All blocks are allocated before the first store. With a sparse file, filling the frames would cause SIGBUS as soon
/// as the file system is full.
#[test]
fn a_full_file_system_is_an_error_at_creation() {
    let Some(folder) = Folder::mounted("full", &["-t", "tmpfs", "-o", "size=4m"]) else { return };
    let error = Arena::create(&ArenaConfig::file(folder.file(), 8 << 20)).expect_err("8 MiB in 4 MiB");
    assert!(matches!(error, ArenaError::NoSpace { .. }), "{error}");
    // A child that another test starts may hold a descriptor of the refused file for a moment, and so its blocks.
    let begun = Instant::now();
    let arena = loop {
        match Arena::create(&ArenaConfig::file(folder.file(), 2 << 20)) {
            Err(ArenaError::NoSpace { .. }) if begun.elapsed() < Duration::from_secs(60) => std::thread::yield_now(),
            created => break created.expect("2 MiB in 4 MiB"),
        }
    };
    // The arena keeps all its frames if another program fills the file system afterwards.
    let _ = std::fs::write(folder.path.join("other"), vec![1; 4 << 20]);
    while let Some(frame) = arena.alloc(Pool::Reserve) {
        arena.write(frame).fill(1);
    }
}

/// Threads that allocate while the memory is still allocated behind them get each frame once, with memory.
#[test]
fn an_arena_is_used_while_its_memory_is_allocated() {
    let (arena, filler) = Arena::create_unfilled(&ArenaConfig::memfd(200 << 20)).expect("200 MiB");
    let allocated = || rustix::fs::fstat(&*arena).expect("an open file").st_blocks.cast_unsigned() * 512;
    assert!(allocated() < 32 << 20, "{} bytes at the start", allocated());
    assert_eq!(arena.free_frames(), u64::from(arena.frames()));
    let take = || {
        let mut frames = Vec::new();
        while let Some(frame) = arena.alloc(Pool::Reserve) {
            arena.write(frame)[0] += 1;
            frames.push(frame);
            arena.alloc_many(Pool::Normal, 300, &mut frames);
        }
        frames
    };
    let taken = std::thread::scope(|scope| {
        let filling = scope.spawn(|| filler.run());
        let threads = [(); 3].map(|()| scope.spawn(take));
        let taken = threads.map(|thread| thread.join().expect("no panic")).concat();
        filling.join().expect("no panic").expect("200 MiB");
        taken
    });
    let numbers: std::collections::BTreeSet<_> = taken.iter().map(|frame| frame.as_u32()).collect();
    assert_eq!((numbers.len(), taken.len()), (arena.frames() as usize, arena.frames() as usize));
    assert_eq!((arena.free_frames(), arena.missing_frames()), (0, 0));
    assert!(allocated() >= 200 << 20);
    taken.into_iter().for_each(|frame| arena.free(frame));
    assert_eq!(arena.free_frames(), u64::from(arena.frames()));
}

#[test]
fn without_a_filler_memory_is_allocated_on_demand() {
    let (arena, filler) = Arena::create_unfilled(&ArenaConfig::memfd(100 << 20)).expect("100 MiB");
    drop(filler);
    let mut frames = Vec::new();
    assert_eq!(arena.alloc_many(Pool::Normal, 20 << 8, &mut frames), 20 << 8);
    let blocks = rustix::fs::fstat(&*arena).expect("an open file").st_blocks.cast_unsigned();
    assert!((20 << 20..60 << 20).contains(&(blocks * 512)), "{blocks}");
    let volume = arena.alloc_volume(&VolumeRecord { id: VolumeId::EMPTY }).expect("a slot");
    for _ in 0..(100 << 8) / 4 {
        assert!(arena.alloc_inode(&InodeRecord::new(volume)).is_some());
    }
    assert_eq!((arena.alloc_inode(&InodeRecord::new(volume)), arena.free_inodes()), (None, 0));
}

#[test]
fn a_filler_can_be_stopped() {
    let (arena, filler) = Arena::create_unfilled(&ArenaConfig::memfd(100 << 20)).expect("100 MiB");
    arena.stop_filling();
    filler.run().expect("it does nothing");
    let blocks = rustix::fs::fstat(&*arena).expect("an open file").st_blocks.cast_unsigned();
    assert!(blocks * 512 < 20 << 20, "{blocks}");
    assert!(arena.alloc_many(Pool::Reserve, usize::MAX, &mut Vec::new()) as u64 == u64::from(arena.frames()));
}

/// Data that was stored before all memory was allocated survives the process.
#[test]
fn an_arena_that_was_not_filled_can_be_opened() {
    let Some(folder) = Folder::new("/dev/shm", "unfilled") else { return };
    let (arena, _filler) = Arena::create_unfilled(&ArenaConfig::file(folder.file(), 100 << 20)).expect("100 MiB");
    let volume = arena.alloc_volume(&VolumeRecord { id: VolumeId::EMPTY }).expect("a slot");
    let inode = arena.alloc_inode(&InodeRecord::new(volume)).expect("a slot");
    let frame = arena.alloc(Pool::Normal).expect("a frame");
    arena.write(frame).fill(7);
    arena.publish_dirty(frame, inode, 3, 1);
    drop(arena);
    let (arena, survivors) = Arena::open(&folder.file()).expect("a valid arena");
    let (index, frame) = survivors.volumes[0].inodes[0].pages[0];
    assert_eq!((index, arena.read(frame)[4095]), (3, 7));
    assert_eq!(arena.free_frames(), u64::from(arena.frames()) - 1);
}

/// Another program takes the space between the check and the allocation.
#[test]
fn memory_that_is_refused_later_makes_the_arena_smaller() {
    let Some(folder) = Folder::mounted("less", &["-t", "tmpfs", "-o", "size=80m"]) else { return };
    let (arena, filler) = Arena::create_unfilled(&ArenaConfig::file(folder.file(), 64 << 20)).expect("64 MiB");
    let _ = std::fs::write(folder.path.join("other"), vec![1; 50 << 20]);
    let error = filler.run().expect_err("50 of 80 MiB are taken");
    assert!(matches!(error, ArenaError::NoSpace { .. }), "{error}");
    let missing = arena.missing_frames();
    assert!((20 << 8..64 << 8).contains(&missing), "{missing}");
    let mut frames = Vec::new();
    while let Some(frame) = arena.alloc(Pool::Reserve) {
        arena.write(frame).fill(1);
        frames.push(frame);
    }
    assert_eq!(frames.len() as u64, u64::from(arena.frames() - missing));
    assert_eq!(arena.free_frames(), 0);
    frames.into_iter().for_each(|frame| arena.free(frame));
    drop(arena);
    let refused = Arena::open(&folder.file()).map(drop).expect_err("there is no space for the rest");
    assert!(matches!(refused, ArenaError::NoSpace { .. }), "{refused}");
    std::fs::remove_file(folder.path.join("other")).expect("the space is free again");
    assert!(Arena::open(&folder.file()).is_ok());
}

#[test]
fn huge_pages_hold_an_arena_too() {
    let Some(folder) = Folder::mounted("huge", &["-t", "hugetlbfs", "-o", "pagesize=2M"]) else { return };
    match Arena::create(&ArenaConfig::file(folder.file(), 4 << 20)) {
        Ok(arena) => {
            let frame = arena.alloc(Pool::Normal).expect("all are free");
            arena.write(frame).fill(1);
            drop(arena);
            let length = std::fs::metadata(folder.file()).expect("it has its name").len();
            assert!(length.is_multiple_of(2 << 20));
            assert!(Arena::open(&folder.file()).is_ok());
        }
        Err(ArenaError::NoSpace { .. }) => println!("skipped: no huge pages are set aside"),
        Err(error) => panic!("{error}: {error:?}"),
    }
}

#[test]
fn a_memfd_passes_from_one_arena_to_the_next() {
    let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).expect("1 MiB");
    let fd = arena.try_clone_fd().expect("a descriptor");
    assert!(matches!(Arena::open_fd(fd.try_clone().expect("a descriptor")), Err(ArenaError::InUse)));
    assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "it cannot be truncated under the mapping");
    drop(arena);
    assert!(Arena::open_fd(fd).is_ok());
}

/// A process dies while it allocates its arena. The next one has what was written, may use the arena at once, and gets
/// all of it in the end.
#[test]
fn an_arena_that_was_being_allocated_is_used_at_once_by_the_next_process() {
    let Some(folder) = Folder::new("/dev/shm", "inherited") else { return };
    let path = folder.file();
    let (arena, _filler) = Arena::create_unfilled(&ArenaConfig::file(&path, 64 << 20)).expect("it works");
    let volume = arena.alloc_volume(&VolumeRecord { id: VolumeId::new(b"v").expect("it works") }).expect("it works");
    let inode = arena.alloc_inode(&InodeRecord::new(volume)).expect("it works");
    let frame = arena.alloc(Pool::Normal).expect("it works");
    arena.write(frame).fill(7);
    arena.publish_dirty(frame, inode, 3, 1);
    let lock = arena.try_clone_lock().expect("it works");
    let (next, survivors, filler) = Arena::open_inherited(lock).expect("it works");
    assert_eq!(survivors.volumes[0].inodes[0].pages, [(3, frame)]);
    assert_eq!(next.read(frame)[..], [7; FRAME_BYTES]);
    let allocated = || std::fs::metadata(&path).expect("it works").blocks() * 512;
    assert!(allocated() < 16 << 20, "{} bytes are allocated", allocated());
    assert!(next.alloc(Pool::Normal).is_some());
    filler.expect("most of it is missing").run().expect("it works");
    let mut taken = Vec::new();
    next.alloc_many(Pool::Reserve, next.frames() as usize, &mut taken);
    assert_eq!(taken.len() as u32, next.frames() - 2, "all but the one with data and the first one taken");
    assert_eq!(next.missing_frames(), 0);
}
