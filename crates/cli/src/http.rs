//! A small HTTP server on one thread, for pages that are made at each request: the metrics, and the page for operators.
//!
//! # Invariants
//! H1. There are at most [`CONNECTIONS_MAX`] connections, and each ends within [`CONNECTION_WITHIN`]. A further one is
//!     accepted at once, in place of the oldest ones of the [`Owner`] that has the most. So clients that send nothing, do not
//!     read the answer, or connect as fast as they can delay no client of another owner.
//! H2. A connection serves one request, whose head has at most [`HEAD_BYTES_MAX`] bytes. Its body is not read.
//! H3. When a [`Server`] has been dropped, its thread has ended, and the closure that makes the answers is gone.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use slackwater_control::exit::Failure;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::os::socket_user::SocketUsers;

/// Maximum number of connections: so many that even a client of the owner that floods the server has time for its
/// request.
const CONNECTIONS_MAX: usize = 512;
/// The divisor for the part of an owner's connections that is ended at once.
const SURPLUS: usize = 8;
/// The default timeout of Prometheus.
const CONNECTION_WITHIN: Duration = Duration::from_secs(10);
/// The minimum that the library allows.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Pause after a failed accept, most likely for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The content type of answers in plain text.
pub(crate) const PLAIN: &str = "text/plain; charset=utf-8";

/// A request, whose body is never read.
pub(crate) type Request = hyper::Request<Incoming>;
pub(crate) type Response = hyper::Response<String>;

/// Opens the port of `address` before anything else is started, for `option` of the command line. Clients wait until
/// [`serve`].
///
/// # Errors
/// The port is in use, or the address is not one of this machine.
pub(crate) fn listen(option: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|error| {
        if error.kind() == io::ErrorKind::AddrInUse {
            Failure::busy(format!("{option}: {address} is in use by another program"))
                .advise("choose another port; nothing was mounted")
        } else if error.kind() == io::ErrorKind::AddrNotAvailable {
            Failure::usage(format!("{option}: {} is not an address of this machine", address.ip()))
                .advise("use 127.0.0.1 for this machine only, or 0.0.0.0 for every interface")
        } else {
            Failure::failed(format!("{option}: cannot listen at {address}: {error}"))
        }
    })
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// The address at which the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

/// Serves what `respond` returns, which is called once per request, on a thread named `name`.
///
/// # Errors
/// A thread cannot be started, or the listener is invalid.
pub(crate) fn serve(
    name: &str,
    listener: TcpListener,
    respond: impl Fn(&Request) -> Response + Send + 'static,
) -> io::Result<Server> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let tasks = LocalSet::new();
        tasks.spawn_local(accept(listener, Rc::new(respond)));
        // Ends with an error when the sender is dropped.
        let _ = tasks.block_on(&runtime, stopped);
    })?;
    Ok(Server { address, stop: Some(stop), thread: Some(thread) })
}

/// Where a connection comes from.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd)]
enum Owner {
    /// A user of this machine.
    User(u32),
    /// Another machine or container, or unknown.
    Address(IpAddr),
}

impl Owner {
    fn of(stream: &TcpStream, client: SocketAddr, users: Option<&SocketUsers>) -> Self {
        let user = || users?.of(client, stream.local_addr().ok()?);
        user().map_or(Self::Address(client.ip()), Self::User)
    }
}

/// The open connections, the oldest first.
#[derive(Default)]
struct Connections(VecDeque<(Owner, AbortHandle)>);

impl Connections {
    /// Ends the oldest connections of the owner that has the most, if there are as many as allowed (H1). Some at a time:
    /// the search takes longer than an accept.
    fn make_room(&mut self) {
        if self.0.len() < CONNECTIONS_MAX {
            return;
        }
        self.0.retain(|(_, connection)| !connection.is_finished());
        if self.0.len() < CONNECTIONS_MAX {
            return;
        }
        let mut counts = BTreeMap::<Owner, usize>::new();
        self.0.iter().for_each(|(owner, _)| *counts.entry(*owner).or_default() += 1);
        let Some((most, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return };
        let mut surplus = count.div_ceil(SURPLUS);
        self.0.retain(|(owner, connection)| {
            let stays = *owner != most || surplus == 0;
            if !stays {
                surplus -= 1;
                connection.abort();
            }
            stays
        });
    }
}

async fn accept(listener: tokio::net::TcpListener, respond: Rc<impl Fn(&Request) -> Response + 'static>) {
    let (mut connections, users) = (Connections::default(), SocketUsers::open());
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept an HTTP client");
                sleep(PAUSE).await;
                continue;
            }
        };
        connections.make_room();
        let owner = Owner::of(&stream, client, users.as_ref());
        let talk = timeout(CONNECTION_WITHIN, talk(stream, Rc::clone(&respond)));
        connections.0.push_back((owner, spawn_local(talk).abort_handle()));
    }
}

async fn talk(stream: TcpStream, respond: Rc<impl Fn(&Request) -> Response>) {
    let answer = service_fn(move |request| {
        let response = respond(&request);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "cannot serve an HTTP client");
    }
}

/// Whether a request only reads.
pub(crate) fn is_read(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// An answer that no cache keeps.
pub(crate) fn response(status: StatusCode, kind: &'static str, body: impl Into<String>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The answer to a request that does not only read.
pub(crate) fn only_get() -> Response {
    let mut response = response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}
