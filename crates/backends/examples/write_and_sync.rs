//! A directory behind the cache: writes, syncs one file, unmounts, and reads the directory.
//!
//! `cargo run --example write_and_sync`

use std::sync::Arc;
use std::time::Instant;

use slackwater::backend::NewNode;
use slackwater::{Engine, File, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{DirBackend, SystemClock};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("slackwater-example-{}", std::process::id()));
    std::fs::create_dir(&dir)?;

    // 64 MiB of page frames. The arena is allocated here as a whole, and the cache never uses more.
    let arena = Arena::create(&ArenaConfig::memfd(64 << 20))?;
    let engine = Engine::new(arena, Arc::new(SystemClock), Tunables::default());
    let volume = engine.mount("example", Arc::new(DirBackend::open(&dir)?))?;

    let inode = volume.make(&volume.root()?, "log", NewNode::File, 0o644)?;
    let file = File::open(&inode)?;
    let start = Instant::now();
    for line in 0..100_000_u64 {
        file.write_at(line * 32, format!("{line:31}\n").as_bytes())?;
    }
    println!("100,000 writes into the cache: {:?}", start.elapsed());
    println!("in the directory so far: {} bytes", std::fs::metadata(dir.join("log"))?.len());

    let start = Instant::now();
    file.fsync()?;
    println!("fsync: {:?}; in the directory: {} bytes", start.elapsed(), std::fs::metadata(dir.join("log"))?.len());

    // One more line, not synced: the unmount writes it back.
    file.write_at(3_200_000, b"the last line\n")?;
    drop((file, inode));
    volume.umount(UmountOptions::default())?;
    let stored = std::fs::read(dir.join("log"))?;
    assert!(stored.ends_with(b"the last line\n"));
    println!("after unmount: {} bytes", stored.len());

    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
