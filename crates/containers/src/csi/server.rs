//! The services, and their calls on the socket.
//!
//! One thread receives and answers; the work of calls is on others ([`super::calls`]).

use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use slackwater_control::exit::Failure;
use slackwater_control::os::sys::{Signal, Signals};
use slackwater_csi_proto::Topology;
use slackwater_csi_proto::controller_server::{self, ControllerServer};
use slackwater_csi_proto::identity_server::{self, IdentityServer};
use slackwater_csi_proto::node_server::{self, NodeServer};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::{BoxFuture, Service};
use tonic::transport::Server;

use crate::csi::calls::{Calls, THREADS_MAX};
use crate::csi::controller::ControllerService;
use crate::csi::identity::IdentityService;
use crate::csi::node::NodeService;
use crate::csi::parameters::Pools;
use crate::endpoint::Endpoint;
use crate::node::Node;
use crate::pods::Api;
use crate::service::{self, ENDS_WITHIN};
use crate::volumes::{LockForRemoval, Volumes};

/// The services of a plugin, and the socket where it offers them.
#[derive(Clone, Debug)]
pub struct Csi {
    /// The Unix socket to listen at, as a path or as `unix:///PATH`.
    pub endpoint: String,
    /// The name of this machine in the cluster; `None`: its host name.
    pub node_id: Option<String>,
    /// The Controller service; `None` if it is not offered.
    pub controller: Option<Controller>,
    /// The socket of the daemon that mounts for the Node service; `None` if that is not offered.
    pub daemon: Option<PathBuf>,
    /// The time for an unmount. After it, the volume stays mounted, and the platform repeats the call.
    pub unmount_deadline: Duration,
    /// Where directories of this machine can be reached, by key and value; empty if everywhere.
    pub topology: Vec<(String, String)>,
}

/// How volumes are made and removed.
#[derive(Clone, Debug)]
pub struct Controller {
    /// The directory for the records of volumes.
    pub state: PathBuf,
    /// The places for volumes, by name.
    pub pools: Vec<(String, String)>,
    /// See [`LockForRemoval`].
    pub lock_for_removal: LockForRemoval,
}

/// Serves until the end is requested.
///
/// # Errors
/// An argument is wrong, or the endpoint cannot be used.
///
/// # Blocking
/// For as long as the plugin runs.
pub fn run(plugin: Csi) -> Result<(), Failure> {
    // Before the first thread, because all threads inherit the mask.
    let signals = Signals::block();
    let open = |controller: &Controller| Volumes::open(&controller.state, controller.lock_for_removal);
    let volumes = plugin.controller.as_ref().map(open).transpose()?;
    let (endpoint_word, services) = (plugin.endpoint.clone(), Services::of(plugin, volumes.clone())?);
    let (endpoint, listener) = Endpoint::listen(&endpoint_word)?;
    // The unfinished work of a plugin that was killed is finished beside the calls.
    let finish = volumes.map(|volumes| move || volumes.finish());
    service::run(signals, endpoint, THREADS_MAX, finish, |asked| serve(services, listener, asked))
}

async fn serve(services: Services, listener: UnixListener, asked: oneshot::Receiver<Signal>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let incoming = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let server =
        Server::builder().serve_with_incoming_shutdown(services, incoming, async move { stopped.notified().await });
    let mut server = std::pin::pin!(server);
    tokio::select! {
        ended = &mut server => return ended.map_err(io::Error::other),
        // An error: the thread is gone, and with it the way to end in order.
        _ = asked => {}
    }
    stop.notify_one();
    match timeout(ENDS_WITHIN, server).await {
        Ok(ended) => ended.map_err(io::Error::other),
        Err(_) => Ok(()),
    }
}

/// The services of a plugin; the name of a call selects one.
#[derive(Clone)]
struct Services {
    identity: IdentityServer<IdentityService>,
    controller: Option<ControllerServer<ControllerService>>,
    node: Option<NodeServer<NodeService>>,
}

impl Services {
    /// The services that a plugin offers, with the records of volumes if the controller is among them.
    fn of(plugin: Csi, volumes: Option<Volumes>) -> Result<Self, Failure> {
        let has_controller = volumes.is_some();
        let calls = Arc::new(Calls::new());
        let has_topology = !plugin.topology.is_empty();
        let topology = has_topology.then(|| Topology { segments: plugin.topology.into_iter().collect() });
        let node = plugin.daemon.map(|daemon| Arc::new(Node::new(daemon, plugin.unmount_deadline)));
        // With a pool on each machine, the records of a volume are on its own.
        let on_node = volumes.clone().filter(|_| node.is_some() && topology.is_some());
        let controller = match volumes.zip(plugin.controller) {
            Some((volumes, controller)) => Some(ControllerServer::new(ControllerService {
                calls: Arc::clone(&calls),
                volumes,
                pools: Pools::parse(&controller.pools)?,
                node: node.clone(),
                topology: topology.clone(),
                expands: on_node.is_none(),
            })),
            None => None,
        };
        let identity = IdentityServer::new(IdentityService {
            calls: Arc::clone(&calls),
            node: node.clone(),
            has_controller,
            has_topology,
        });
        let id = plugin.node_id.unwrap_or_else(host_name);
        let node = node.map(|node| {
            NodeServer::new(NodeService { calls, node, volumes: on_node, id, topology, api: Api::of_cluster() })
        });
        Ok(Self { identity, controller, node })
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Service<Request<Body>> for Services {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = request.uri().path().to_owned();
        let service = call.split('/').nth(1).unwrap_or_default();
        let answered = match (service, &mut self.controller, &mut self.node) {
            (identity_server::SERVICE_NAME, _, _) => self.identity.call(request),
            (controller_server::SERVICE_NAME, Some(controller), _) => controller.call(request),
            (node_server::SERVICE_NAME, _, Some(node)) => node.call(request),
            _ => Box::pin(async { Ok(Status::unimplemented("this plugin does not have that service").into_http()) }),
        };
        Box::pin(async move {
            let answer = answered.await?;
            // I3: the name and the outcome.
            match Status::from_header_map(answer.headers()) {
                Some(status) => tracing::info!(call, code = ?status.code(), reason = status.message(), "failed"),
                None => tracing::info!(call, "answered"),
            }
            Ok(answer)
        })
    }
}
