//! The store and its clients.
//!
//! There is an S3 server for each delay, which counts the requests of every client. Its clients are a bare one, without a file
//! system, and the file systems that are compared: an object volume, a volume of a directory, and others on the same server.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::Write;
use std::ops::Sub;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt, PutPayload};
use rustix::fs::{Advice, fadvise, syncfs};
use slackwater_s3_server::Server as S3Server;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::fuse::{Mounted, OURS, RCLONE, Server, arena_in, mountpoint_in, on_path, tied};
use crate::harness::axis;
use crate::programs;
use crate::scratch::{Scratch, make_directory};

pub(super) use slackwater_s3_server::{ACCESS_KEY, SECRET_KEY};

/// The bucket of the bare store.
pub(super) const BUCKET: &str = "bare";
pub(super) const REGION: &str = "us-east-1";

axis! {
    /// How long a server waits before it looks at a request.
    pub(super) enum Delay {
        Short = "1 ms",
        Long = "30 ms",
    }
}

impl Delay {
    fn time(self) -> Duration {
        match self {
            Self::Short => Duration::from_millis(1),
            Self::Long => Duration::from_millis(30),
        }
    }

    /// The delay's name without spaces, for names of files and buckets.
    pub(super) fn tag(self) -> String {
        self.name().replace(' ', "-")
    }
}

/// Requests that a server has received.
#[derive(Copy, Clone, Default, Eq, PartialEq, Debug)]
pub(super) struct Requests {
    pub(super) puts: u64,
    pub(super) all: u64,
}

impl Sub for Requests {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { puts: self.puts - earlier.puts, all: self.all - earlier.all }
    }
}

/// A server for each delay.
pub(super) struct Servers {
    short: S3Server,
    long: S3Server,
}

impl Servers {
    /// Starts them. They keep their objects in new directories of `home`.
    pub(super) fn start(home: &Scratch) -> Result<Self> {
        let start = |delay: Delay| -> Result<S3Server> {
            let root = home.subdirectory(&format!("s3-{}", delay.tag()))?;
            let server = S3Server::start_in(&root, BUCKET).context("cannot start an S3 server")?;
            server.set_delay(delay.time());
            Ok(server)
        };
        Ok(Self { short: start(Delay::Short)?, long: start(Delay::Long)? })
    }

    fn server(&self, delay: Delay) -> &S3Server {
        match delay {
            Delay::Short => &self.short,
            Delay::Long => &self.long,
        }
    }

    /// The URL for clients.
    pub(super) fn endpoint(&self, delay: Delay) -> String {
        format!("http://{}", self.server(delay).address())
    }

    /// Requests so far.
    pub(super) fn requests(&self, delay: Delay) -> Requests {
        let [puts, others @ ..] =
            ["PUT", "GET", "HEAD", "DELETE", "POST"].map(|method| self.server(delay).requests(method));
        Requests { puts, all: puts + others.iter().sum::<u64>() }
    }

    /// Makes an empty bucket.
    pub(super) fn make_bucket(&self, delay: Delay, name: &str) -> Result<()> {
        make_directory(&self.object(delay, name))
    }

    /// Writes what the servers have to the disk, and takes it out of the page cache. Otherwise the kernel would have to
    /// find memory for the objects of one turn among those of all turns before it, and write them as well.
    pub(super) fn settle(&self) -> Result<()> {
        let roots = [self.short.root(), self.long.root()];
        for root in roots {
            let directory = File::open(root).with_context(|| format!("cannot open {}", root.display()))?;
            syncfs(directory).context("syncfs")?;
        }
        roots.into_iter().for_each(uncache);
        Ok(())
    }

    /// The server's file of an object, whose name begins with its bucket.
    pub(super) fn object(&self, delay: Delay, name: impl AsRef<Path>) -> PathBuf {
        self.server(delay).root().join(name)
    }
}

/// Takes the files below `path` out of the page cache. Those that are removed meanwhile need no more memory either.
fn uncache(path: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            uncache(&path);
        } else if let Ok(file) = File::open(path) {
            let _ = fadvise(file, 0, None, Advice::DontNeed);
        }
    }
}

/// The size of the segments that object volumes write.
const OBJECT_BYTES: u64 = 8 << 20;
/// Requests at once.
const PARALLEL: usize = 16;

/// A client of the store.
pub(super) struct Bare {
    runtime: Runtime,
    store: Arc<AmazonS3>,
}

