//! Every kind of request is killed on its way, at each point, once and twice in a row. The next process answers what
//! comes again: the program gets the outcome of its call, and never notices.

use std::cell::Cell;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags, fallocate,
    fgetxattr, flistxattr, fremovexattr, fsetxattr, ioctl_getflags, mknodat, openat, renameat_with, seek, statvfs,
    statx,
};
use rustix::io::Errno;
use slackwater_fuse::abi::Opcode;

use super::by_descriptor::overlay;
use super::user::in_own_namespace;
use crate::rig::{Mount, Scratch, need_fuse};

/// No call takes that long, whatever happens on its way.
const CALL_WITHIN: Duration = Duration::from_secs(60);

/// A call that makes one request of a kind, and checks its outcome; it gets the mount, the source and a number for names.
pub(super) type Call = fn(&Path, &Path, u32) -> io::Result<()>;

/// The test of a kind of request.
enum Case {
    /// The request only asks.
    Asks(Call),
    /// The request changes something, so it is recorded before and after.
    Changes(Call),
    /// The kernel does not send the request to this file system, or waits for no answer.
    Nothing(&'static str),
}
use Case::{Asks, Changes, Nothing};

/// Every kind of request that the kernel has.
fn case_of(opcode: Opcode) -> Case {
    match opcode {
        Opcode::Lookup => Asks(|mount, source, n| {
            fs::write(source.join(format!("there{n}")), b"x")?;
            assert_eq!(fs::metadata(mount.join(format!("there{n}")))?.len(), 1);
            Ok(())
        }),
        Opcode::Getattr => Asks(|mount, _, n| {
            let file = file_with(mount, n, b"abc")?;
            let found = statx(&file, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
            assert_eq!(found.stx_size, 3);
            Ok(())
        }),
        Opcode::Setattr => Changes(|mount, _, n| {
            let file = file_with(mount, n, b"abcdef")?;
            file.set_len(2)?;
            assert_eq!((file.metadata()?.len(), content(mount, n)?), (2, b"ab".to_vec()));
            Ok(())
        }),
        Opcode::Readlink => Asks(|mount, source, n| {
            symlink("there", source.join(format!("link{n}")))?;
            assert_eq!(fs::read_link(mount.join(format!("link{n}")))?, Path::new("there"));
            Ok(())
        }),
        Opcode::Symlink => Changes(|mount, source, n| {
            symlink("there", mount.join(format!("made{n}")))?;
            assert_eq!(fs::read_link(source.join(format!("made{n}")))?, Path::new("there"));
            Ok(())
        }),
        Opcode::Mknod => Changes(|mount, source, n| {
            let name = format!("fifo{n}");
            mknodat(File::open(mount)?, &name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
            fs::symlink_metadata(source.join(name)).map(drop)
        }),
        Opcode::Mkdir => Changes(|mount, source, n| {
            fs::create_dir(mount.join(format!("d{n}")))?;
            fs::read_dir(source.join(format!("d{n}"))).map(drop)
        }),
        Opcode::Unlink => Changes(|mount, source, n| {
            drop(file_with(mount, n, b"x")?);
            fs::remove_file(mount.join(format!("f{n}")))?;
            assert!(!source.join(format!("f{n}")).exists());
            Ok(())
        }),
        Opcode::Rmdir => Changes(|mount, source, n| {
            fs::create_dir(mount.join(format!("d{n}")))?;
            fs::remove_dir(mount.join(format!("d{n}")))?;
            assert!(!source.join(format!("d{n}")).exists());
            Ok(())
        }),
        Opcode::Rename => Changes(|mount, _, n| {
            drop(file_with(mount, n, b"moved")?);
            fs::rename(mount.join(format!("f{n}")), mount.join(format!("to{n}")))?;
            assert_eq!(fs::read(mount.join(format!("to{n}")))?, b"moved");
            assert!(!mount.join(format!("f{n}")).exists());
            Ok(())
        }),
        Opcode::Rename2 => Changes(|mount, _, n| {
            drop(file_with(mount, n, b"one")?);
            let (one, other) = (mount.join(format!("f{n}")), mount.join(format!("other{n}")));
            fs::write(&other, b"other")?;
            let dir = File::open(mount)?;
            renameat_with(&dir, &one, &dir, &other, RenameFlags::EXCHANGE)?;
            assert_eq!((fs::read(one)?, fs::read(other)?), (b"other".to_vec(), b"one".to_vec()));
            Ok(())
        }),
        Opcode::Link => Changes(|mount, _, n| {
            drop(file_with(mount, n, b"x")?);
            fs::hard_link(mount.join(format!("f{n}")), mount.join(format!("hard{n}")))?;
            assert_eq!(fs::read(mount.join(format!("hard{n}")))?, b"x");
            Ok(())
        }),
        Opcode::Open => Asks(|mount, _, n| {
            drop(file_with(mount, n, b"open")?);
            assert_eq!(content(mount, n)?, b"open");
            Ok(())
        }),
        Opcode::Read => Asks(|mount, _, n| {
            drop(file_with(mount, n, b"read")?);
            assert_eq!(content(mount, n)?, b"read");
            Ok(())
        }),
        Opcode::Write => Changes(|mount, _, n| {
            let mut file = OpenOptions::new().append(true).create(true).open(mount.join(format!("f{n}")))?;
            file.write_all(b"first ")?;
            file.write_all(b"second ")?;
            let mut sync =
                OpenOptions::new().append(true).custom_flags(libc::O_SYNC).open(mount.join(format!("f{n}")))?;
            sync.write_all(b"third")?;
            assert_eq!(String::from_utf8_lossy(&content(mount, n)?), "first second third");
            Ok(())
        }),
        Opcode::Statfs => Asks(|mount, _, _| {
            assert!(statvfs(mount)?.f_blocks > 0);
            Ok(())
        }),
        Opcode::Release | Opcode::Flush => Asks(|mount, _, n| {
            drop(file_with(mount, n, b"closed")?);
            let (one, other) = (file_with(mount, n, b"closed")?, file_with(mount, n + 1, b"other")?);
            drop(one);
            other.write_all_at(b"OTHER", 0)?;
            assert_eq!(content(mount, n + 1)?, b"OTHER");
            Ok(())
        }),
        Opcode::Fsync => Asks(|mount, source, n| {
            file_with(mount, n, b"durable")?.sync_all()?;
            assert_eq!(fs::read(source.join(format!("f{n}")))?, b"durable");
            Ok(())
        }),
        Opcode::Setxattr => Changes(|mount, _, n| {
            let file = file_with(mount, n, b"x")?;
            fsetxattr(&file, c"user.a", b"1", XattrFlags::CREATE)?;
            assert_eq!(fsetxattr(&file, c"user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
            Ok(())
        }),
        Opcode::Getxattr => Asks(|mount, source, n| {
            let file = file_with(mount, n, b"x")?;
            fsetxattr(File::open(source.join(format!("f{n}")))?, c"user.a", b"1", XattrFlags::CREATE)?;
            let mut value = [0; 4];
            assert_eq!(fgetxattr(&file, c"user.a", &mut value)?, 1);
            Ok(())
        }),
        Opcode::Listxattr => Asks(|mount, source, n| {
            let file = file_with(mount, n, b"x")?;
            fsetxattr(File::open(source.join(format!("f{n}")))?, c"user.a", b"1", XattrFlags::CREATE)?;
            let mut names = [0; 100];
            assert_eq!(flistxattr(&file, &mut names)?, b"user.a\0".len());
            Ok(())
        }),
        Opcode::Removexattr => Changes(|mount, source, n| {
            let file = file_with(mount, n, b"x")?;
            fsetxattr(File::open(source.join(format!("f{n}")))?, c"user.a", b"1", XattrFlags::CREATE)?;
            fremovexattr(&file, c"user.a")?;
            assert_eq!(fremovexattr(&file, c"user.a"), Err(Errno::NODATA));
            Ok(())
        }),
        Opcode::Opendir | Opcode::Readdir | Opcode::Readdirplus | Opcode::Releasedir => Asks(|mount, _, n| {
            let dir = mount.join(format!("d{n}"));
            fs::create_dir(&dir)?;
            (0..300).try_for_each(|name| fs::write(dir.join(format!("{name:0>100}")), b"").map(drop))?;
            // Of the second listing the kernel wants names only.
            assert_eq!((fs::read_dir(&dir)?.count(), fs::read_dir(&dir)?.count()), (300, 300));
            Ok(())
        }),
        Opcode::Fsyncdir => Asks(|mount, _, _| File::open(mount)?.sync_all()),
        Opcode::Create => Changes(|mount, _, n| {
            let path = mount.join(format!("new{n}"));
            let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            file.write_all(b"new")?;
            let again = OpenOptions::new().write(true).create_new(true).open(&path);
            assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read(path)?, b"new");
            Ok(())
        }),
        Opcode::Ioctl => Asks(|mount, _, n| {
            let file = file_with(mount, n, b"x")?;
            match ioctl_getflags(&file) {
                // The source's file system may have none.
                Ok(_) | Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        }),
        Opcode::Fallocate => Changes(|mount, _, n| {
            let file = file_with(mount, n, b"abc")?;
            fallocate(&file, FallocateFlags::empty(), 0, 10_000)?;
            assert_eq!(file.metadata()?.len(), 10_000);
            Ok(())
        }),
        Opcode::Lseek => Asks(|mount, _, n| {
            let file = file_with(mount, n, b"abc")?;
            assert_eq!(seek(&file, SeekFrom::Data(1))?, 1);
            Ok(())
        }),
        Opcode::CopyFileRange => Changes(|mount, _, n| {
            let (from, to) = (file_with(mount, n, &[7; 20_000])?, file_with(mount, n + 1, b"")?);
            let from = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&from)))?;
            let (mut at, mut to_at) = (0, 0);
            while at < 20_000 {
                let left = 20_000 - at as usize;
                rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), left)?;
            }
            assert_eq!(content(mount, n + 1)?, [7; 20_000]);
            Ok(())
        }),
        Opcode::Tmpfile => Asks(|mount, _, n| {
            let dir = File::open(mount)?;
            let mut file = File::from(openat(
                dir,
                ".",
                OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
                Mode::from_raw_mode(0o600),
            )?);
            file.write_all(b"unnamed")?;
            let path = CString::new(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)))?;
            let to = mount.join(format!("named{n}"));
            rustix::fs::linkat(rustix::fs::CWD, path, rustix::fs::CWD, &to, AtFlags::SYMLINK_FOLLOW)?;
            assert_eq!(fs::read(to)?, b"unnamed");
            Ok(())
        }),
        Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt => Nothing("they have no answer"),
        Opcode::Init | Opcode::Destroy => Nothing("they come before and after everything else"),
        Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => Nothing("the kernel keeps the locks"),
        Opcode::Access => Nothing("the kernel checks permissions"),
        Opcode::Bmap | Opcode::Syncfs => Nothing("only for mounts of a block device"),
        Opcode::Poll | Opcode::Statx | Opcode::CopyFileRange64 => Nothing("refused with ENOSYS, once"),
        Opcode::NotifyReply => Nothing("the answer to a notification that this file system does not send"),
        Opcode::SetupMapping | Opcode::RemoveMapping => Nothing("only for virtiofs"),
    }
}

