//! Programs with many open files, and a server with few descriptors. Each test runs in a process of its own: children
//! of other tests would begin with copies of all these files.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::bytes;
use crate::programs::in_own_process;
use crate::rig::{Mount, PATIENCE, Scratch, need_fuse, wait_until};
use crate::sys::Mapped;

/// Descriptor limit of the server.
const LIMIT: usize = 1024;
const FILES: usize = 10_000;

/// Mounts a source in memory with a server limited to [`LIMIT`] descriptors.
fn mount_limited(scratch: &Scratch, more: &[&str]) -> (PathBuf, PathBuf, Mount) {
    let (source, mountpoint) = scratch.pair("a");
    mount("tmpfs", &source, "tmpfs", MountFlags::empty(), None).unwrap();
    let server = serve_limited(scratch, &source, &mountpoint, more);
    (source, mountpoint, server)
}

fn serve_limited(scratch: &Scratch, source: &Path, mountpoint: &Path, more: &[&str]) -> Mount {
    let arena = scratch.arena("limited");
    let mut arguments = vec!["mount", source.to_str().unwrap(), mountpoint.to_str().unwrap(), "--cache", "64MiB"];
    arguments.extend(["--arena", arena.to_str().unwrap()]);
    arguments.extend(more);
    let command = scratch.command(arguments);
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {LIMIT} && exec \"$0\" \"$@\"")]).arg(command.get_program());
    limited.args(command.get_args()).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Mount::start(limited, mountpoint)
}

/// Raises the limit of this process by `files`.
fn allow_descriptors(files: usize) {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = files as u64 + 1000;
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(wanted);
        limit.maximum = limit.maximum.map(|most| most.max(wanted));
        setrlimit(Resource::Nofile, limit).unwrap();
    }
}

fn descriptors_of(server: &Mount) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.process.0.id())).unwrap().count()
}

/// Another program lists, creates, writes and reads.
#[track_caller]
fn others_work(mountpoint: &Path, name: &str, entries: usize) {
    let listed = Command::new("ls").arg("-l").arg(mountpoint.join("many")).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    assert_eq!(listed.stdout.iter().filter(|byte| **byte == b'\n').count(), entries + 1);
    let path = mountpoint.join(name);
    fs::write(&path, bytes(1, 100_000)).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    assert!(fs::read(&path).unwrap() == bytes(1, 100_000));
    fs::create_dir(mountpoint.join(format!("{name}-dir"))).unwrap();
}

/// When one program had as many files open as the server had descriptors, no other program could list a directory. An
/// open file costs a descriptor only while the server has some to spare.
#[test]
fn p14_ten_thousand_open_files_leave_descriptors_to_others() {
    let name = "descriptors::p14_ten_thousand_open_files_leave_descriptors_to_others";
    in_own_process(name, use_many_files);
}

