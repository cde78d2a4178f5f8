//! The S3 servers of the experiment, one for each delay. They count the requests of every client.

use std::fs::File;
use std::ops::Sub;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise, syncfs};
use slackwater_s3_server::Server;

use crate::harness::axis;
use crate::scratch::Scratch;

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

    /// For names of files and buckets.
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
    short: Server,
    long: Server,
}

impl Servers {
    /// Starts them. They keep their objects in new directories of `home`.
    pub(super) fn start(home: &Scratch) -> Result<Self> {
        let start = |delay: Delay| -> Result<Server> {
            let root = home.subdirectory(&format!("s3-{}", delay.tag()))?;
            let server = Server::start_in(&root, BUCKET).context("cannot start an S3 server")?;
            server.set_delay(delay.time());
            Ok(server)
        };
        Ok(Self { short: start(Delay::Short)?, long: start(Delay::Long)? })
    }

    fn server(&self, delay: Delay) -> &Server {
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
        let path = self.object(delay, name);
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))
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
