//! A backend that fails for a while: every open file reports the error once, and no byte is lost.
//!
//! `cargo run --example survive_a_failing_backend`

use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::{MemBackend, NewNode};
use slackwater::{Engine, ErrorKind, File, Tunables, UmountError, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::SystemClock;
use slackwater_testkit::{Fault, Rule};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let disk = Arc::new(MemBackend::new());
    let (layer, faults) = Fault::new(disk.clone());
    let arena = Arena::create(&ArenaConfig::memfd(32 << 20))?;
    let engine = Engine::new(arena, Arc::new(SystemClock), Tunables::default());
    let volume = engine.mount("flaky", Arc::new(layer))?;

    let inode = volume.make(&volume.root()?, "precious", NewNode::File, 0o644)?;
    let (writer, bystander) = (File::open(&inode)?, File::open(&inode)?);
    writer.write_at(0, b"do not lose me")?;

    faults.add(Rule::fail(ErrorKind::NoSpace).on("write"));
    println!("fsync on a full disk: {}", writer.fsync().expect_err("the disk is full"));
    println!("another open file reports: {:?}", bystander.take_write_error());
    println!("and only once:             {:?}", bystander.take_write_error());
    drop((writer, bystander, inode));

    let hasty = UmountOptions { deadline: Some(Duration::from_millis(300)), ..UmountOptions::default() };
    match volume.umount(hasty) {
        Err(UmountError::Deadline { dirty_bytes, cause }) => {
            println!("unmount gives up with {dirty_bytes} bytes dirty ({cause:?}); the volume stays mounted");
        }
        other => return Err(format!("expected the deadline, got {other:?}").into()),
    }

    faults.clear();
    volume.umount(UmountOptions::default())?;
    let stored = disk.durable_file("precious").ok_or("the file is there")?;
    println!("once there is space: {:?}", String::from_utf8_lossy(&stored));
    assert_eq!(stored, b"do not lose me");
    Ok(())
}
