//! Data that stays out of the cache: by the setting of the file, the tenant, or the volume, in this order.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use slackwater::{ErrorKind, Tunables};
use slackwater_mount::tenants::{TenantBy, TenantConfig};
use slackwater_testkit::{Rule, pattern};

use crate::needs;
use crate::programs::{until, wait};
use crate::rig::{Rig, TenantSetup, assert_same, new_home};

const NAME: &str = "user.slackwater.dontcache";
const PAGE: u64 = 4096;
/// Pages of a test file. Its writes are small enough to be copied, so no frames are lent to reading threads.
const PAGES: u64 = 48;
const BLOCK: usize = 64 << 10;

/// Number of pages in the cache.
fn cached(rig: &Rig) -> u64 {
    let arena = rig.engine.arena();
    u64::from(arena.frames()) - arena.free_frames()
}

/// Waits until that many pages are cached. A page lent to a reply leaves the cache a moment after the reply is sent.
#[track_caller]
fn expect_cached(rig: &Rig, pages: u64, why: &str) {
    until(&format!("{pages} pages in the cache: {why}"), || cached(rig) == pages);
}

fn write(file: &File, bytes: &[u8]) {
    for (number, block) in bytes.chunks(BLOCK).enumerate() {
        file.write_all_at(block, (number * BLOCK) as u64).unwrap();
    }
}

fn contents(seed: u64) -> Vec<u8> {
    pattern(seed, (PAGES * PAGE) as usize)
}

/// Pages that remain when a new file was written through an open descriptor and is clean.
fn cached_after_write(rig: &Rig, name: &str, value: Option<&str>) -> u64 {
    let before = cached(rig);
    let file = File::create_new(rig.file(name)).unwrap();
    if let Some(value) = value {
        setxattr(rig.file(name), NAME, value.as_bytes(), XattrFlags::empty()).unwrap();
    }
    write(&file, &contents(3));
    rig.mounted.sync().unwrap();
    assert_same(&fs::read(rig.stored(name)).unwrap(), &contents(3));
    cached(rig) - before
}

#[test]
fn p10_nothing_is_left_in_the_cache_of_a_volume_that_stays_out_of_it() {
    let rig = Rig::dontcache(true, None);
    assert_eq!(cached_after_write(&rig, "a", None), 0);
    for _ in 0..2 {
        assert_same(&fs::read(rig.file("a")).unwrap(), &contents(3));
        expect_cached(&rig, 0, "no pages of a read");
    }
    fs::copy(rig.file("a"), rig.file("b")).unwrap();
    rig.mounted.sync().unwrap();
    assert_same(&fs::read(rig.stored("b")).unwrap(), &contents(3));
    expect_cached(&rig, 0, "no pages of a copy by the kernel");
    rig.umount().unwrap();
}

/// Payloads of this size land in frames. Those are lent again, and take at most a sixteenth of the cache.
#[test]
fn p10_large_writes_leave_only_lent_frames() {
    let rig = Rig::dontcache(true, None);
    let file = File::create_new(rig.file("a")).unwrap();
    let block = pattern(1, 1 << 20);
    for mebibyte in 0..64 {
        file.write_all_at(&block, mebibyte << 20).unwrap();
    }
    rig.mounted.sync().unwrap();
    until("only lent frames are used", || cached(&rig) <= (32 << 20) / 16 / PAGE);
    assert!(rig.mounted.super_block().status().dontcache_passes > 0);
    let mut read = vec![0; 1 << 20];
    for mebibyte in 0..64 {
        file_at(&rig, "a").read_exact_at(&mut read, mebibyte << 20).unwrap();
        assert_same(&read, &block);
    }
    until("only lent frames are used", || cached(&rig) <= (32 << 20) / 16 / PAGE);
    drop(file);
    rig.umount().unwrap();
}

fn file_at(rig: &Rig, name: &str) -> File {
    File::open(rig.file(name)).unwrap()
}

#[test]
fn the_setting_of_a_file_applies_at_once_to_open_files() {
    let rig = Rig::dontcache(false, None);
    assert_eq!(cached_after_write(&rig, "plain", None), PAGES);
    assert_eq!(cached_after_write(&rig, "a", Some("1")), 0);
    let file = File::options().read(true).write(true).open(rig.file("a")).unwrap();
    let mut value = [0; 8];
    assert_eq!(getxattr(rig.stored("a"), NAME, &mut value), Ok(1), "stored in the source like any other attribute");
    for (value, left) in [(Some("0"), PAGES), (Some("1"), PAGES), (None, PAGES)] {
        match value {
            Some(value) => setxattr(rig.file("a"), NAME, value.as_bytes(), XattrFlags::REPLACE).unwrap(),
            None => removexattr(rig.file("a"), NAME).unwrap(),
        }
        write(&file, &contents(4));
        rig.mounted.sync().unwrap();
        expect_cached(&rig, PAGES + left, &format!("cached pages stay: {value:?}"));
    }
    drop(file);
    rig.umount().unwrap();
}

