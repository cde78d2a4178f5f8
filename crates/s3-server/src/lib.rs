//! A local S3 server for tests and experiments.
//!
//! It is `s3s-fs` with a front that adds what the list below names. From a test in this process:
//!
//! ```no_run
//! use slackwater_s3_server::Server;
//!
//! let server = Server::start().expect("a free port on loopback");
//! for (name, value) in server.environment() { /* keys and endpoint, for a program that uses the server */ }
//! // The bucket `test` exists: s3://test/some/prefix.
//! server.set_delay(std::time::Duration::from_millis(30));
//! ```
//!
//! From another program, such as a test of the command: `slackwater-s3-server [--delay-ms N] [--bucket NAME] [ROOT]`
//! prints the environment as lines `NAME=VALUE`, then an empty line, and serves until its standard input ends.
//!
//! # Additions of the front
//! - Conditional writes are atomic. `s3s-fs` checks the condition before it writes, so two writers could both create an
//!   object. The front carries out writes of one key one after the other, and reads of the key wait for them.
//! - A delay before each request, like that of a distant store. Parallel requests do not delay each other.
//! - Scripted answers: an error, a lost reply to a request that succeeded, a closed connection, or no answer.
//! - Counts of requests, by method.
//!
//! # Features and limits of `s3s-fs`
//! It checks signatures and clocks, and has create-only and if-match PUT, ranged GET, HEAD, LIST with pages, bulk
//! DELETE, multipart uploads and user metadata. Keys of more than about 150 bytes fail, because it keeps metadata in
//! files that are named after the key. Each page of a listing reads the whole bucket. Nothing is synced to disk.
//! Unfinished multipart uploads cannot be listed.

mod front;
mod script;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use front::Front;
pub use script::{Answer, Script};

/// The bucket that exists.
pub const BUCKET: &str = "test";
/// The access key.
pub const ACCESS_KEY: &str = "slackwater-test-key";
/// Its secret: long and unusual, so that a test can search for it in logs and errors.
pub const SECRET_KEY: &str = "hush-kwqj7v2m-secret";

/// A server on loopback with a root of its own. Dropping it stops the server and removes the root.
pub struct Server {
    address: SocketAddr,
    root: PathBuf,
    owns_root: bool,
    front: Arc<Front>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server with an empty bucket [`BUCKET`] in memory (`/dev/shm`), or in the directory for temporary files.
    ///
    /// # Errors
    /// No port, no directory, no thread.
    pub fn start() -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let shared = Path::new("/dev/shm");
        let base = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = base.join(format!("slackwater-s3-{}-{number}", std::process::id()));
        Self::with_root(root, BUCKET, true)
    }

    /// Starts a server whose buckets are the directories of `root`, and makes `bucket`. The root is kept.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_in(root: &Path, bucket: &str) -> io::Result<Self> {
        Self::with_root(root.to_owned(), bucket, false)
    }

    fn with_root(root: PathBuf, bucket: &str, owns_root: bool) -> io::Result<Self> {
        std::fs::create_dir_all(root.join(bucket))?;
        let files = FileSystem::new(&root).map_err(|error| io::Error::other(format!("{error:?}")))?;
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let front = Arc::new(Front::new(builder.build()));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("s3-server")
            .enable_all()
            .build()?;
        // Bound outside of the runtime, because a test that starts a server may itself be a task.
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let served = front.clone();
        let thread = std::thread::Builder::new().name("s3-server".into()).spawn(move || {
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a non-blocking socket inside a runtime");
                tokio::select! {
                    () = served.serve(listener) => {}
                    _ = stopped => {}
                }
            });
            // Requests that a script lets hang never end.
            runtime.shutdown_background();
        })?;
        Ok(Self { address, root, owns_root, front, stop: Some(stop), thread: Some(thread) })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The directory of its buckets.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The variables with which `object_store`, the AWS command line and other programs find it.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    /// Delays each later request by `delay`.
    pub fn set_delay(&self, delay: Duration) {
        self.front.set_delay(delay);
    }

    /// Adds a script after the existing ones.
    pub fn script(&self, script: Script) {
        self.front.script(script);
    }

    /// Removes all scripts. Requests that hang already do not continue.
    pub fn clear_scripts(&self) {
        self.front.clear_scripts();
    }

    /// Requests with this HTTP method so far.
    pub fn requests(&self, method: &str) -> u64 {
        self.front.requests(method)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.owns_root {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}
