//! P2, replayed. It is a test target of its own, since every unit of the process stops at the gate that it holds.

#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;

use std::sync::Arc;
use std::time::Duration;

use slackwater::{Clock, ErrorKind, Tunables};
use slackwater_sync::gate;
use slackwater_testkit::{Rule, pattern};

use crate::rig::{Rig, assert_same, spawn};

const MS: Duration = Duration::from_millis(1);

/// The backend has answered a write, but its pages are not marked yet, when a commit of the volume fails. The commit
/// may have lost those pages without knowing of them. A later successful sync of the file alone proves nothing about
/// them.
#[test]
fn p02_a_commit_that_fails_while_a_unit_ends_has_its_pages_written_again() {
    let rig = Rig::by_hand();
    let other = rig.create("other");
    other.write_at(0, b"waits for a commit").unwrap();
    while rig.stored("other").unwrap().is_empty() {
        rig.advance(500 * MS);
    }
    let file = Arc::new(rig.create("a"));
    let wanted = pattern(2, 10_000);
    file.write_at(0, &wanted).unwrap();

    let hold = gate::hold("unit.answered");
    let syncer = spawn("fsync", {
        let file = Arc::clone(&file);
        move || file.fsync()
    });
    hold.wait_reached();
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Lost).on("sync_volume").next(1));
    let begun = rig.clock.now();
    while rig.disk.faults.strikes(rule) == 0 {
        assert!(rig.clock.now().since(begun) < 2 * Tunables::default().commit_interval, "no commit was tried");
        rig.advance(100 * MS); // and no further: what failed is written again soon, and would stop at the gate
    }
    drop(hold);
    assert_eq!(syncer.wait().unwrap_err().kind(), ErrorKind::Lost);

    let writes = rig.disk.faults.add(Rule::short_write(usize::MAX));
    file.fsync().unwrap();
    assert!(rig.disk.faults.strikes(writes) > 0, "written again");
    assert_same(&rig.durable("a").unwrap(), &wanted, "fsync said so");
}
