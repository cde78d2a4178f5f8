//! The files that an arena may be in, and the processes that may open them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use slackwater_arena::{Arena, ArenaConfig, ArenaError, Pool, Survivors};

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
            Err(ArenaError::NoSpace { .. }) if begun.elapsed() < Duration::from_secs(20) => std::thread::yield_now(),
            created => break created.expect("2 MiB in 4 MiB"),
        }
    };
    // The arena keeps all its frames if another program fills the file system afterwards.
    let _ = std::fs::write(folder.path.join("other"), vec![1; 4 << 20]);
    while let Some(frame) = arena.alloc(Pool::Reserve) {
        arena.write(frame).fill(1);
    }
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
