//! Object volumes, which belong to no machine.

use std::fs;

use tonic::Code;

use crate::life::thrice;
use crate::plugin::{Plugin, Volume, names_in};
use crate::process::Daemon;
use crate::rig::{Scratch, need_fuse};

#[test]
fn any_machine_deletes_an_object_volume_of_a_named_pool_once_no_machine_uses_it() {
    need_fuse();
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let store = scratch.path.join("store");
    let pool = format!("file://{}", store.display());
    let daemon = Daemon::start(&scratch, "");
    let plugin = Plugin::start(&scratch, &pool, &[]);
    let other = Plugin::start(&elsewhere, &pool, &["--mode", "controller"]);
    let (volume, stays) = (Volume::create(&scratch, &plugin, "a"), Volume::create(&scratch, &plugin, "b"));
    volume.stage().unwrap();
    fs::write(volume.staging.join("file"), "content").unwrap();
    let seen_there = Volume { endpoint: other.endpoint.clone(), ..volume.clone() };
    assert_eq!(seen_there.delete().unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(fs::read(volume.staging.join("file")).unwrap(), b"content");
    volume.unstage().unwrap();
    seen_there.delete().unwrap();
    assert_eq!(names_in(&store).len(), 1);
    thrice(|| seen_there.delete());
    thrice(|| volume.delete());
    stays.delete().unwrap();
    assert!(names_in(&store).is_empty());
    other.end();
    plugin.end();
    daemon.end();
}