/// A new file, open for reading and writing.
pub(super) fn file_with(mount: &Path, number: u32, bytes: &[u8]) -> io::Result<File> {
    let path = mount.join(format!("f{number}"));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    file.write_all_at(bytes, 0)?;
    Ok(file)
}

fn content(mount: &Path, number: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(mount.join(format!("f{number}")))?
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A kept mount whose server dies where the test says.
pub(super) struct Rig {
    pub(super) scratch: Scratch,
    _mount: Mount,
    pub(super) source: PathBuf,
    pub(super) mountpoint: PathBuf,
    pub(super) orders: PathBuf,
    numbers: Cell<u32>,
}

impl Rig {
    pub(super) fn of(scratch: Scratch, source: PathBuf, mountpoint: PathBuf) -> Self {
        Self::with(scratch, source, mountpoint, &[])
    }

    /// A rig with more arguments of `mount`.
    pub(super) fn with(scratch: Scratch, source: PathBuf, mountpoint: PathBuf, more: &[&str]) -> Self {
        let orders = scratch.path.join("die-at");
        fs::write(&orders, "").unwrap();
        let (arena, cache) = (scratch.arena("kept"), "32MiB");
        let mut command = scratch.command(["mount", "--keep", "--cache", cache, "--arena"]);
        command.arg(&arena).arg(&source).arg(&mountpoint).args(more).env("SLACKWATER_DIE_AT", &orders);
        let mount = Mount::start(command, &mountpoint);
        Self { scratch, _mount: mount, source, mountpoint, orders, numbers: Cell::new(0) }
    }

    /// Another number for the names of a call.
    pub(super) fn number(&self) -> u32 {
        self.numbers.set(self.numbers.get() + 10);
        self.numbers.get()
    }

    /// Makes a call, which succeeds, while servers die at a point of it. Returns whether they did.
    pub(super) fn dies(
        &self,
        what: &str,
        order: &str,
        call: impl FnOnce(&Path, &Path) -> io::Result<()> + Send + 'static,
    ) -> bool {
        fs::write(&self.orders, order).unwrap();
        let (mountpoint, source) = (self.mountpoint.clone(), self.source.clone());
        let (done, outcome) = channel();
        let caller = thread::spawn(move || {
            let returned = call(&mountpoint, &source);
            // The test has failed already if it took too long.
            let _ = done.send(returned);
        });
        match outcome.recv_timeout(CALL_WITHIN) {
            Ok(returned) => returned.unwrap_or_else(|error| panic!("{what}: {error}")),
            Err(_) if caller.is_finished() => std::panic::resume_unwind(caller.join().unwrap_err()),
            Err(_) => panic!("{what}: the call has not returned"),
        }
        caller.join().unwrap_or_else(|_| panic!("{what}"));
        // A process that dies after the answer does so a little later than the call returns.
        let has_died = (0..12_000).any(|_| {
            let is_obeyed = fs::read_to_string(&self.orders).unwrap().is_empty();
            thread::sleep(Duration::from_millis(if is_obeyed { 0 } else { 10 }));
            is_obeyed
        });
        fs::write(&self.orders, "").unwrap();
        has_died
    }

    /// A command about the mount.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.scratch.command(arguments);
        command.arg(&self.mountpoint);
        command
    }

    pub(super) fn umount(&self) {
        self.scratch.umount(&self.mountpoint);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The keeper is killed by `Mount`; then the last server ends with its mount.
        let _ = rustix::mount::unmount(
            &self.mountpoint,
            rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH,
        );
    }
}

