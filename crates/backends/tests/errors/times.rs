//! Times that are set while others are on their way.

use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::AttrChange;
use slackwater::{Timestamp, UmountOptions};
use slackwater_backends::Rule;

use crate::rig::{PATIENCE, Rig, spawn};

/// Copying a tree sets the mtime of each file just when the flusher may be sending the time of its last write.
/// A copy of 50,000 files had 3,400 times wrong.
#[test]
fn a_time_set_while_an_older_one_is_on_its_way_is_what_the_backend_ends_up_with() {
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    file.write_at(0, b"x").unwrap();
    let rule = rig.disk.faults.add(Rule::hold().on("setattr"));
    rig.advance(Duration::from_secs(40));
    let flush = rig.disk.faults.held()[0];
    let (volume, own) = (rig.volume.clone(), file.clone());
    let setter = spawn("setattr", move || {
        volume.setattr(own.inode(), AttrChange { mtime: Some(Timestamp(42)), ..AttrChange::default() })
    });
    let held = rig.disk.faults.wait_held(2, PATIENCE);
    rig.disk.faults.remove(rule);
    // The one that was submitted first arrives last.
    for one in held.iter().filter(|one| one.ticket != flush.ticket) {
        rig.disk.faults.release(one.ticket);
    }
    setter.wait().unwrap();
    rig.disk.faults.release(flush.ticket);
    rig.advance(Duration::from_secs(40));
    drop(file);
    rig.volume.umount(UmountOptions::default()).unwrap();
    let volume = rig.engine.mount("again", rig.disk.backend.clone()).unwrap();
    assert_eq!(volume.walk("a").unwrap().attr().mtime, Timestamp(42));
    volume.umount(UmountOptions::default()).unwrap();
}