impl Bare {
    pub(super) fn connect(s3: &Servers, delay: Delay) -> Result<Self> {
        let builder = AmazonS3Builder::new()
            .with_endpoint(s3.endpoint(delay))
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_region(REGION)
            .with_access_key_id(ACCESS_KEY)
            .with_secret_access_key(SECRET_KEY);
        let store = Arc::new(builder.build().context("cannot make a client of the store")?);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { runtime, store })
    }

    /// Writes `bytes` in objects of 8 MiB.
    pub(super) fn put(&self, bytes: u64) -> Result<Duration> {
        let payload = PutPayload::from(vec![5; OBJECT_BYTES as usize]);
        self.each(bytes / OBJECT_BYTES, |store, path| {
            let payload = payload.clone();
            async move { store.put(&path, payload).await.map(drop) }
        })
    }

    /// Reads the `bytes` that [`put`](Self::put) has written.
    pub(super) fn get(&self, bytes: u64) -> Result<Duration> {
        self.each(bytes / OBJECT_BYTES, |store, path| async move { store.get(&path).await?.bytes().await.map(drop) })
    }

    /// Writes one small object.
    pub(super) fn put_small(&self, bytes: usize) -> Result<Duration> {
        let (path, payload) = (ObjectPath::from("small"), PutPayload::from(vec![5; bytes]));
        let start = Instant::now();
        self.runtime.block_on(self.store.put(&path, payload))?;
        Ok(start.elapsed())
    }

    /// Calls `request` for each of `count` objects, and returns the time of all.
    fn each<F>(&self, count: u64, request: impl Fn(Arc<AmazonS3>, ObjectPath) -> F) -> Result<Duration>
    where
        F: Future<Output = object_store::Result<()>> + Send + 'static,
    {
        let slots = Arc::new(Semaphore::new(PARALLEL));
        let start = Instant::now();
        self.runtime.block_on(async {
            let mut requests = JoinSet::new();
            for number in 0..count {
                let (slot, path) = (slots.clone().acquire_owned().await?, ObjectPath::from(format!("large/{number}")));
                let request = request(self.store.clone(), path);
                requests.spawn(async move {
                    let _slot = slot;
                    request.await
                });
            }
            while let Some(ended) = requests.join_next().await {
                if let Err(error) = ended.context("a request has panicked")? {
                    bail!("the bare store: {error}");
                }
            }
            Ok(())
        })?;
        Ok(start.elapsed())
    }
}

/// The column of a volume of ours whose source is a directory.
pub(super) const DIR: &str = "dir volume";
pub(super) const S3FS: &str = "s3fs";

/// File systems of others, which keep each file as an object.
pub(super) const PEERS: [&str; 2] = [RCLONE, S3FS];

/// Size of the cache, which holds all files of the comparison.
pub(super) const CACHE_BYTES: u64 = 1 << 30;

/// A file system that is mounted, and mounted again when it should have nothing in its caches.
pub(super) struct Subject {
    server: Server,
    /// The delay of the store; `None` for a volume of a directory.
    delay: Option<Delay>,
    endpoint: String,
    /// A bucket that no other subject uses: to this server, a prefix with objects is a directory, and rclone and s3fs
    /// fail on those.
    bucket: String,
    home: PathBuf,
    mounted: Option<Mounted>,
}

impl Subject {
    /// A new object volume of `program`, mounted.
    pub(super) fn ours(program: &Path, s3: &Servers, delay: Delay, home: PathBuf) -> Result<Self> {
        let mut subject = Self::unmounted(Server::new(OURS, program.to_path_buf()), s3, delay, home)?;
        let mut mkfs = Command::new(program);
        subject.tell_store(&mut mkfs);
        programs::run(mkfs.arg("mkfs").arg(subject.url()))?;
        subject.mount()?;
        Ok(subject)
    }

    /// A volume of a new directory, mounted.
    pub(super) fn dir(program: &Path, home: PathBuf) -> Result<Self> {
        let server = Server::new(OURS, program.to_path_buf()).with_options(&["--dirty-ratio", "75"]);
        let (endpoint, bucket) = (String::new(), String::new());
        let mut subject = Self { server, delay: None, endpoint, bucket, home, mounted: None };
        subject.mount()?;
        Ok(subject)
    }

    /// The file system `name` of others, mounted; `None` if it is not installed.
    pub(super) fn peer(name: &'static str, s3: &Servers, delay: Delay, home: PathBuf) -> Result<Option<Self>> {
        let Some(program) = on_path(name) else { return Ok(None) };
        let mut subject = Self::unmounted(Server::new(name, program), s3, delay, home)?;
        subject.mount()?;
        Ok(Some(subject))
    }

    fn unmounted(server: Server, s3: &Servers, delay: Delay, home: PathBuf) -> Result<Self> {
        let (endpoint, bucket) = (s3.endpoint(delay), format!("{}-volume", server.name));
        s3.make_bucket(delay, &bucket)?;
        Ok(Self { server, delay: Some(delay), endpoint, bucket, home, mounted: None })
    }

