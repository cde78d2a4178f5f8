//! Volumes of a pool that each machine has for itself are made larger by the node: the one controller that a cluster asks
//! may be on another machine, and does not know them.

use slackwater_csi_proto as csi;
use slackwater_csi_proto::controller_service_capability::{Type, rpc};

use crate::node::machine::{Call, Machine};
use crate::rig::need_fuse;

const SIZE: i64 = 64 << 20;

fn controller_expands(machine: &Machine) -> bool {
    let request = csi::ControllerGetCapabilitiesRequest {};
    let answer: csi::ControllerGetCapabilitiesResponse =
        machine.ask("Controller/ControllerGetCapabilities", &request).unwrap();
    let types = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
    types.into_iter().any(|Type::Rpc(rpc)| rpc.r#type() == rpc::Type::ExpandVolume)
}

#[test]
fn a_node_with_a_pool_of_its_own_makes_volumes_larger() {
    need_fuse();
    assert!(controller_expands(&Machine::start()));

    let machine = Machine::start_with(&["--topology=slackwater.csi/node=here"]);
    assert!(!controller_expands(&machine));
    let volume = machine.create("v");
    machine.done(&volume, Call::Stage);
    machine.done(&volume, Call::Publish { target: 0, read_only: false });
    let expand = csi::NodeExpandVolumeRequest {
        volume_id: volume.id.clone(),
        volume_path: volume.target(0).to_str().unwrap().to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
        ..csi::NodeExpandVolumeRequest::default()
    };
    for _ in 0..2 {
        let answer: csi::NodeExpandVolumeResponse = machine.ask("Node/NodeExpandVolume", &expand).unwrap();
        assert_eq!(answer.capacity_bytes, SIZE);
    }
    let request = csi::ControllerGetVolumeRequest { volume_id: volume.id.clone() };
    let answer: csi::ControllerGetVolumeResponse = machine.ask("Controller/ControllerGetVolume", &request).unwrap();
    assert_eq!(answer.volume.unwrap().capacity_bytes, SIZE);
    machine.remove(&volume);
    machine.expect_nothing();
    machine.end();
}
