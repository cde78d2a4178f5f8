//! The Node service.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use slackwater_control::daemon::VOLUMES_MAX;
use slackwater_control::exit::Reason;
use slackwater_control::name;
use slackwater_csi_proto as csi;
use slackwater_csi_proto::node_get_storage_health_response::StorageBackendHealth;
use slackwater_csi_proto::node_server::Node as NodeCalls;
use slackwater_csi_proto::node_service_capability::{Rpc, Type, rpc};
use slackwater_csi_proto::volume_health::VolumeHealthEntry;
use slackwater_csi_proto::volume_usage::Unit;
use slackwater_csi_proto::{StorageHealthErrorType, VolumeCapability, VolumeHealthErrorType};
use tonic::{Request, Response, Status};

use crate::csi::calls::Calls;
use crate::csi::capability::Access;
use crate::csi::status::{invalid, of_node, of_volume, one_line, required};
use crate::limits::Limits;
use crate::node::{Condition, Node, Publishing, Severity, Staging, Usage};
use crate::object::Credentials;
use crate::pods::{Api, Pod, uid_of_target};
use crate::volumes::Volumes;

/// The key of a volume's context that has its source: a path or a URL.
pub(super) const SOURCE: &str = "source";

pub(super) struct NodeService {
    pub(super) calls: Arc<Calls>,
    pub(super) node: Arc<Node>,
    /// The records of volumes, if they are made larger here.
    pub(super) volumes: Option<Volumes>,
    /// The name of this machine.
    pub(super) id: String,
    pub(super) topology: Option<csi::Topology>,
    /// The API of the cluster, if the plugin is in one.
    pub(super) api: Option<Api>,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl NodeCalls for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Answer<csi::NodeStageVolumeResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        let path = PathBuf::from(required(&request.staging_target_path, "staging_target_path")?);
        let capability = asked(request.volume_capability.as_ref())?;
        let source = source_of(&request.volume_context)?;
        let limits = limits_of(request.volume_context)?;
        let access = Access::of(capability, &source).map_err(|failure| invalid(&failure))?;
        let mut options = limits.options(access.options);
        if options.read_only {
            // A reader sends nothing.
            options.upload_limit = None;
        }
        let credentials =
            Credentials::of_secrets(request.secrets, Some(&source)).map_err(|failure| invalid(&failure))?;
        let staging = Staging { id: id.clone(), source: source.into(), path, options, credentials };
        let node = Arc::clone(&self.node);
        self.calls.change(&id, move || node.stage(&staging).map_err(of_node)).await?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Answer<csi::NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        let path = PathBuf::from(required(&request.staging_target_path, "staging_target_path")?);
        let (node, volume) = (Arc::clone(&self.node), id.clone());
        self.calls.change(&id, move || node.unstage(&volume, &path).map_err(of_node)).await?;
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Answer<csi::NodePublishVolumeResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        let target = PathBuf::from(required(&request.target_path, "target_path")?);
        let capability = asked(request.volume_capability.as_ref())?;
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("staging_target_path is missing: volumes are staged first"));
        }
        let source = source_of(&request.volume_context)?;
        let access = Access::of(capability, &source).map_err(|failure| invalid(&failure))?;
        let publishing = Publishing {
            id: id.clone(),
            staging: request.staging_target_path.into(),
            target,
            read_only: request.readonly,
            alone: access.alone,
        };
        let node = Arc::clone(&self.node);
        let api = self.api.clone();
        let pod = Pod::of_context(&request.volume_context.into_iter().collect());
        let work = move || {
            if let Some(pod) = pod {
                // First: what the pod writes is limited from its first byte.
                limit(&node, api.as_ref(), &pod)?;
            }
            node.publish(&publishing).map_err(of_node)
        };
        self.calls.change(&id, work).await?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Answer<csi::NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        let target = PathBuf::from(required(&request.target_path, "target_path")?);
        let node = Arc::clone(&self.node);
        let is_in_cluster = self.api.is_some();
        let work = move || {
            node.unpublish(&target).map_err(of_node)?;
            // A pod ends as a whole.
            if let Some(uid) = uid_of_target(&target).filter(|_| is_in_cluster)
                && let Err(error) = node.forget_pod(uid)
            {
                tracing::debug!(uid, ?error, "the limits of the pod stay");
            }
            Ok(())
        };
        self.calls.change(&id, work).await?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Answer<csi::NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        let path = PathBuf::from(required(&request.volume_path, "volume_path")?);
        let node = Arc::clone(&self.node);
        let [bytes, inodes] = self.calls.query(move || node.usage(&id, &path).map_err(of_node)).await?;
        let usage = vec![usage_of(bytes, Unit::Bytes), usage_of(inodes, Unit::Inodes)];
        Ok(Response::new(csi::NodeGetVolumeStatsResponse { usage }))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Answer<csi::NodeGetVolumeHealthResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        let path = [request.volume_publish_path, request.staging_target_path].into_iter().find(|path| !path.is_empty());
        let (node, volume) = (Arc::clone(&self.node), id.clone());
        let work = move || node.conditions(&volume, path.map(PathBuf::from).as_deref()).map_err(of_node);
        let health_statuses = self.calls.query(work).await?.into_iter().map(entry_of).collect();
        let volume_health = Some(csi::VolumeHealth { volume_id: id, health_statuses });
        Ok(Response::new(csi::NodeGetVolumeHealthResponse { volume_health }))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Answer<csi::NodeGetStorageHealthResponse> {
        let node = Arc::clone(&self.node);
        let health = |status: StorageHealthErrorType, reason: &str, message: String| StorageBackendHealth {
            status: status.into(),
            reason: reason.to_owned(),
            message,
            volume_capability: None,
        };
        let backend_health = match self.calls.query(move || node.left().map_err(of_node)).await {
            Ok(left) if left.is_empty() => Vec::new(),
            Ok(left) => {
                let message = format!("data that a dead daemon left is not yet written back to {}", left.join(", "));
                vec![health(StorageHealthErrorType::StorageDegraded, "UnwrittenDataLeft", message)]
            }
            Err(status) => {
                let message = status.message().to_owned();
                vec![health(StorageHealthErrorType::StorageUnreachable, "DaemonUnavailable", message)]
            }
        };
        Ok(Response::new(csi::NodeGetStorageHealthResponse { backend_health }))
    }

    /// Makes the volume larger, unless the controller has done that: a new size applies at once.
    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Answer<csi::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        let path = PathBuf::from(required(&request.volume_path, "volume_path")?);
        let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        let (node, volume) = (Arc::clone(&self.node), id.clone());
        self.calls.query(move || node.check_at(&volume, &path).map_err(of_node)).await?;
        if let (Some(volumes), Ok(bytes @ 1..)) = (self.volumes.clone(), u64::try_from(capacity_bytes)) {
            let volume = id.clone();
            self.calls.change(&id, move || volumes.resize(&volume, bytes).map_err(of_volume)).await?;
        }
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answer<csi::NodeGetCapabilitiesResponse> {
        let types = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::GetVolumeHealth,
            rpc::Type::GetStorageHealth,
        ];
        let capability =
            |kind: rpc::Type| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities: types.map(capability).to_vec() }))
    }

    async fn node_get_info(&self, _: Request<csi::NodeGetInfoRequest>) -> Answer<csi::NodeGetInfoResponse> {
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: self.id.clone(),
            max_volumes_per_node: VOLUMES_MAX.into(),
            accessible_topology: self.topology.clone(),
        }))
    }
}