#[test]
fn a_file_can_be_exempt_on_a_volume_that_stays_out_of_the_cache() {
    let rig = Rig::dontcache(true, None);
    assert_eq!(cached_after_write(&rig, "a", Some("0")), PAGES);
    assert_eq!(cached_after_write(&rig, "b", None), 0);
    removexattr(rig.file("a"), NAME).unwrap();
    let reader = file_at(&rig, "a");
    reader.read_exact_at(&mut [0; 10], 0).unwrap();
    expect_cached(&rig, PAGES, "pages cached before stay");
    drop(reader);
    rig.umount().unwrap();
}

/// The setting is in the source before the mount, as after a remount.
#[test]
fn a_setting_in_the_source_is_found_when_the_file_is_opened() {
    let home = new_home();
    let source = home.join("source");
    fs::create_dir(&source).unwrap();
    for (name, value) in [("a", &b"1"[..]), ("strange", b"perhaps")] {
        fs::write(source.join(name), contents(5)).unwrap();
        setxattr(source.join(name), NAME, value, XattrFlags::empty()).unwrap();
    }
    let rig = Rig::over(home, source, 32 << 20, Tunables { readahead_pages: 0, ..Tunables::default() });
    assert_same(&fs::read(rig.file("a")).unwrap(), &contents(5));
    expect_cached(&rig, 0, "the attribute is 1");
    let file = File::options().write(true).open(rig.file("a")).unwrap();
    write(&file, &contents(6));
    rig.mounted.sync().unwrap();
    expect_cached(&rig, 0, "no pages of a write");
    assert_same(&fs::read(rig.file("strange")).unwrap(), &contents(5));
    expect_cached(&rig, PAGES, "the attribute is invalid");
    drop(file);
    rig.umount().unwrap();
}

#[test]
fn invalid_values_are_rejected_and_so_are_those_the_source_cannot_store() {
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
    assert_eq!(cached_after_write(&rig, "b", None), PAGES, "as before");
    rig.umount().unwrap();
}

/// A source without attributes, or one that fails: the file can be opened and has no setting.
#[test]
fn a_source_without_the_attribute_does_not_fail_an_open() {
    for kind in [ErrorKind::Unsupported, ErrorKind::Io] {
        let rig = Rig::dontcache(true, None);
        fs::write(rig.stored("a"), contents(1)).unwrap();
        setxattr(rig.stored("a"), NAME, b"0", XattrFlags::empty()).unwrap();
        let rule = rig.faults.add(Rule::fail(kind).on("getxattr"));
        let mut file = file_at(&rig, "a");
        file.read_to_end(&mut Vec::new()).unwrap();
        expect_cached(&rig, 0, "the volume's setting applies");
        rig.faults.remove(rule);
        // After a failure the attribute is read again; a missing attribute is known.
        let again = file_at(&rig, "a");
        file.rewind().unwrap();
        file.read_to_end(&mut Vec::new()).unwrap();
        expect_cached(
            &rig,
            if kind == ErrorKind::Io { PAGES } else { 0 },
            "the file's setting applies, if it can be read",
        );
        drop((file, again));
        rig.umount().unwrap();
    }
}

#[test]
fn a_tenants_setting_overrides_the_volumes_and_a_files_overrides_the_tenants() {
    for volume in [false, true] {
        for tenant in [None, Some(false), Some(true)] {
            let config = TenantConfig { limit_bytes: None, dontcache: tenant };
            let setup = TenantSetup { by: TenantBy::Volume, config: [("volume".into(), config)].into() };
            let rig = Rig::dontcache(volume, Some(setup));
            let left = |stays_out| if stays_out { 0 } else { PAGES };
            let of_tenant = left(tenant.unwrap_or(volume));
            assert_eq!(cached_after_write(&rig, "a", None), of_tenant, "{volume} {tenant:?}");
            assert_eq!(cached_after_write(&rig, "b", Some("1")), 0);
            assert_eq!(cached_after_write(&rig, "c", Some("0")), PAGES);
            rig.umount().unwrap();
        }
    }
}

/// Each read(2) is a request, so that the kernel does not cache data that stays out of our cache.
#[test]
fn a_reader_bypasses_the_kernels_cache_too_and_may_map_the_file() {
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
    expect_cached(&rig, 0, "mapped pages are in the kernel");
    rig.umount().unwrap();
}

#[test]
fn pages_written_by_a_mapping_stay_cached() {
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
