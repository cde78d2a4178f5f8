//! The Controller service: the records of volumes, and their sources.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::statvfs;
use slackwater_csi_proto as csi;
use slackwater_csi_proto::controller_server::Controller;
use slackwater_csi_proto::controller_service_capability::{Rpc, Type, rpc};
use slackwater_csi_proto::validate_volume_capabilities_response::Confirmed;
use slackwater_csi_proto::{CapacityRange, Topology, TopologyRequirement, VolumeCapability};
use tonic::{Request, Response, Status};

use crate::csi::calls::Calls;
use crate::csi::capability::Access;
use crate::csi::listing::page;
use crate::csi::node::{SOURCE, entry_of};
use crate::csi::parameters::{Pools, limits};
use crate::csi::status::{invalid, of_node, of_volume, one_line, required};
use crate::node::{Condition, Node, NodeError, Severity};
use crate::object::Credentials;
use crate::volumes::{NewVolume, Pool, Record, Volumes};

type Answer<T> = Result<Response<T>, Status>;

/// Available space of an object store, which has no limit.
const UNLIMITED: i64 = i64::MAX;

/// Clones share everything.
#[derive(Clone)]
pub(super) struct ControllerService {
    pub(super) calls: Arc<Calls>,
    pub(super) volumes: Volumes,
    pub(super) pools: Pools,
    /// The node, if this process serves it too.
    pub(super) node: Option<Arc<Node>>,
    /// The topology in which directories can be reached; `None`: everywhere.
    pub(super) topology: Option<Topology>,
    /// Whether volumes are made larger here, and not by their nodes.
    pub(super) expands: bool,
}

impl ControllerService {
    /// The volume with this id.
    fn get(&self, id: &str) -> Result<Record, Status> {
        let found = self.volumes.get(id).map_err(of_volume)?;
        found.ok_or_else(|| Status::not_found(format!("there is no volume {}", id.escape_default())))
    }

    /// A volume as the platform knows it. Its context is all that a node needs to mount it.
    fn volume_of(&self, record: Record) -> csi::Volume {
        let accessible_topology = match &record.pool {
            Pool::Directory(_) => self.topology.iter().cloned().collect(),
            Pool::Store(_) | Pool::Existing(_) => Vec::new(),
        };
        csi::Volume {
            capacity_bytes: capacity(&record),
            volume_context: context_of(&record),
            volume_id: record.id,
            content_source: None,
            accessible_topology,
        }
    }

    /// Fails if a volume in `pool` would not be accessible where it is required.
    fn check_topology(&self, pool: &Pool, required: Option<&TopologyRequirement>) -> Result<(), Status> {
        let (Pool::Directory(_), Some(here), Some(required)) = (pool, &self.topology, required) else { return Ok(()) };
        let is_here =
            |there: &Topology| there.segments.iter().all(|(key, value)| here.segments.get(key) == Some(value));
        if required.requisite.is_empty() || required.requisite.iter().any(is_here) {
            return Ok(());
        }
        Err(Status::resource_exhausted("the pool is a directory of another machine than the ones that are required"))
    }

    /// The conditions of a volume, as far as they show here.
    fn health_of(&self, record: &Record) -> Result<csi::VolumeHealth, Status> {
        let mut found = match self.node.as_ref().map(|node| node.conditions(&record.id, None)) {
            None | Some(Err(NodeError::NotFound(_))) => Vec::new(),
            Some(found) => found.map_err(of_node)?,
        };
        if matches!(record.pool, Pool::Directory(_)) && !Path::new(&record.source).is_dir() {
            let message = format!("the directory {} cannot be entered", record.source);
            found.push(Condition { severity: Severity::Inaccessible, reason: "SourceMissing", message });
        }
        let health_statuses = found.into_iter().map(entry_of).collect();
        Ok(csi::VolumeHealth { volume_id: record.id.clone(), health_statuses })
    }

