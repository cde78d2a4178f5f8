//! What stays out of the cache: by the word of a file, of a tenant, or of the volume, in this order.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use slackwater::{ErrorKind, Tunables};
use slackwater_backends::Rule;
use slackwater_fuse::tenants::{TenantBy, TenantConfig};

use crate::needs;
use crate::programs::{until, wait};
use crate::rig::{Paying, Rig, assert_same, new_home, pattern};

const NAME: &str = "user.slackwater.dontcache";
const PAGE: u64 = 4096;
/// Pages of a file. Its writes are small enough to be copied: no frames are lent to threads that read requests.
const PAGES: u64 = 48;
const BLOCK: usize = 64 << 10;

/// Pages in the cache.
fn cached(rig: &Rig) -> u64 {
    let arena = rig.engine.arena();
    u64::from(arena.frames()) - arena.free_frames()
}

/// Waits until so many are: a page that was lent to a reply leaves a moment after that has gone out.
#[track_caller]
fn expect_cached(rig: &Rig, pages: u64, why: &str) {
    until(&format!("{pages} pages in the cache: {why}"), || cached(rig) == pages);
}

fn write(file: &File, bytes: &[u8]) {
    for (number, block) in bytes.chunks(BLOCK).enumerate() {
        file.write_all_at(block, (number * BLOCK) as u64).unwrap();
    }
}

fn contents(seed: u8) -> Vec<u8> {
    pattern(seed, (PAGES * PAGE) as usize)
}

/// Pages that are left when a new file has been written through an open descriptor, and is clean.
fn left_of_a_write(rig: &Rig, name: &str, word: Option<&str>) -> u64 {
    let before = cached(rig);
    let file = File::create_new(rig.file(name)).unwrap();
    if let Some(word) = word {
        setxattr(rig.file(name), NAME, word.as_bytes(), XattrFlags::empty()).unwrap();
    }
    write(&file, &contents(3));
    rig.mounted.sync().unwrap();
    assert_same(&fs::read(rig.stored(name)).unwrap(), &contents(3));
    cached(rig) - before
}

#[test]
fn p10_nothing_is_left_in_the_cache_of_a_volume_that_stays_out_of_it() {
    let rig = Rig::dontcache(true, None);
    assert_eq!(left_of_a_write(&rig, "a", None), 0);
    for _ in 0..2 {
        assert_same(&fs::read(rig.file("a")).unwrap(), &contents(3));
        expect_cached(&rig, 0, "nor of a read");
    }
    fs::copy(rig.file("a"), rig.file("b")).unwrap();
    rig.mounted.sync().unwrap();
    assert_same(&fs::read(rig.stored("b")).unwrap(), &contents(3));
    expect_cached(&rig, 0, "nor of a copy in the kernel");
    rig.umount().unwrap();
}

/// Payloads of this size land in frames; those are lent again, and are a sixteenth of the cache at most.
#[test]
fn p10_large_writes_leave_what_is_lent_and_no_more() {
    let rig = Rig::dontcache(true, None);
    let file = File::create_new(rig.file("a")).unwrap();
    let block = pattern(1, 1 << 20);
    for mebibyte in 0..64 {
        file.write_all_at(&block, mebibyte << 20).unwrap();
    }
    rig.mounted.sync().unwrap();
    until("what is lent at most", || cached(&rig) <= (32 << 20) / 16 / PAGE);
    assert!(rig.mounted.super_block().status().dontcache_passes > 0);
    let mut read = vec![0; 1 << 20];
    for mebibyte in 0..64 {
        file_at(&rig, "a").read_exact_at(&mut read, mebibyte << 20).unwrap();
        assert_same(&read, &block);
    }
    until("what is lent at most", || cached(&rig) <= (32 << 20) / 16 / PAGE);
    drop(file);
    rig.umount().unwrap();
}

fn file_at(rig: &Rig, name: &str) -> File {
    File::open(rig.file(name)).unwrap()
}

#[test]
fn a_file_says_it_itself_and_whoever_has_it_open_goes_by_it_at_once() {
    let rig = Rig::dontcache(false, None);
    assert_eq!(left_of_a_write(&rig, "plain", None), PAGES);
    assert_eq!(left_of_a_write(&rig, "a", Some("1")), 0);
    let file = File::options().read(true).write(true).open(rig.file("a")).unwrap();
    let mut value = [0; 8];
    assert_eq!(getxattr(rig.stored("a"), NAME, &mut value), Ok(1), "an attribute of the source like any other");
    for (word, left) in [(Some("0"), PAGES), (Some("1"), PAGES), (None, PAGES)] {
        match word {
            Some(word) => setxattr(rig.file("a"), NAME, word.as_bytes(), XattrFlags::REPLACE).unwrap(),
            None => removexattr(rig.file("a"), NAME).unwrap(),
        }
        write(&file, &contents(4));
        rig.mounted.sync().unwrap();
        expect_cached(&rig, PAGES + left, &format!("what is here stays: {word:?}"));
    }
    drop(file);
    rig.umount().unwrap();
}

#[test]
fn a_file_can_be_exempt_on_a_volume_that_stays_out_of_the_cache() {
    let rig = Rig::dontcache(true, None);
    assert_eq!(left_of_a_write(&rig, "a", Some("0")), PAGES);
    assert_eq!(left_of_a_write(&rig, "b", None), 0);
    removexattr(rig.file("a"), NAME).unwrap();
    let reader = file_at(&rig, "a");
    reader.read_exact_at(&mut [0; 10], 0).unwrap();
    expect_cached(&rig, PAGES, "what was brought here before stays");
    drop(reader);
    rig.umount().unwrap();
}

