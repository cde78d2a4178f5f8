//! The command line, and refusals of requests.

use std::collections::HashMap;

use slackwater_csi_proto as csi;
use slackwater_csi_proto::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::plugin::{Plugin, wanted};
use crate::process::Daemon;
use crate::rig::{Scratch, need_fuse};

#[test]
fn wrong_arguments_are_refused_with_an_example() {
    let scratch = Scratch::new();
    let endpoint = scratch.path.join("csi.sock").display().to_string();
    let state = scratch.path.join("state").display().to_string();
    let csi = |more: &[&str]| scratch.run([&["csi", "--state", &state][..], more].concat());
    csi(&[]).expect(2, &["--endpoint"]);
    csi(&["--endpoint", "tcp://127.0.0.1:1"]).expect(2, &["not the path of a Unix socket", "unix:///csi/csi.sock"]);
    csi(&["--endpoint", &endpoint, "--pool", "/srv"]).expect(2, &["fast=/srv/fast"]);
    csi(&["--endpoint", &endpoint, "--pool", "a=srv"]).expect(2, &["absolute path"]);
    csi(&["--endpoint", &endpoint, "--topology", "x"]).expect(2, &["kubernetes.io/hostname=worker-1"]);
}

#[test]
fn a_second_plugin_is_refused_and_modes_have_their_services() {
    need_fuse();
    let scratch = Scratch::new();
    let pool = scratch.dir("pool", 0o755);
    let daemon = Daemon::start(&scratch, "");
    let plugin = Plugin::start(&scratch, pool.to_str().unwrap(), &["--mode", "controller"]);
    let endpoint = plugin.endpoint.to_str().unwrap().to_owned();
    scratch.run(["csi", "--endpoint", &endpoint, "--mode", "node"]).expect(3, &["another process listens"]);
    let info = csi::NodeGetInfoRequest {};
    let refused = plugin.call::<csi::NodeGetInfoResponse>("Node/NodeGetInfo", &info).unwrap_err();
    assert_eq!(refused.code, Code::Unimplemented);
    plugin.end();

    let plugin = Plugin::start(&scratch, pool.to_str().unwrap(), &["--mode", "node", "--topology", "zone=a"]);
    let info: csi::NodeGetInfoResponse = plugin.call("Node/NodeGetInfo", &info).unwrap();
    assert_eq!((info.node_id.as_str(), info.accessible_topology.unwrap().segments["zone"].as_str()), ("here", "a"));
    let probe: csi::ProbeResponse = plugin.call("Identity/Probe", &csi::ProbeRequest {}).unwrap();
    assert_eq!(probe.ready, Some(true));
    daemon.end();
    let probe: csi::ProbeResponse = plugin.call("Identity/Probe", &csi::ProbeRequest {}).unwrap();
    assert_eq!(probe.ready, Some(false));
    plugin.end();
}

#[test]
fn parameters_are_checked_and_volumes_are_made_where_they_are_required() {
    let scratch = Scratch::new();
    let pool = scratch.dir("pool", 0o755);
    let plugin = Plugin::start(&scratch, pool.to_str().unwrap(), &["--mode", "controller", "--topology", "zone=a"]);
    let create = |request: &csi::CreateVolumeRequest| {
        plugin.call::<csi::CreateVolumeResponse>("Controller/CreateVolume", request)
    };
    let with = |key: &str, value: &str| csi::CreateVolumeRequest {
        parameters: HashMap::from([(key.to_owned(), value.to_owned())]),
        ..wanted("a", Mode::SingleNodeWriter)
    };
    for (key, value, words) in [
        ("slackwater.dirty-limit", "lots", "64MiB"),
        ("slackwater.dirty", "1MiB", "slackwater.dirty-limit"),
        ("dontcache", "on", "unknown parameter"),
        ("pool", "other", "pools of this plugin: only"),
    ] {
        let refused = create(&with(key, value)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.contains(words) && !refused.message.contains('\n'), "{}", refused.message);
    }
    let zone = |name: &str| csi::Topology { segments: HashMap::from([("zone".to_owned(), name.to_owned())]) };
    let at = |name: &str| csi::CreateVolumeRequest {
        accessibility_requirements: Some(csi::TopologyRequirement { requisite: vec![zone(name)], preferred: vec![] }),
        ..with("slackwater.dontcache", "on")
    };
    assert_eq!(create(&at("b")).unwrap_err().code, Code::ResourceExhausted);
    let made = create(&at("a")).unwrap().volume.unwrap();
    assert_eq!(made.accessible_topology, [zone("a")]);
    assert_eq!(made.volume_context["slackwater.dontcache"], "on");
    assert!(made.volume_context["source"].starts_with(pool.to_str().unwrap()));
    // A secret in a request is in no message.
    let secret = csi::CreateVolumeRequest {
        secrets: HashMap::from([("key".to_owned(), "hidden-word".to_owned())]),
        ..wanted("a", Mode::MultiNodeMultiWriter)
    };
    assert!(!create(&secret).unwrap_err().message.contains("hidden-word"));
    plugin.end();
}

/// Client and server of the other tests are generated from one file, so none of them would see a change there.
#[test]
fn the_protocol_file_is_that_of_the_specification() {
    const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const FNV_PRIME: u64 = 0x0100_0000_01b3;
    let file = include_bytes!("../../../csi-proto/proto/csi.proto");
    let hash = file.iter().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
    assert_eq!(hash, 0x9a51_d6c6_3d0e_451d);
}
