//! Two mounts that take one volume from each other again and again.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use slackwater::ErrorKind;
use slackwater::backend::NewNode;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU32, Ordering};
use tokio::time::sleep;

use crate::check::{FsckOptions, fsck};
use crate::contents::map;
use crate::error::VolumeError;
use crate::format::{ROOT, Stored};
use crate::mkfs::mkfs;
use crate::names;
use crate::runtime;
use crate::store::Location;
use crate::tree::{Stop, Tree, View};
use crate::volume::{ObjectBackend, OpenOptions, Role};

const FIGHTS: u32 = 50;

/// The files that both mounts have made durable.
#[derive(Default, Debug)]
struct Fight {
    openings: AtomicU32,
    stale: AtomicU32,
    waiting: AtomicU32,
    durable: Mutex<BTreeSet<String>>,
}

impl Fight {
    /// Waits until the other one has made something durable, unless it waits too: two that take over without a pause
    /// fence each other while they open.
    async fn let_the_other_work(&self) {
        let before = self.durable.lock().len();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let is_idle = || self.durable.lock().len() == before && self.waiting.load(Ordering::Relaxed) < 2;
        while is_idle() && self.openings.load(Ordering::Relaxed) <= FIGHTS {
            sleep(Duration::from_millis(1)).await;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn create(view: &mut View<'_>, name: &str) -> Result<(), Stop> {
    for dir in ["a", "b"] {
        let (dir, _) = names::lookup(view, ROOT, OsStr::new(dir))?;
        let (ino, _) = names::make(view, dir, OsStr::new(name), &NewNode::File, 0o644, None)?;
        let bytes = Bytes::copy_from_slice(name.as_bytes());
        let crc = crc32c::crc32c(&bytes);
        let stored_len = bytes.len() as u32;
        let (segment, offset) = view.append_small(ino, 0, crc, bytes);
        map::write(view, ino, 0, &Stored { segment, offset, stored_len, skip: 0, crc32c: vec![crc] })?;
    }
    Ok(())
}

/// Opens the volume, writes to it until it is fenced, and begins again.
async fn contend(location: Location, fight: Arc<Fight>, who: u32) {
    let mut made = 0;
    loop {
        let options = OpenOptions { take_over: true, ..OpenOptions::default() };
        let opened = match ObjectBackend::open_in_runtime(&location, &options).await {
            Ok(opened) => opened,
            // The other one was faster, and fenced this one while it was opening.
            Err(VolumeError::InUse(_)) => {
                fight.let_the_other_work().await;
                continue;
            }
            Err(VolumeError::Store(error)) if error.kind() == ErrorKind::Stale => {
                fight.let_the_other_work().await;
                continue;
            }
            Err(error) => panic!("cannot open: {error}"),
        };
        if fight.openings.fetch_add(1, Ordering::Relaxed) >= FIGHTS {
            opened.tree.close().await.ok();
            return;
        }
        let error = loop {
            made += 1;
            // Few commits per holder: each opening reads the logs of all that were made so far.
            sleep(Duration::from_millis(10)).await;
            let name = format!("{who}-{made}");
            if let Err(error) = opened.tree.run(|view| create(view, &name)).await {
                break error;
            }
            // Some calls share a commit.
            if made % 3 != 0 {
                match opened.tree.commit().await {
                    Ok(()) => fight.durable.lock().insert(name),
                    Err(error) => break error,
                };
            }
            if fight.openings.load(Ordering::Relaxed) > FIGHTS {
                opened.tree.close().await.ok();
                return;
            }
        };
        assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
        assert!(matches!(opened.status().role, Role::Fenced(Some(_))), "it knows the other at once");
        for _ in 0..2 {
            let again = opened.tree.run(|view| create(view, "never")).await.expect_err("it has lost the volume");
            assert_eq!(again.kind(), ErrorKind::Stale, "it stays so: {again}");
            assert_eq!(opened.tree.commit().await.expect_err("it has lost it").kind(), ErrorKind::Stale);
        }
        fight.stale.fetch_add(1, Ordering::Relaxed);
        fight.let_the_other_work().await;
    }
}

async fn names_of(tree: &Tree, dir: &str) -> BTreeSet<OsString> {
    let (mut found, mut cookie) = (BTreeSet::new(), 0);
    loop {
        let entries = tree.run(|view| {
            let (dir, _) = names::lookup(view, ROOT, OsStr::new(dir))?;
            names::readdir(view, dir, cookie)
        });
        let entries = entries.await.expect("lists");
        let Some(last) = entries.last() else { return found };
        cookie = last.cookie;
        found.extend(entries.into_iter().map(|entry| entry.name));
    }
}

#[test]
fn fights_lose_nothing_durable_and_leave_no_mixture() {
    let location = Location::parse("memory:fights").expect("valid");
    runtime::handle().expect("threads").block_on(async {
        mkfs(&location, 0o755).await.expect("makes");
        let first = ObjectBackend::open_in_runtime(&location, &OpenOptions::default()).await.expect("opens");
        let directories = first.tree.run(|view| {
            for name in ["a", "b"] {
                names::make(view, ROOT, OsStr::new(name), &NewNode::Directory, 0o755, None)?;
            }
            Ok(())
        });
        directories.await.expect("makes");
        first.tree.commit().await.expect("commits");

        let fight = Arc::new(Fight::default());
        let both = [1, 2].map(|who| tokio::spawn(contend(location.clone(), fight.clone(), who)));
        for one in both {
            let one = tokio::time::timeout(Duration::from_secs(600), one);
            let ended = one.await;
            ended.unwrap_or_else(|_| panic!("after 600 s: {fight:?}")).expect("it does not panic");
        }
        assert_eq!(first.tree.commit().await.err().map(|error| error.kind()), None, "it had nothing to commit");
        let late = first.tree.run(|view| create(view, "late")).await;
        let late = match late {
            Ok(()) => first.tree.commit().await,
            Err(error) => Err(error),
        };
        assert_eq!(late.expect_err("it was taken over first").kind(), ErrorKind::Stale);

        let options = OpenOptions { take_over: true, ..OpenOptions::default() };
        let last = ObjectBackend::open_in_runtime(&location, &options).await.expect("opens");
        let (a, b) = (names_of(&last.tree, "a").await, names_of(&last.tree, "b").await);
        assert_eq!(a, b, "a call is in the store as a whole or not at all");
        let durable = fight.durable.lock().clone();
        for name in &durable {
            assert!(a.contains(OsStr::new(name)), "{name} was durable");
        }
        assert!(!a.contains(OsStr::new("never")) && !a.contains(OsStr::new("late")));
        assert!(fight.stale.load(Ordering::Relaxed) > 0, "{:?} lost", fight.stale);
        last.tree.close().await.expect("closes");
        assert!(!durable.is_empty());
    });
    let options = FsckOptions { repair: false, data: true };
    let report = fsck(&location, &options, &mut |_| ()).expect("checks");
    assert_eq!(report.findings, []);
    assert_eq!(report.verified_bytes, report.live_bytes);
    assert!(report.live_bytes > 0);
}
