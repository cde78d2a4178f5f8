//! Serves the metrics: one thread, plain HTTP, `GET /metrics`, and paths for probes.
//!
//! # Invariants
//! H1. There are at most [`CONNECTIONS_MAX`] connections, and each ends within [`CONNECTION_WITHIN`]. A further one
//!     replaces the oldest. So clients that send nothing, or do not read the answer, delay no scrape.
//! H2. A connection serves one request, whose head has at most [`HEAD_BYTES_MAX`] bytes. Its body is not read.
//! H3. When a [`Server`] has been dropped, its thread has ended, and all snapshots and their closure are gone.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::metrics::render::{self, Renderer};
use crate::metrics::{Snapshot, prometheus_text};

const CONNECTIONS_MAX: usize = 32;
/// The default timeout of Prometheus.
const CONNECTION_WITHIN: Duration = Duration::from_secs(10);
/// The minimum that the library allows.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Pause after a failed accept, most likely for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The content type of all other answers.
const PLAIN: &str = "text/plain; charset=utf-8";

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// The address at which it listens.
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

/// Serves the result of `snapshot`, which is called once per scrape, on its own thread. `is_ready` answers probes
/// without collecting the figures of all volumes.
///
/// # Errors
/// A thread cannot be started, or the listener is invalid.
pub(crate) fn serve(
    listener: TcpListener,
    snapshot: impl Fn() -> Snapshot + Send + 'static,
    is_ready: impl Fn() -> bool + Send + 'static,
) -> io::Result<Server> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = thread::Builder::new().name("sw-metrics".to_owned()).spawn(move || {
        let tasks = LocalSet::new();
        tasks.spawn_local(accept(listener, snapshot, is_ready));
        // Ends with an error when the sender is dropped.
        let _ = tasks.block_on(&runtime, stopped);
    })?;
    Ok(Server { address, stop: Some(stop), thread: Some(thread) })
}

async fn accept(
    listener: tokio::net::TcpListener,
    snapshot: impl Fn() -> Snapshot + 'static,
    is_ready: impl Fn() -> bool + 'static,
) {
    let renderer = RefCell::new(Renderer::default());
    let metrics = Box::new(move || renderer.borrow_mut().render(&snapshot()));
    let pages = Rc::new(Pages { metrics, is_ready: Box::new(is_ready) });
    let mut connections = VecDeque::<AbortHandle>::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a metrics client");
                sleep(PAUSE).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() == CONNECTIONS_MAX
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort(); // H1
        }
        connections.push_back(spawn_local(timeout(CONNECTION_WITHIN, talk(stream, Rc::clone(&pages)))).abort_handle());
    }
}

/// The pages that are served.
struct Pages {
    metrics: Box<dyn Fn() -> String>,
    /// Whether volumes can be served by now.
    is_ready: Box<dyn Fn() -> bool>,
}

async fn talk(stream: TcpStream, pages: Rc<Pages>) {
    let answer = service_fn(move |request| {
        let response = respond(&request, &pages);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "cannot serve a metrics client");
    }
}

fn respond(request: &Request<Incoming>, pages: &Pages) -> Response<String> {
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, body) = match request.uri().path() {
        "/metrics" | "/healthz" | "/-/healthy" | "/-/ready" if !is_get => {
            (StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET\n".to_owned())
        }
        "/metrics" if asks_for_openmetrics(request) => (StatusCode::OK, render::CONTENT_TYPE, (pages.metrics)()),
        "/metrics" => {
            (StatusCode::OK, prometheus_text::CONTENT_TYPE, prometheus_text::of_openmetrics(&(pages.metrics)()))
        }
        "/healthz" | "/-/healthy" => (StatusCode::OK, PLAIN, "ok\n".to_owned()),
        "/-/ready" if (pages.is_ready)() => (StatusCode::OK, PLAIN, "ready\n".to_owned()),
        "/-/ready" => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, "starting\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, PLAIN, "metrics are at /metrics\n".to_owned()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

/// Whether a client accepts OpenMetrics, as Prometheus does.
fn asks_for_openmetrics(request: &Request<Incoming>) -> bool {
    let accepted = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(',')).filter_map(|kind| kind.split(';').next());
    kinds.any(|kind| kind.trim().eq_ignore_ascii_case("application/openmetrics-text"))
}