    fn available_in(&self, pool: &Pool, place: Option<&Topology>) -> Result<i64, Status> {
        let Pool::Directory(path) = pool else { return Ok(UNLIMITED) };
        let required = place.map(|place| TopologyRequirement { requisite: vec![place.clone()], preferred: Vec::new() });
        if self.check_topology(pool, required.as_ref()).is_err() {
            return Ok(0);
        }
        let space = statvfs(path)
            .map_err(|error| Status::internal(format!("cannot ask for the space of the pool: {error}")))?;
        Ok(i64::try_from(space.f_bavail.saturating_mul(space.f_frsize)).unwrap_or(i64::MAX))
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(&self, request: Request<csi::CreateVolumeRequest>) -> Answer<csi::CreateVolumeResponse> {
        let request = request.into_inner();
        let name = required(&request.name, "name")?.to_owned();
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities is missing"));
        }
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument("volumes are made empty: snapshots and clones are not supported"));
        }
        if !request.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("volumes have no mutable parameters"));
        }
        let limits = limits(&request.parameters).map_err(|failure| invalid(&failure))?;
        let pool = self.pools.of(&request.parameters).map_err(|failure| invalid(&failure))?;
        for capability in &request.volume_capabilities {
            Access::of(capability, &place_of(&pool)).map_err(|failure| invalid(&failure))?;
        }
        self.check_topology(&pool, request.accessibility_requirements.as_ref())?;
        let (required_bytes, limit_bytes) = sizes(request.capacity_range.as_ref())?;
        let credentials =
            Credentials::of_secrets(request.secrets, Some(&place_of(&pool))).map_err(|failure| invalid(&failure))?;
        let wanted = NewVolume { name: name.clone(), pool, required_bytes, limit_bytes, limits };
        let volumes = self.volumes.using(credentials);
        // By its name: the volume has no id before.
        let record = self.calls.change(&name, move || volumes.create(&wanted).map_err(of_volume)).await?;
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(self.volume_of(record)) }))
    }

    async fn delete_volume(&self, request: Request<csi::DeleteVolumeRequest>) -> Answer<csi::DeleteVolumeResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        let (this, volume) = (self.clone(), id.clone());
        let work = move || {
            let source = this.volumes.get(&volume).map_err(of_volume)?.map(|record| record.source);
            let credentials = Credentials::of_secrets(request.secrets, source.as_deref());
            let credentials = credentials.map_err(|failure| invalid(&failure))?;
            if let Some(node) = &this.node
                && node.has(&volume).map_err(of_node)?
            {
                return Err(Status::failed_precondition("the volume is mounted on this machine; unstage it first"));
            }
            this.volumes.using(credentials).remove(&volume, this.pools.all()).map_err(of_volume)
        };
        self.calls.change(&id, work).await?;
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<csi::ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities is missing"));
        }
        let this = self.clone();
        let record = self.calls.query(move || this.get(&id)).await?;
        let check = |capability: &VolumeCapability| Access::of(capability, &record.source).err();
        let refused = request.volume_capabilities.iter().find_map(check).map(|failure| one_line(&failure));
        let has_other_context = !request.volume_context.is_empty() && request.volume_context != context_of(&record);
        let message = refused.or_else(|| has_other_context.then(|| "the volume has another context".to_owned()));
        let confirmed = message.is_none().then_some(Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: HashMap::new(),
        });
        let message = message.unwrap_or_default();
        Ok(Response::new(csi::ValidateVolumeCapabilitiesResponse { confirmed, message }))
    }

    async fn list_volumes(&self, request: Request<csi::ListVolumesRequest>) -> Answer<csi::ListVolumesResponse> {
        let csi::ListVolumesRequest { max_entries, starting_token } = request.into_inner();
        let this = self.clone();
        let (records, next_token) = self
            .calls
            .query(move || page(this.volumes.list().map_err(of_volume)?, max_entries, &starting_token))
            .await?;
        let entry = |record| csi::list_volumes_response::Entry { volume: Some(self.volume_of(record)), status: None };
        let entries = records.into_iter().map(entry).collect();
        Ok(Response::new(csi::ListVolumesResponse { entries, next_token }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Answer<csi::ControllerGetVolumeResponse> {
        let id = required(&request.get_ref().volume_id, "volume_id")?.to_owned();
        let this = self.clone();
        let volume = self.calls.query(move || Ok(this.volume_of(this.get(&id)?))).await?;
        let status = Some(csi::controller_get_volume_response::VolumeStatus::default());
        Ok(Response::new(csi::ControllerGetVolumeResponse { volume: Some(volume), status }))
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Answer<csi::ControllerGetVolumeHealthResponse> {
        let id = required(&request.get_ref().volume_id, "volume_id")?.to_owned();
        let this = self.clone();
        let health = self.calls.query(move || this.health_of(&this.get(&id)?)).await?;
        Ok(Response::new(csi::ControllerGetVolumeHealthResponse { volume_health: Some(health) }))
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Answer<csi::ControllerListVolumeHealthResponse> {
        let csi::ControllerListVolumeHealthRequest { max_entries, starting_token, .. } = request.into_inner();
        let this = self.clone();
        let work = move || {
            let (records, next_token) = page(this.volumes.list().map_err(of_volume)?, max_entries, &starting_token)?;
            let entries = records.iter().map(|record| this.health_of(record)).collect::<Result<_, _>>()?;
            Ok(csi::ControllerListVolumeHealthResponse { entries, next_token })
        };
        Ok(Response::new(self.calls.query(work).await?))
    }

    async fn get_capacity(&self, request: Request<csi::GetCapacityRequest>) -> Answer<csi::GetCapacityResponse> {
        let request = request.into_inner();
        let this = self.clone();
        let work = move || match this.pools.of(&request.parameters) {
            Ok(pool) => this.available_in(&pool, request.accessible_topology.as_ref()),
            // Of no pool in particular.
            Err(_) if request.parameters.is_empty() => Ok(0),
            Err(failure) => Err(invalid(&failure)),
        };
        let available_capacity = self.calls.query(work).await?;
        Ok(Response::new(csi::GetCapacityResponse { available_capacity, ..csi::GetCapacityResponse::default() }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Answer<csi::ControllerExpandVolumeResponse> {
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?.to_owned();
        let (least, most) = sizes(request.capacity_range.as_ref())?;
        let bytes = least.or(most).ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?;
        if most.is_some_and(|most| bytes > most) {
            return Err(Status::out_of_range("required_bytes is more than limit_bytes"));
        }
        let (volumes, volume) = (self.volumes.clone(), id.clone());
        let record = self.calls.change(&id, move || volumes.resize(&volume, bytes).map_err(of_volume)).await?;
        if most.is_some_and(|most| record.bytes.is_some_and(|bytes| bytes > most)) {
            return Err(Status::out_of_range("the volume is larger, and volumes do not become smaller"));
        }
        let capacity_bytes = capacity(&record);
        Ok(Response::new(csi::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Answer<csi::ControllerGetCapabilitiesResponse> {
        let types = [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::ListVolumes,
            rpc::Type::GetCapacity,
            rpc::Type::ExpandVolume,
            rpc::Type::GetVolume,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::GetVolumeHealth,
            rpc::Type::ListVolumeHealth,
        ];
        let capability =
            |kind: rpc::Type| csi::ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        let types = types.into_iter().filter(|kind| self.expands || *kind != rpc::Type::ExpandVolume);
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities: types.map(capability).collect() }))
    }
}

/// The context that a node gets with a volume.
fn context_of(record: &Record) -> HashMap<String, String> {
    let source = (SOURCE.to_owned(), record.source.clone());
    record.limits.attributes().into_iter().chain([source]).collect()
}

/// The size of a volume in bytes; 0 stands for no limit.
fn capacity(record: &Record) -> i64 {
    record.bytes.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// The place of a pool, which is as good as a source to tell directories and object volumes apart.
fn place_of(pool: &Pool) -> String {
    match pool {
        Pool::Directory(path) | Pool::Existing(path) => path.to_string_lossy().into_owned(),
        Pool::Store(url) => url.clone(),
    }
}

/// The least and the largest size that a request allows; 0 stands for none.
fn sizes(range: Option<&CapacityRange>) -> Result<(Option<u64>, Option<u64>), Status> {
    let size = |bytes: i64| match u64::try_from(bytes) {
        Ok(bytes) => Ok((bytes > 0).then_some(bytes)),
        Err(_) => Err(Status::out_of_range("a size in capacity_range is negative")),
    };
    let range = range.copied().unwrap_or_default();
    Ok((size(range.required_bytes)?, size(range.limit_bytes)?))
}