/// Names a pod, and holds it to the limits of its annotations, if it has any.
fn limit(node: &Node, api: Option<&Api>, pod: &Pod) -> Result<(), Status> {
    if let Err(error) = node.name_pod(pod) {
        tracing::debug!(pod.uid, ?error, "the pod is shown without its name");
    }
    let Some(api) = api else { return Ok(()) };
    let limits = api.limits(pod).map_err(|failure| match failure.reason {
        Reason::Usage => invalid(&failure),
        Reason::Failed
        | Reason::Busy
        | Reason::Deadline
        | Reason::NotMounted
        | Reason::NoDaemon
        | Reason::Rescued
        | Reason::Left => Status::unavailable(one_line(&failure)),
    })?;
    if limits == Limits::default() { Ok(()) } else { node.limit_pod(pod, &limits).map_err(of_node) }
}

fn asked(capability: Option<&VolumeCapability>) -> Result<&VolumeCapability, Status> {
    capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))
}

/// The source in the context of a volume.
fn source_of(context: &HashMap<String, String>) -> Result<String, Status> {
    match context.get(SOURCE) {
        Some(source) if name::is_complete(source.as_ref()) => Ok(source.clone()),
        Some(_) => Err(Status::invalid_argument("source in volume_context is neither an absolute path nor a URL")),
        None => Err(Status::invalid_argument("volume_context has no source; write for example source: /srv/data")),
    }
}

/// The limits in the context of a volume.
fn limits_of(context: HashMap<String, String>) -> Result<Limits, Status> {
    let attributes: BTreeMap<_, _> = context.into_iter().collect();
    Limits::parse(&attributes).map_err(|failure| invalid(&failure))
}

fn usage_of(usage: Usage, unit: Unit) -> csi::VolumeUsage {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let Usage { total, used, available } = usage;
    csi::VolumeUsage { available: number(available), total: number(total), used: number(used), unit: unit.into() }
}

/// A condition as the platform knows it.
pub(super) fn entry_of(condition: Condition) -> VolumeHealthEntry {
    let status = match condition.severity {
        Severity::Degraded => VolumeHealthErrorType::Degraded,
        Severity::Inaccessible => VolumeHealthErrorType::Inaccessible,
    };
    VolumeHealthEntry { status: status.into(), reason: condition.reason.to_owned(), message: condition.message }
}