/// As after another mount: the word is in the source.
#[test]
fn a_word_that_is_in_the_source_is_found_when_the_file_is_opened() {
    let home = new_home();
    let source = home.join("source");
    fs::create_dir(&source).unwrap();
    for (name, value) in [("a", &b"1"[..]), ("strange", b"perhaps")] {
        fs::write(source.join(name), contents(5)).unwrap();
        setxattr(source.join(name), NAME, value, XattrFlags::empty()).unwrap();
    }
    let rig = Rig::over(home, source, 32 << 20, Tunables { readahead_pages: 0, ..Tunables::default() });
    assert_same(&fs::read(rig.file("a")).unwrap(), &contents(5));
    expect_cached(&rig, 0, "it says 1");
    let file = File::options().write(true).open(rig.file("a")).unwrap();
    write(&file, &contents(6));
    rig.mounted.sync().unwrap();
    expect_cached(&rig, 0, "nor of a write");
    assert_same(&fs::read(rig.file("strange")).unwrap(), &contents(5));
    expect_cached(&rig, PAGES, "it says nothing");
    drop(file);
    rig.umount().unwrap();
}

#[test]
fn other_values_are_refused_and_so_is_what_the_source_cannot_hold() {
    let rig = Rig::dontcache(false, None);
    let path = rig.file("a");
    fs::write(&path, b"x").unwrap();
    for value in [&b""[..], b"2", b"yes", b"1\n", b"11"] {
        assert_eq!(setxattr(&path, NAME, value, XattrFlags::empty()), Err(Errno::INVAL));
    }
    let mut value = [0; 8];
    assert_eq!(getxattr(&path, NAME, &mut value), Err(Errno::NODATA));
    let rule = rig.faults.add(Rule::fail(ErrorKind::Unsupported).on("setxattr"));
    assert_eq!(setxattr(&path, NAME, b"1", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    rig.faults.remove(rule);
    assert_eq!(left_of_a_write(&rig, "b", None), PAGES, "as before");
    rig.umount().unwrap();
}

/// A source without attributes, or one that fails: the file can be opened and says nothing.
#[test]
fn a_source_that_cannot_say_it_is_no_reason_to_fail() {
    for kind in [ErrorKind::Unsupported, ErrorKind::Io] {
        let rig = Rig::dontcache(true, None);
        fs::write(rig.stored("a"), contents(1)).unwrap();
        setxattr(rig.stored("a"), NAME, b"0", XattrFlags::empty()).unwrap();
        let rule = rig.faults.add(Rule::fail(kind).on("getxattr"));
        let mut file = file_at(&rig, "a");
        file.read_to_end(&mut Vec::new()).unwrap();
        expect_cached(&rig, 0, "as the volume says");
        rig.faults.remove(rule);
        // What could not be read is asked for again; what is not there is known.
        let again = file_at(&rig, "a");
        file.rewind().unwrap();
        file.read_to_end(&mut Vec::new()).unwrap();
        expect_cached(&rig, if kind == ErrorKind::Io { PAGES } else { 0 }, "as the file says, if it can");
        drop((file, again));
        rig.umount().unwrap();
    }
}

#[test]
fn a_tenant_goes_before_the_volume_and_a_file_before_the_tenant() {
    for volume in [false, true] {
        for tenant in [None, Some(false), Some(true)] {
            let config = TenantConfig { limit_bytes: None, dontcache: tenant };
            let paying = Paying { by: TenantBy::Volume, config: [("volume".into(), config)].into() };
            let rig = Rig::dontcache(volume, Some(paying));
            let left = |stays_out| if stays_out { 0 } else { PAGES };
            let of_tenant = left(tenant.unwrap_or(volume));
            assert_eq!(left_of_a_write(&rig, "a", None), of_tenant, "{volume} {tenant:?}");
            assert_eq!(left_of_a_write(&rig, "b", Some("1")), 0);
            assert_eq!(left_of_a_write(&rig, "c", Some("0")), PAGES);
            rig.umount().unwrap();
        }
    }
}

/// Each read by read(2) comes to us, so that the kernel does not cache what we do not.
#[test]
fn a_reader_goes_around_the_kernels_cache_too_and_may_map_the_file() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = Rig::dontcache(true, None);
    fs::write(rig.stored("a"), contents(7)).unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reads);
    rig.faults.add(Rule::fail(ErrorKind::Io).on("read").matching(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        false
    }));
    for _ in 0..3 {
        let before = reads.load(Ordering::SeqCst);
        assert_same(&fs::read(rig.file("a")).unwrap(), &contents(7));
        assert_ne!(reads.load(Ordering::SeqCst), before, "answered from a cache");
    }
    let cat = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); \
               sys.stdout.buffer.write(m)";
    let mapped = Command::new("python3").args(["-c", cat, rig.file("a").to_str().unwrap()]).current_dir("/").output();
    assert_same(&mapped.unwrap().stdout, &contents(7));
    expect_cached(&rig, 0, "the kernel has what is mapped");
    rig.umount().unwrap();
}

#[test]
fn what_a_mapping_has_written_stays() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = Rig::dontcache(true, None);
    let file = File::create_new(rig.file("a")).unwrap();
    write(&file, &contents(8));
    let store = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); m[5000:5005] = b'mmap!'; \
                 m.flush()";
    let mut child = Command::new("python3");
    let mut child = child
        .args(["-c", store, rig.file("a").to_str().unwrap()])
        .current_dir("/")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait(&mut child).unwrap().success());
    rig.mounted.sync().unwrap();
    let mut wanted = contents(8);
    wanted[5000..5005].copy_from_slice(b"mmap!");
    assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
    expect_cached(&rig, 1, "the page that was mapped");
    drop(file);
    rig.umount().unwrap();
}