fn use_many_files() {
    need_fuse();
    allow_descriptors(FILES);
    let scratch = Scratch::new();
    let (source, mountpoint, server) = mount_limited(&scratch, &[]);
    fs::create_dir(mountpoint.join("many")).unwrap();
    let open = |nth: usize| {
        let path = mountpoint.join("many").join(nth.to_string());
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    let files: Vec<File> = (0..FILES).map(open).collect();
    others_work(&mountpoint, "first", FILES);
    // The open files keep working. New data is written back meanwhile, or each file would need its descriptor.
    for (nth, file) in files.iter().enumerate() {
        file.write_all_at(format!("this is {nth}").as_bytes(), 0).unwrap();
    }
    for file in files.iter().step_by(101) {
        file.sync_all().unwrap();
    }
    others_work(&mountpoint, "second", FILES);
    assert!(descriptors_of(&server) < LIMIT * 7 / 8, "{}", descriptors_of(&server));
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    for (nth, file) in files.iter().enumerate().step_by(7) {
        let mut found = vec![0; 100];
        let len = file.read_at(&mut found, 0).unwrap();
        assert_eq!(found[..len], *format!("this is {nth}").as_bytes());
    }
    // Each file stays the same file when it is renamed, removed or replaced.
    let many = mountpoint.join("many");
    fs::rename(many.join("1"), many.join("moved")).unwrap();
    fs::remove_file(many.join("2")).unwrap();
    fs::write(many.join("new"), "new").unwrap();
    fs::rename(many.join("new"), many.join("3")).unwrap();
    for (nth, links) in [(1, 1), (2, 0), (3, 0)] {
        files[nth].write_all_at(b"THIS", 0).unwrap();
        files[nth].sync_all().unwrap();
        let mut found = vec![0; 100];
        let len = files[nth].read_at(&mut found, 0).unwrap();
        assert_eq!(found[..len], *format!("THIS is {nth}").as_bytes());
        assert_eq!(files[nth].metadata().unwrap().nlink(), links);
    }
    drop(files);
    scratch.umount(&mountpoint);
    drop(server);
    for nth in (4..FILES).step_by(13) {
        assert_eq!(fs::read(source.join("many").join(nth.to_string())).unwrap(), format!("this is {nth}").as_bytes());
    }
    assert_eq!(fs::read(source.join("many/3")).unwrap(), b"new");
    assert_eq!(fs::read(source.join("many/moved")).unwrap(), b"THIS is 1");
}

/// A file without a name has to stay open, so a user may have only so many. Other users are not affected.
#[test]
fn p14_a_user_with_too_many_nameless_files_is_refused_and_no_other() {
    let name = "descriptors::p14_a_user_with_too_many_nameless_files_is_refused_and_no_other";
    in_own_process(name, use_nameless_files);
}

fn use_nameless_files() {
    need_fuse();
    allow_descriptors(FILES);
    let scratch = Scratch::new();
    let (source, mountpoint, server) = mount_limited(&scratch, &["--tenant-by", "uid"]);
    fs::set_permissions(&mountpoint, fs::Permissions::from_mode(0o1777)).unwrap();
    let path = |nth: usize| mountpoint.join(format!("hog{nth}"));
    let open = |nth: usize| OpenOptions::new().read(true).write(true).create_new(true).open(path(nth)).unwrap();
    // Such files: named and open, removed while open, or created without a name.
    let mut files: Vec<File> = (0..FILES / 10).map(open).collect();
    for (nth, file) in files.iter().enumerate() {
        file.write_all_at(format!("this is {nth}").as_bytes(), 0).unwrap();
    }
    let refusals = (0..files.len()).map(|nth| fs::remove_file(path(nth)).err().and_then(|error| error.raw_os_error()));
    let refusals: Vec<_> = refusals.collect();
    let removed = refusals.iter().take_while(|refusal| refusal.is_none()).count();
    assert!((LIMIT / 32..LIMIT / 8).contains(&removed), "{removed} were removed");
    let enfile = Some(Errno::NFILE.raw_os_error());
    assert!(refusals[removed..].iter().all(|refusal| *refusal == enfile), "{refusals:?}");
    let tmpfile = rustix::fs::open(&mountpoint, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR);
    assert_eq!(tmpfile.unwrap_err(), Errno::NFILE);

    // Another user can have files without names too, and everything else.
    let script = "
        ls -l > /dev/null && echo text > other && exec 3<>other && rm other && echo more >&3 && sync -d /dev/fd/3
        for nth in 1 2 3 4 5 6 7 8 9; do echo $nth > file$nth; rm file$nth; done
        mkdir dir && mv dir moved && rmdir moved";
    let mut other = Command::new("setpriv");
    other
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-ec", script])
        .current_dir(&mountpoint);
    let output = other.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(descriptors_of(&server) < LIMIT * 7 / 8, "{}", descriptors_of(&server));

    // The files that the user has open keep working, and closing one returns its descriptor.
    for (nth, file) in files.iter().enumerate() {
        let mut found = vec![0; 100];
        let len = file.read_at(&mut found, 0).unwrap();
        assert_eq!(found[..len], *format!("this is {nth}").as_bytes());
        file.write_all_at(b"THIS", 0).unwrap();
    }
    files.drain(..removed / 2);
    wait_until("a name can be removed", || fs::remove_file(path(removed)).is_ok());
    drop(files);
    scratch.umount(&mountpoint);
    drop(server);
    assert_eq!(
        fs::read(source.join(format!("hog{}", removed + 1))).unwrap(),
        format!("THIS is {}", removed + 1).as_bytes()
    );
    assert_eq!(fs::read_dir(&source).unwrap().count(), FILES / 10 - removed - 1);
}

/// On a source without handles, every open file costs a descriptor. A user with too many open files gets an error, and
/// no other user does.
#[test]
fn p14_a_user_with_too_many_files_open_on_a_source_without_handles_is_refused_and_no_other() {
    let name = "descriptors::p14_a_user_with_too_many_files_open_on_a_source_without_handles_is_refused_and_no_other";
    in_own_process(name, use_a_source_without_handles);
}

fn use_a_source_without_handles() {
    need_fuse();
    allow_descriptors(FILES);
    let scratch = Scratch::new();
    let (base, middle) = scratch.pair("base");
    let top = scratch.dir("top", 0o755);
    let below = scratch.mount(&base, &middle, &[]);
    let server = serve_limited(&scratch, &middle, &top, &["--tenant-by", "uid"]);
    fs::set_permissions(&top, fs::Permissions::from_mode(0o1777)).unwrap();
    let open = |nth: usize| {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(top.join(nth.to_string()))
    };
    let opened: Vec<_> = (0..LIMIT).map(open).collect();
    let count = opened.iter().filter(|file| file.is_ok()).count();
    assert!((LIMIT / 32..LIMIT / 8).contains(&count), "{count} are open");
    assert_eq!(fs::read_dir(&middle).unwrap().count(), count, "no file was created that could not be opened");
    for error in opened.iter().filter_map(|file| file.as_ref().err()) {
        assert_eq!(error.raw_os_error(), Some(Errno::NFILE.raw_os_error()));
    }
    let script = "ls -l > /dev/null && echo text > other && cat other && exec 3<>other && rm other && echo more >&3 && mkdir dir";
    let mut other = Command::new("setpriv");
    other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-ec", script]).current_dir(&top);
    let output = other.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(descriptors_of(&server) < LIMIT * 7 / 8, "{}", descriptors_of(&server));
    for file in opened.iter().flatten() {
        file.write_all_at(b"text", 0).unwrap();
        file.sync_all().unwrap();
    }
    drop(opened);
    wait_until("a file can be opened", || open(LIMIT).is_ok());
    scratch.umount(&top);
    drop(server);
    scratch.umount(&middle);
    drop(below);
}

/// A file was closed in the source for lack of descriptors, and then removed there. Data that a program stores into it
/// through a mapping cannot be written anywhere. A program that waits for the store gets an error.
#[test]
fn p14_stores_to_a_file_removed_in_the_source_fail_instead_of_hanging() {
    let name = "descriptors::p14_stores_to_a_file_removed_in_the_source_fail_instead_of_hanging";
    in_own_process(name, store_to_a_removed_file);
}

fn store_to_a_removed_file() {
    need_fuse();
    allow_descriptors(FILES);
    let scratch = Scratch::new();
    let (source, mountpoint, server) = mount_limited(&scratch, &[]);
    let create = |name: &str| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).open(mountpoint.join(name)).unwrap()
    };
    let file = create("mapped");
    file.write_all_at(&bytes(1, 4096), 0).unwrap();
    file.sync_all().unwrap();
    let mut mapped = Mapped::new(&file);
    let others: Vec<File> = (0..2 * LIMIT).map(|nth| create(&nth.to_string())).collect();
    fs::remove_file(source.join("mapped")).unwrap();
    mapped.store(b"stored");
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(file.sync_all().map_err(|error| error.raw_os_error())));
    assert!(told.recv_timeout(PATIENCE).expect("an answer").is_err());
    drop((mapped, others));
    scratch.umount(&mountpoint);
    drop(server);
}