    /// The subject's column in tables.
    pub(super) fn column(&self) -> &'static str {
        if self.delay.is_some() { self.server.name } else { DIR }
    }

    pub(super) fn delay(&self) -> Option<Delay> {
        self.delay
    }

    /// Whether it is one of [`PEERS`].
    pub(super) fn is_peer(&self) -> bool {
        PEERS.contains(&self.server.name)
    }

    pub(super) fn path(&self) -> PathBuf {
        mountpoint_in(&self.home)
    }

    pub(super) fn pid(&self) -> Result<u32> {
        Ok(self.mounted.as_ref().context("it is not mounted")?.pid())
    }

    /// The server's file of the object with the data of a file, if it is one of the peers.
    pub(super) fn object_of(&self, s3: &Servers, file: &str) -> Option<PathBuf> {
        let delay = self.delay.filter(|_| self.is_peer())?;
        Some(s3.object(delay, Path::new(&self.bucket).join(file)))
    }

    /// Mounts it and returns the time until the first answer.
    pub(super) fn mount(&mut self) -> Result<Duration> {
        let mounted = match self.delay {
            Some(_) => Mounted::start(&self.server, self.command()?, &self.home),
            None => Mounted::new(&self.server, &self.home, CACHE_BYTES),
        };
        let mounted = mounted.with_context(|| format!("cannot mount {}", self.column()))?;
        Ok(self.mounted.insert(mounted).mount_time)
    }

    /// Unmounts it, which makes everything durable.
    pub(super) fn umount(&mut self) -> Result<Duration> {
        let mounted = self.mounted.take().context("it is not mounted")?;
        mounted.umount().map(|times| times.server).with_context(|| format!("cannot unmount {}", self.column()))
    }

    /// Empties its caches and those of the kernel.
    pub(super) fn remount(&mut self) -> Result<Duration> {
        self.umount()?;
        self.mount()
    }

    /// Makes everything durable. Peers need an fsync of each file.
    pub(super) fn settle(&self) -> Result<()> {
        self.mounted.as_ref().context("it is not mounted")?.settle()
    }

    fn url(&self) -> String {
        format!("s3://{}/prefix", self.bucket)
    }

    /// Tells the client of the store in `command` where the store is.
    fn tell_store(&self, command: &mut Command) {
        command.env("AWS_ENDPOINT_URL", &self.endpoint).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", REGION);
        // There is no TLS, and rclone cannot start with certificates of its own.
        command.env_remove("AWS_CA_BUNDLE");
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    }

    /// The command that mounts it and runs until it is unmounted.
    fn command(&self) -> Result<Command> {
        let mountpoint = self.path();
        // Ours unmounts when it gets this signal.
        let mut command = tied(self.server.program(), "TERM");
        self.tell_store(&mut command);
        match self.server.name {
            OURS => {
                command.args(["mount", "--foreground", "--dirty-ratio", "75", "--cache", &CACHE_BYTES.to_string()]);
                command.arg("--arena").arg(arena_in(&self.home)).arg(self.url()).arg(mountpoint);
            }
            RCLONE => {
                command.args(["mount", "--config", "/dev/null", "--vfs-cache-mode", "writes"]);
                // Uploads begin at close, not 5 s later.
                command.args(["--vfs-write-back", "0s"]);
                // It would ask for the time of each file in a listing.
                command.arg("--use-server-modtime");
                command.arg("--cache-dir").arg(self.home.join("cache"));
                command.env("RCLONE_S3_PROVIDER", "Other").env("RCLONE_S3_ENDPOINT", &self.endpoint);
                command.env("RCLONE_S3_ENV_AUTH", "true").env("RCLONE_S3_REGION", REGION);
                command.arg(format!(":s3:{}", self.bucket)).arg(mountpoint);
            }
            S3FS => {
                let key = self.home.join("key");
                let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&key);
                let written = file.and_then(|mut file| writeln!(file, "{ACCESS_KEY}:{SECRET_KEY}"));
                written.with_context(|| format!("cannot write {}", key.display()))?;
                command.arg(&self.bucket).arg(mountpoint).arg("-f");
                // It hangs in the upload of a file in parts to a server that it does not know.
                let options = format!("url={},use_path_request_style,endpoint={REGION},nomultipart", self.endpoint);
                command.arg("-o").arg(options).arg("-o").arg(format!("passwd_file={}", key.display()));
            }
            other => unreachable!("no subject has the name {other}"),
        }
        Ok(command)
    }

    pub(super) fn is_mounted(&self) -> bool {
        self.mounted.is_some()
    }

    /// Ends it, whatever its state.
    pub(super) fn abandon(&mut self) {
        self.mounted = None;
    }

    /// Ends it.
    pub(super) fn end(mut self) -> Result<()> {
        ensure!(self.mounted.is_some(), "{} is not mounted", self.column());
        self.umount().map(drop)
    }
}
