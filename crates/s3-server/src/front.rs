//! The front of the server: delay, scripts, counts, and one request at a time on each key that is written.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::Body;
use s3s::service::S3Service;
use tokio::net::TcpListener;
use tokio::sync::RwLock;

use crate::script::{Answer, Script};

pub(crate) struct Front {
    service: S3Service,
    delay_us: AtomicU64,
    scripts: Mutex<Vec<Script>>,
    requests: Mutex<HashMap<String, u64>>,
    /// Locks of the keys that have requests.
    keys: Mutex<HashMap<String, Arc<RwLock<()>>>>,
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Front {
    pub(crate) fn new(service: S3Service) -> Self {
        Self {
            service,
            delay_us: AtomicU64::new(0),
            scripts: Mutex::default(),
            requests: Mutex::default(),
            keys: Mutex::default(),
        }
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.delay_us.store(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn script(&self, script: Script) {
        lock(&self.scripts).push(script);
    }

    pub(crate) fn clear_scripts(&self) {
        lock(&self.scripts).clear();
    }

    pub(crate) fn requests(&self, method: &str) -> u64 {
        lock(&self.requests).get(method).copied().unwrap_or_default()
    }

    /// Serves connections until it is cancelled.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            // A connection that broke before it was accepted is no reason to stop.
            let Ok((socket, _)) = listener.accept().await else { continue };
            let _ = socket.set_nodelay(true);
            let front = self.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| front.clone().answer(request));
                // An error here is a client that went away, or a scripted end of the connection.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
            });
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Failed> {
        let method = request.method().as_str().to_owned();
        let target = request.uri().path_and_query().map(|target| target.as_str().to_owned()).unwrap_or_default();
        *lock(&self.requests).entry(method.clone()).or_default() += 1;
        let delay = Duration::from_micros(self.delay_us.load(Ordering::Relaxed));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let answer = lock(&self.scripts).iter_mut().find_map(|script| script.judge(&method, &target));
        match answer {
            None => self.pass_on(request).await,
            Some(Answer::Status(status, body)) => {
                let mut response = Response::new(Body::from(body));
                *response.status_mut() = StatusCode::from_u16(status)?;
                Ok(response)
            }
            Some(Answer::LoseReply) => {
                self.pass_on(request).await?;
                Err(io::Error::from(io::ErrorKind::ConnectionReset).into())
            }
            Some(Answer::Disconnect) => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            Some(Answer::Hang) => std::future::pending().await,
        }
    }

    async fn pass_on(&self, request: Request<Incoming>) -> Result<Response<Body>, Failed> {
        let path = request.uri().path().to_owned();
        let is_read = matches!(request.method().as_str(), "GET" | "HEAD");
        let request = request.map(Body::from);
        let key = lock(&self.keys).entry(path.clone()).or_default().clone();
        let response = if is_read {
            let _turn = key.read().await;
            self.service.call(request).await
        } else {
            let _turn = key.write().await;
            self.service.call(request).await
        };
        drop(key);
        lock(&self.keys).retain(|name, key| name != &path || Arc::strong_count(key) > 1);
        Ok(response.map_err(|error| format!("{error:?}"))?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
