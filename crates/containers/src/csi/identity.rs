//! The Identity service.

use std::sync::Arc;

use slackwater_csi_proto::identity_server::Identity;
use slackwater_csi_proto::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use slackwater_csi_proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use crate::csi::calls::Calls;
use crate::node::Node;

/// The name by which storage classes select this plugin.
const NAME: &str = "slackwater.csi";

pub(super) struct IdentityService {
    pub(super) calls: Arc<Calls>,
    /// The node; `None` in a plugin that mounts nothing, which needs no daemon.
    pub(super) node: Option<Arc<Node>>,
    pub(super) has_controller: bool,
    pub(super) has_topology: bool,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: service::Type| Type::Service(Service { r#type: kind.into() });
        let mut types = Vec::new();
        if self.has_controller {
            types.push(service(service::Type::ControllerService));
            let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
            types.push(Type::VolumeExpansion(online));
        }
        if self.has_topology {
            types.push(service(service::Type::VolumeAccessibilityConstraints));
        }
        let capabilities = types.into_iter().map(|r#type| PluginCapability { r#type: Some(r#type) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// Ready if the daemon answers.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let ready = match self.node.clone() {
            Some(node) => self.calls.query(move || Ok(node.is_ready())).await?,
            None => true,
        };
        Ok(Response::new(ProbeResponse { ready: Some(ready) }))
    }
}
