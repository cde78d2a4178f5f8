//! Object volumes, which belong to no machine.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use slackwater_csi_proto as csi;
use slackwater_csi_proto::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::life::thrice;
use crate::plugin::{Plugin, Volume, names_in, wanted};
use crate::process::Daemon;
use crate::rig::{Scratch, need_fuse};
use crate::store::stores;

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

#[test]
fn the_secrets_of_a_volume_lead_to_its_store_and_stay_until_it_is_unstaged() {
    need_fuse();
    let scratch = Scratch::new();
    let Some(store) = stores(&scratch).into_iter().find(|store| store.objects.is_none()) else { return };
    let secrets: HashMap<_, _> = store.environment.iter().cloned().collect();
    let with_decoys = |command: &mut Command| {
        command.envs(store.decoys());
    };
    let mut daemon = Daemon::start_with(&scratch, "", with_decoys);
    let mut plugin = Plugin::start(&scratch, &store.url, &[]);
    let create = |secrets: &HashMap<String, String>| {
        let wanted = csi::CreateVolumeRequest { secrets: secrets.clone(), ..wanted("refused", Mode::SingleNodeWriter) };
        let refused = plugin.call::<csi::CreateVolumeResponse>("Controller/CreateVolume", &wanted).unwrap_err();
        assert!(secrets.values().all(|value| value.len() < 8 || !refused.message.contains(value)), "{refused:?}");
        refused.code
    };
    let changed = |name: &str, value: &str| {
        let mut secrets = secrets.clone();
        secrets.insert(name.to_owned(), value.to_owned());
        secrets
    };
    assert_eq!(create(&changed("AWS_SECRET_ACCESS_KEY", "another key")), Code::Internal);
    assert_eq!(create(&changed("AWS_SECRET_ACCESS_KEY", "")), Code::InvalidArgument);
    assert_eq!(create(&changed("AWS_SHARED_CREDENTIALS_FILE", "/root/.aws/credentials")), Code::InvalidArgument);

    let volume = Volume::create_with(&scratch, &plugin, "a", secrets.clone());
    let keys = scratch.path.join("run/credentials");
    let without = Volume { secrets: HashMap::new(), ..volume.clone() };
    assert_eq!(without.stage().unwrap_err().code, Code::Internal);
    let wrong = Volume { secrets: changed("AWS_SECRET_ACCESS_KEY", "another key"), ..volume.clone() };
    assert_eq!(wrong.stage().unwrap_err().code, Code::Internal);
    assert!(names_in(&keys).is_empty(), "nothing is left of credentials that were of no use");
    thrice(|| volume.stage());
    let file = keys.join(&volume.id);
    assert_eq!(names_in(&keys), [volume.id.as_str()]);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    fs::write(volume.staging.join("file"), "content").unwrap();
    // Nothing is staged there.
    Volume { staging: scratch.path.join("elsewhere"), ..volume.clone() }.unstage().unwrap();
    assert!(file.exists(), "the volume is staged");
    // The next daemon writes back what this one leaves.
    daemon.kill();
    drop(daemon);
    let daemon = Daemon::start_with(&scratch, "", with_decoys);
    thrice(|| volume.unstage());
    assert!(names_in(&keys).is_empty());
    volume.stage().unwrap();
    assert_eq!(fs::read(volume.staging.join("file")).unwrap(), b"content");
    volume.unstage().unwrap();
    // The next plugin does not finish it with the identity of the node.
    plugin.kill_and_restart();
    assert_eq!(without.delete().unwrap_err().code, Code::InvalidArgument);
    assert_eq!(wrong.delete().unwrap_err().code, Code::Internal);
    plugin.kill_and_restart();
    assert!(scratch.path.join("state").join(format!("{}.json", volume.id)).exists());
    thrice(|| volume.delete());
    assert!(!daemon.all_said().contains(&secrets["AWS_SECRET_ACCESS_KEY"]));
    plugin.end();
    daemon.end();
}
