//! The life of a volume, with calls that are repeated and plugins that are killed.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use slackwater_csi_proto as csi;
use slackwater_csi_proto::volume_capability::access_mode::Mode;
use slackwater_csi_proto::volume_usage::Unit;
use tonic::Code;

use crate::client::Refused;
use crate::plugin::{Plugin, Volume, daemon_and_plugin, mounts_in, names_in, wanted};
use crate::process::is_mounted;
use crate::rig::{Scratch, wait_until};

/// Makes a call three times at once, and expects each to succeed.
#[track_caller]
pub(crate) fn thrice(call: impl Fn() -> Result<(), Refused> + Sync) {
    thread::scope(|scope| {
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(&call)).collect();
        calls.into_iter().for_each(|call| assert_eq!(call.join().unwrap(), Ok(())));
    });
}

/// The context of a volume is what the storage class said.
#[test]
fn limits_of_a_volume_are_those_of_its_context() {
    let scratch = Scratch::new();
    let (daemon, plugin) = daemon_and_plugin(&scratch);
    let mut volume = Volume::create(&scratch, &plugin, "a");
    volume.context.insert("slackwater.dirty-limit".to_owned(), "2MiB".to_owned());
    volume.context.insert("slackwater.dirty-expire".to_owned(), "1s".to_owned());
    volume.stage().unwrap();
    assert_eq!(daemon.share_of(&volume.id), 2 << 20);
    fs::write(volume.staging.join("file"), b"soon").unwrap();
    wait_until("a second has passed", || fs::read(volume.source().join("file")).is_ok_and(|bytes| bytes == b"soon"));
    // Within the limits of writers, more than the limit is written.
    fs::write(volume.staging.join("large"), vec![1; 8 << 20]).unwrap();
    volume.unstage().unwrap();
    assert_eq!(fs::metadata(volume.source().join("large")).unwrap().len(), 8 << 20);
    plugin.end();
    daemon.end();
}

#[test]
fn each_call_may_come_three_times_at_once_and_again_after_a_kill() {
    let scratch = Scratch::new();
    let (daemon, mut plugin) = daemon_and_plugin(&scratch);
    let pool = scratch.path.join("pool");
    let volume = Volume::create(&scratch, &plugin, "a");
    thrice(|| {
        let request = wanted("a", Mode::SingleNodeWriter);
        let made = plugin.call::<csi::CreateVolumeResponse>("Controller/CreateVolume", &request)?;
        assert_eq!(made.volume.unwrap().volume_id, volume.id);
        Ok(())
    });
    let again = |plugin: &mut Plugin, call: &(dyn Fn() -> Result<(), Refused> + Sync)| {
        thrice(call);
        plugin.kill_and_restart();
        thrice(call);
    };
    again(&mut plugin, &|| volume.stage());
    again(&mut plugin, &|| volume.publish(false));
    assert_eq!(mounts_in(&scratch), [volume.staging.clone(), volume.target.clone()]);
    fs::write(volume.target.join("file"), b"data").unwrap();
    again(&mut plugin, &|| volume.unpublish());
    assert!(!volume.target.exists());
    again(&mut plugin, &|| volume.unstage());
    assert_eq!(fs::read(volume.source().join("file")).unwrap(), b"data");
    assert_eq!(mounts_in(&scratch), Vec::<PathBuf>::new());
    again(&mut plugin, &|| volume.delete());
    assert_eq!(names_in(&pool), [""; 0]);
    plugin.end();
    assert_eq!(daemon.states(), []);
    daemon.end();
}

#[test]
fn programs_do_not_notice_that_the_plugin_is_killed() {
    const KILLS: u32 = 20;
    let scratch = Scratch::new();
    let (daemon, mut plugin) = daemon_and_plugin(&scratch);
    let volume = Volume::create(&scratch, &plugin, "a");
    volume.stage().unwrap();
    volume.publish(false).unwrap();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut file = File::create(volume.target.join("log")).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                file.write_all(b"line\n").unwrap();
                file.sync_all().unwrap();
                written.fetch_add(5, Ordering::Relaxed);
            }
        });
        for _ in 0..KILLS {
            let before = written.load(Ordering::Relaxed);
            // A call is cut off somewhere.
            let called = scope.spawn(|| volume.try_publish(false));
            plugin.kill_and_restart();
            let _ = called.join().unwrap();
            assert_eq!(volume.publish(false), Ok(()));
            wait_until("the program has written more", || written.load(Ordering::Relaxed) > before);
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(file);
    volume.unpublish().unwrap();
    volume.unstage().unwrap();
    assert_eq!(fs::metadata(volume.source().join("log")).unwrap().len(), written.load(Ordering::Relaxed));
    volume.delete().unwrap();
    plugin.end();
    daemon.end();
}

