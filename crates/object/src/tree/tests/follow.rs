//! Readers that follow a writer.

use std::ffi::OsStr;
use std::time::Duration;

use slackwater::ErrorKind;
use slackwater::backend::{NewNode, RenameMode};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};
use tokio::time::sleep;

use super::rig::{Rig, block_on};
use crate::format::ROOT;
use crate::layers::{Failure, Fault, Layered, Operation, Rule};
use crate::names;
use crate::tree::{Stop, Tree, View};

const AGE: Duration = Duration::from_millis(100);

async fn follow(rig: &Rig) -> Arc<Tree> {
    Tree::follow(rig.place.store.clone(), rig.options.salt, AGE).await.expect("follows")
}

fn make(view: &mut View<'_>, dir: u64, name: &str, what: &NewNode) -> Result<u64, Stop> {
    Ok(names::make(view, dir, OsStr::new(name), what, 0o755, None)?.0)
}

/// A volume with two directories, and a file in the first.
async fn volume(tree: &Tree) -> [u64; 2] {
    tree.run(|view| {
        names::make_root(view, 0o755, (0, 0));
        Ok(())
    })
    .await
    .expect("makes a root");
    let dirs = tree.run(|view| {
        let dirs = [make(view, ROOT, "a", &NewNode::Directory)?, make(view, ROOT, "b", &NewNode::Directory)?];
        make(view, dirs[0], "file", &NewNode::File)?;
        Ok(dirs)
    });
    let dirs = dirs.await.expect("makes");
    tree.commit().await.expect("commits");
    dirs
}

/// Waits until `reader` has shown every commit of `writer`.
async fn catch_up(writer: &Tree, reader: &Tree) {
    let commit = writer.counters().commit - 1;
    while reader.counters().commit < commit {
        sleep(AGE / 10).await;
    }
}

#[test]
fn a_reader_sees_what_is_committed_and_changes_nothing() {
    block_on(async {
        let rig = Rig::new();
        let writer = rig.open().await;
        let [a, _] = volume(&writer).await;
        let reader = follow(&rig).await;
        let names = |tree: Arc<Tree>| async move {
            let found = tree.run(|view| names::readdir(view, a, 0)).await.expect("lists");
            found.into_iter().map(|entry| entry.name.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(reader.clone()).await, ["file"]);

        writer.run(|view| make(view, a, "second", &NewNode::File)).await.expect("makes");
        assert_eq!(names(reader.clone()).await, ["file"], "it is not committed");
        writer.commit().await.expect("commits");
        catch_up(&writer, &reader).await;
        assert_eq!(names(reader.clone()).await.len(), 2, "nothing of the earlier state is cached");

        let refused = reader.run(|view| make(view, a, "third", &NewNode::File)).await;
        assert_eq!(refused.expect_err("it is a reader").kind(), ErrorKind::ReadOnly);
        reader.commit().await.expect("there is nothing to commit");
        writer.run(|view| make(view, a, "third", &NewNode::File)).await.expect("the reader has not fenced the writer");
        writer.commit().await.expect("commits");
    });
}

/// The writer moves a file to and fro. In every state, exactly one directory has it. A reader that mixed two states
/// would see both or neither.
#[test]
fn a_reader_never_sees_two_states_in_one_call() {
    block_on(async {
        let rig = Rig::new();
        let writer = rig.open().await;
        let dirs = volume(&writer).await;
        let reader = follow(&rig).await;
        let seen = Arc::new(AtomicUsize::new(0));
        let moving = tokio::spawn({
            let (writer, seen) = (writer.clone(), Arc::clone(&seen));
            async move {
                for round in 0..300_usize {
                    // On a busy machine, the reader catches up only while the writer pauses.
                    while round % 100 == 0 && seen.load(Ordering::Relaxed) <= round / 100 {
                        sleep(Duration::from_millis(2)).await;
                    }
                    let (from, to) = (dirs[round % 2], dirs[(round + 1) % 2]);
                    let name = OsStr::new("file");
                    let moved = writer.run(|view| {
                        make(view, to, &format!("beside-{round}"), &NewNode::File)?;
                        names::rename(view, (from, name), (to, name), RenameMode::NoReplace)
                    });
                    moved.await.expect("moves");
                    writer.commit().await.expect("commits");
                    sleep(Duration::from_millis(2)).await;
                }
            }
        });
        let (mut walks, mut states) = (0, std::collections::BTreeSet::new());
        while !moving.is_finished() {
            let walk = reader.run(|view| {
                let mut found = 0;
                for dir in dirs {
                    for entry in names::readdir(view, dir, 0)? {
                        // Each name leads to an inode.
                        names::lookup(view, dir, &entry.name)?;
                        found += u32::from(entry.name == "file");
                    }
                }
                Ok((found, view.counters()))
            });
            let (found, counters) = walk.await.expect("walks");
            assert_eq!(found, 1, "commit {}", counters.commit);
            walks += 1;
            states.insert(counters.commit);
            seen.store(states.len(), Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
        moving.await.expect("moves");
        catch_up(&writer, &reader).await;
        let last = reader.run(|view| names::lookup(view, dirs[0], OsStr::new("file"))).await;
        last.expect("after an even number of moves it is where it was");
        assert!(states.len() > 2, "{walks} walks saw {states:?}");
    });
}

#[test]
fn a_reader_follows_the_writer_that_took_over() {
    block_on(async {
        let rig = Rig::new();
        let first = rig.open().await;
        let [a, b] = volume(&first).await;
        let reader = follow(&rig).await;
        let second = rig.open().await;
        second.run(|view| make(view, b, "new", &NewNode::File)).await.expect("makes");
        second.commit().await.expect("commits");
        catch_up(&second, &reader).await;
        reader.run(|view| names::lookup(view, b, OsStr::new("new"))).await.expect("it follows");
        reader.run(|view| names::lookup(view, a, OsStr::new("file"))).await.expect("the rest is there");
    });
}

#[test]
fn a_closed_reader_stops() {
    block_on(async {
        let rig = Rig::new();
        let writer = rig.open().await;
        let [a, _] = volume(&writer).await;
        let reader = follow(&rig).await;
        reader.close().await.expect("closes");
        let refused = reader.run(|view| names::lookup(view, a, OsStr::new("none"))).await;
        assert!(refused.is_err());
    });
}

/// A reader whose machine has slept shows a state whose files the writer has removed, until SlateDB looks again.
#[test]
fn a_file_that_is_gone_is_looked_for_in_the_next_state() {
    block_on(async {
        let mut rig = Rig::new();
        let fault = Arc::new(Fault::new());
        rig.place.store = Arc::new(Layered::new(fault.clone(), rig.place.store.clone()));
        let writer = rig.open().await;
        let [a, _] = volume(&writer).await;
        writer.base.as_ref().expect("it has a store").store_table().await.expect("stores");
        let age = Duration::from_secs(2);
        let find = |tree: Arc<Tree>| async move { tree.run(|view| names::lookup(view, a, OsStr::new("file"))).await };
        let follow = || Tree::follow(rig.place.store.clone(), rig.options.salt, age);

        let reader = follow().await.expect("follows");
        fault.add(Rule::fail(Failure::NotFound).on(Operation::Get).under("compacted").next(1));
        find(reader).await.expect("the call begins again");

        let reader = follow().await.expect("follows");
        fault.clear();
        fault.add(Rule::fail(Failure::NotFound).on(Operation::Get).under("compacted"));
        let error = find(reader).await.expect_err("the file is not there in the next state either");
        assert_eq!(error.kind(), ErrorKind::Io);
    });
}