#[test]
fn every_request_that_is_killed_on_its_way_is_answered_with_its_own_outcome() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("kept");
    kill_each_request(&Rig::of(scratch, source, mountpoint));
}

/// Files are found again by descriptors.
#[test]
fn every_request_to_an_overlay_that_is_killed_on_its_way_is_answered_with_its_own_outcome() {
    need_fuse();
    in_own_namespace(|| {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("kept");
        if overlay(&scratch, &source) {
            kill_each_request(&Rig::of(scratch, source, mountpoint));
        }
    });
}

/// On busy CPUs, a process that is to die after an answer may still begin the next request.
pub(super) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[track_caller]
fn kill_each_request(rig: &Rig) {
    let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut deaths = 0;
    for opcode in Opcode::ALL.iter().copied() {
        let (call, points): (_, &[&str]) = match case_of(opcode) {
            Nothing(why) => {
                println!("{opcode:?}: {why}");
                continue;
            }
            Asks(call) => (call, &["Read", "CarriedOut", "Answered"]),
            Changes(call) => (call, &["Read", "Begun", "CarriedOut", "Recorded", "Answered"]),
        };
        for (point, times) in points.iter().flat_map(|point| [(*point, 1), (*point, 2)]) {
            // A request that the kernel has the answer of is not repeated, and one that only asks is made anew.
            if times == 2 && (point == "Answered" || points.len() == 3) {
                continue;
            }
            let own = rig.number();
            let what = format!("{opcode:?} killed at {point}, {times} times");
            let order = format!("{point} {} {times}", opcode as u32);
            let has_died = rig.dies(&what, &order, move |mount, source| call(mount, source, own));
            assert!(has_died, "{what}: no process died there");
            deaths += times;
        }
    }
    rig.umount();
    println!("{deaths} deaths");
    let names = fs::read_dir(&rig.source).unwrap().map(|entry| entry.unwrap().file_name());
    let aside: Vec<_> = names.filter(|name| name.to_string_lossy().contains("conflict")).collect();
    assert_eq!(aside, Vec::<std::ffi::OsString>::new(), "no data was moved aside");
}
