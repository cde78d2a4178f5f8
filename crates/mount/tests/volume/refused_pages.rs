//! Mapped pages for which there is no frame because the source answers with errors. They used to wait for ever, and with
//! them every program that stored to the mapping, synced or truncated the file, or tried to exit: in the kernel, where
//! no signal ends it.

use std::fs::{self, File};
use std::time::Duration;

use slackwater::{ErrorKind, Tunables};
use slackwater_fuse::Errno;
use slackwater_mount::UmountRequest;
use slackwater_mount::tenants::TenantBy;
use slackwater_testkit::Rule;

use crate::mapper::Mapper;
use crate::programs::{until, wait};
use crate::rig::{Rig, TenantSetup, within};

/// Twice as large as the arena.
const LEN: u64 = 64 << 20;

/// Every error is final after 50 ms.
fn impatient() -> Tunables {
    let times = [5, 50].map(Duration::from_millis);
    Tunables { retry_min: times[0], retry_max: times[1], ..Tunables::default() }
}

fn number(errno: Errno) -> String {
    errno.raw_os_error().to_string()
}

/// Makes a file of [`LEN`] and maps it; then writes to the source fail with `kind`.
fn mapper_of_failing(rig: &Rig, kind: ErrorKind) -> Mapper {
    File::create(rig.file("a")).unwrap().set_len(LEN).unwrap();
    let mapper = Mapper::of(&rig.file("a"));
    rig.faults.add(Rule::fail(kind).on("write"));
    mapper
}

#[test]
fn p02_programs_get_the_error_of_a_source_that_refuses_mapped_pages() {
    for (kind, errno) in [
        (ErrorKind::NoSpace, Errno::NOSPC),
        (ErrorKind::Quota, Errno::DQUOT),
        (ErrorKind::ReadOnly, Errno::ROFS),
        (ErrorKind::Io, Errno::IO),
    ] {
        let rig = Rig::with(32 << 20, impatient());
        let mut mapper = mapper_of_failing(&rig, kind);
        mapper.run("fill a");
        assert_eq!(mapper.run("result a msync"), number(errno));
        let refused = rig.mounted.refused_bytes();
        assert!(refused > 0 && refused < LEN, "{refused}");
        mapper.run("fill a");
        assert_eq!(mapper.run("result a fsync"), number(errno));
        assert!(rig.mounted.refused_bytes() > refused);

        // Once the source accepts data again, stores are kept.
        rig.faults.clear();
        let _ = rig.mounted.sync(); // which may report what failed before
        rig.mounted.sync().unwrap();
        let refused = rig.mounted.refused_bytes();
        mapper.run("fill a");
        mapper.run("result a msync");
        assert_eq!((mapper.run("result a msync"), rig.mounted.refused_bytes()), ("0".to_owned(), refused));
        let stored = fs::read(rig.stored("a")).unwrap();
        assert!(stored.chunks(4096).all(|page| page.starts_with(b"filled")), "stores are missing");
        mapper.end();
        rig.umount().unwrap();
    }
}

#[test]
fn no_call_waits_for_ever_for_mapped_pages_that_the_source_refuses() {
    let limited = TenantSetup::of(TenantBy::Uid, &[("uid:0", 4 << 20)]);
    for setup in [None, Some(limited)] {
        let rig = match setup {
            None => Rig::with(32 << 20, impatient()),
            Some(setup) => Rig::with_tenants(32 << 20, impatient(), setup, |directory| std::sync::Arc::new(directory)),
        };
        let mut mapper = mapper_of_failing(&rig, ErrorKind::NoSpace);
        mapper.run("fill a");
        mapper.run("unmap a");
        mapper.run("map a");
        mapper.run("fill a");
        let path = rig.file("a");
        within("a truncation", move || File::options().write(true).open(path).unwrap().set_len(LEN - 1)).unwrap();
        mapper.begin("fill a");
        mapper.begin("result a msync");
        until("more pages are refused", || rig.mounted.refused_bytes() > LEN);
        mapper.child.kill().unwrap();
        assert!(wait(&mut mapper.child).is_some(), "the killed program hangs");
        let mounted = rig.mounted.clone();
        let request = UmountRequest { deadline: Some(Duration::from_secs(1)), ..UmountRequest::default() };
        within("an unmount", move || mounted.umount(request, &|_| {})).expect_err("dirty data is left");
        rig.faults.clear();
        rig.umount().unwrap();
    }
}

#[test]
fn mapped_pages_wait_for_a_source_that_fails_for_a_while() {
    let long = Duration::from_secs(3600);
    let rig = Rig::with(32 << 20, Tunables { retry_max: long, ..impatient() });
    File::create(rig.file("a")).unwrap().set_len(LEN).unwrap();
    let mut mapper = Mapper::of(&rig.file("a"));
    let rule = rig.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    mapper.begin("fill a");
    until("pages wait", || rig.mounted.parked_bytes() > 0 && rig.faults.strikes(rule) >= 5);
    rig.faults.clear();
    mapper.done();
    mapper.run("result a msync"); // the failed attempts
    assert_eq!((mapper.run("result a msync"), rig.mounted.refused_bytes()), ("0".to_owned(), 0));
    let stored = fs::read(rig.stored("a")).unwrap();
    assert!(stored.chunks(4096).all(|page| page.starts_with(b"filled")), "stores are missing");
    mapper.end();
    rig.umount().unwrap();
}