#[test]
fn calls_that_a_kill_cuts_off_are_carried_out_when_they_are_repeated() {
    let scratch = Scratch::new();
    let (daemon, mut plugin) = daemon_and_plugin(&scratch);
    let volume = Volume::create(&scratch, &plugin, "a");
    // The second step of a read-only publish must not get lost either.
    type Call = fn(&Volume) -> Option<Result<(), Refused>>;
    let calls: [Call; 4] =
        [Volume::try_stage, |volume| volume.try_publish(true), Volume::try_unpublish, Volume::try_unstage];
    for round in 0..10 {
        for call in calls {
            thread::scope(|scope| {
                let called = scope.spawn(|| call(&volume));
                plugin.kill_and_restart();
                let _ = called.join().unwrap();
            });
            assert_eq!(call(&volume), Some(Ok(())), "round {round}");
            if is_mounted(&volume.target) {
                assert!(fs::write(volume.target.join("file"), b"x").is_err(), "the mount is read-only");
            }
        }
        assert_eq!(mounts_in(&scratch), Vec::<PathBuf>::new());
        assert!(!volume.target.exists());
    }
    volume.delete().unwrap();
    plugin.end();
    daemon.end();
}

#[test]
fn a_volume_is_published_read_only_beside_a_writable_place() {
    let scratch = Scratch::new();
    let (daemon, plugin) = daemon_and_plugin(&scratch);
    let volume = Volume::create(&scratch, &plugin, "a");
    let reader = volume.at(scratch.path.join("a-pods/reader"));
    volume.stage().unwrap();
    volume.publish(false).unwrap();
    reader.publish(true).unwrap();
    fs::write(volume.target.join("file"), b"data").unwrap();
    assert_eq!(fs::read(reader.target.join("file")).unwrap(), b"data");
    let refused = fs::write(reader.target.join("file"), b"other").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // The same place with the other access.
    assert_eq!(reader.publish(false).unwrap_err().code, Code::AlreadyExists);
    assert_eq!(volume.publish(true).unwrap_err().code, Code::AlreadyExists);

    let stats = csi::NodeGetVolumeStatsRequest {
        volume_id: volume.id.clone(),
        volume_path: reader.target.to_str().unwrap().to_owned(),
        ..csi::NodeGetVolumeStatsRequest::default()
    };
    let stats: csi::NodeGetVolumeStatsResponse = plugin.call("Node/NodeGetVolumeStats", &stats).unwrap();
    let units: Vec<_> = stats.usage.iter().map(|usage| usage.unit()).collect();
    assert_eq!(units, [Unit::Bytes, Unit::Inodes]);
    assert!(stats.usage.iter().all(|usage| usage.total > 0 && usage.available > 0), "{stats:?}");

    reader.unpublish().unwrap();
    volume.unpublish().unwrap();
    volume.unstage().unwrap();
    volume.delete().unwrap();
    plugin.end();
    daemon.end();
}

#[test]
fn a_single_writer_has_the_volume_at_one_place_only() {
    let scratch = Scratch::new();
    let (daemon, plugin) = daemon_and_plugin(&scratch);
    let volume = Volume::create(&scratch, &plugin, "a").with(Mode::SingleNodeSingleWriter);
    volume.stage().unwrap();
    volume.publish(false).unwrap();
    volume.publish(false).unwrap();
    let second = volume.at(scratch.path.join("a-pods/second"));
    let refused = second.publish(false).unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.message.contains(volume.target.to_str().unwrap()), "{}", refused.message);
    volume.unpublish().unwrap();
    second.publish(false).unwrap();
    second.unpublish().unwrap();
    // A reader of another machine cannot have a directory.
    let many = wanted("many", Mode::MultiNodeReaderOnly);
    let refused = plugin.call::<csi::CreateVolumeResponse>("Controller/CreateVolume", &many).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    volume.unstage().unwrap();
    volume.delete().unwrap();
    plugin.end();
    daemon.end();
}
