//! HTTP on the socket of the plugin.
//!
//! # Invariants
//! H1. A connection serves one request. Its head and its body arrive within [`REQUEST_WITHIN`], and are at most
//!     [`HEAD_BYTES_MAX`] and [`BODY_BYTES_MAX`] long. So a client that sends garbage or nothing delays no other client.
//! H2. At most [`CALLS_MAX`] calls run at the same time; more of them wait.

use std::convert::Infallible;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fs::{FlockOperation, flock};
use slackwater_control::exit::Failure;
use slackwater_control::os::sys::Signals;
use slackwater_host::Printable as _;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::docker::driver::{Driver, Locks};
use crate::docker::messages::{Answer, MEDIA_TYPE};
use crate::docker::users::Users;
use crate::endpoint::Endpoint;
use crate::node::Node;
use crate::service::{self, ENDS_WITHIN};
use crate::volumes::{LockForRemoval, Pool, Volumes};

const REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// The least that the library allows.
const HEAD_BYTES_MAX: usize = 8 << 10;
const BODY_BYTES_MAX: usize = 64 << 10;
/// Calls at the same time: fewer than the connections that a daemon accepts.
const CALLS_MAX: usize = 128;
/// Pause after a failed accept, most likely for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Where a plugin listens, and what it needs.
#[derive(Clone, Debug)]
pub struct DockerPlugin {
    /// The Unix socket to listen at. The name of the plugin is that of the file.
    pub socket: PathBuf,
    /// The socket of the daemon.
    pub daemon: PathBuf,
    /// The directory for the records of volumes and of their users.
    pub state: PathBuf,
    /// The directory for the mount points of volumes.
    pub mounts: PathBuf,
    /// Where volumes are made that name no pool: a directory or a URL.
    pub pool: Option<String>,
    /// The time for an unmount. After it, the volume stays mounted, and the next call for it unmounts.
    pub unmount_deadline: Duration,
    /// See [`LockForRemoval`].
    pub lock_for_removal: LockForRemoval,
}

/// Serves until the end is requested.
///
/// # Errors
/// An argument is wrong, another plugin has the state directory, or the socket cannot be used.
///
/// # Blocking
/// For as long as the plugin runs.
pub fn run(plugin: DockerPlugin) -> Result<(), Failure> {
    // Before the first thread, because all threads inherit the mask.
    let signals = Signals::block();
    // The platform and the daemon have other working directories.
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|error| Failure::usage(format!("{}: {error}", path.printable())))
    };
    let (socket, mounts) = (absolute(&plugin.socket)?, absolute(&plugin.mounts)?);
    let pool = plugin.pool.as_deref().map(Pool::parse).transpose()?;
    let _alone = lock(&plugin.state)?;
    let driver = Arc::new(Driver {
        volumes: Volumes::open(&plugin.state.join("volumes"), plugin.lock_for_removal)?,
        users: Users::open(&plugin.state.join("users"))?,
        node: Node::new(plugin.daemon, plugin.unmount_deadline),
        mounts,
        pool,
        locks: Locks::default(),
    });
    let failed = |error: io::Error| Failure::failed(format!("cannot serve {}: {error}", socket.printable()));
    // Docker makes it, but may start later.
    socket.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    let (endpoint, listener) = Endpoint::listen(&socket.to_string_lossy())?;
    let finishing = Arc::clone(&driver);
    let finish = Some(move || finishing.finish());
    service::run(signals, endpoint, CALLS_MAX, finish, |asked| serve(driver, listener, asked))
}

/// Takes the state directory for this process (K3).
fn lock(state: &Path) -> Result<File, Failure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(state);
    let file = made.and_then(|()| File::options().write(true).create(true).truncate(false).open(state.join("lock")));
    let file = file.map_err(|error| {
        Failure::failed(format!("cannot use the directory {}: {error}", state.printable()))
            .advise("choose a directory of this user with --state DIR")
    })?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Failure::busy(format!("another plugin uses the directory {}", state.printable()))
            .advise("end it first, or choose another --state DIR")
    })?;
    Ok(file)
}

async fn serve<T>(driver: Arc<Driver>, listener: UnixListener, mut asked: oneshot::Receiver<T>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // An error: the thread is gone, and with it the way to end in order.
            _ = &mut asked => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(talk(stream, Arc::clone(&driver)))),
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a client");
                    sleep(PAUSE).await;
                }
            },
            // Forgets those that have ended.
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let _ = timeout(ENDS_WITHIN, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

async fn talk(stream: UnixStream, driver: Arc<Driver>) {
    let answer = service_fn(move |request| {
        let driver = Arc::clone(&driver);
        async move { Ok::<_, Infallible>(response(answer(request, driver).await)) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "cannot serve a client");
    }
}

async fn answer(request: Request<Incoming>, driver: Arc<Driver>) -> Answer {
    let refused = |status, text: &str| Answer::failed(status, &Failure::usage(text));
    if request.method() != Method::POST {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "calls are made with POST");
    }
    let path = request.uri().path().to_owned();
    let body = match timeout(REQUEST_WITHIN, Limited::new(request, BODY_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return refused(StatusCode::BAD_REQUEST, "the body of the request is broken or too long"),
        Err(_) => return refused(StatusCode::REQUEST_TIMEOUT, "the body of the request did not arrive"),
    };
    let done = spawn_blocking(move || driver.call(&path, &body)).await;
    done.unwrap_or_else(|error| {
        tracing::error!(%error, "a call failed unexpectedly");
        refused(StatusCode::INTERNAL_SERVER_ERROR, "the call failed unexpectedly; the log of the plugin has the reason")
    })
}

fn response(answer: Answer) -> Response<String> {
    let mut response = Response::new(answer.body.to_string());
    *response.status_mut() = answer.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    response
}
