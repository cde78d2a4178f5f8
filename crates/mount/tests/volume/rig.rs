//! A source directory mounted through the cache at another directory, with a layer of injected faults in between.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use slackwater::backend::Backend;
use slackwater::{Engine, Memcg, Tunables};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{DirBackend, SystemClock};
use slackwater_fuse::mount::{MountOptions, unmount};
use slackwater_fuse::{Pool, PoolOptions};
use slackwater_mount::tenants::{TenantBy, TenantConfig, Tenants};
use slackwater_mount::{MountedError, MountedVolume, Progress, Tenancy, UmountRequest};
use slackwater_testkit::{Fault, FaultControl};

use crate::programs::LONG;
use crate::transport;

pub(crate) struct Rig {
    /// The source directory.
    pub(crate) source: PathBuf,
    /// The mount point.
    pub(crate) path: PathBuf,
    pub(crate) faults: FaultControl,
    pub(crate) mounted: Arc<MountedVolume>,
    pub(crate) engine: Engine,
    /// The tenants, if there are any.
    pub(crate) tenancy: Option<Arc<Tenancy>>,
    home: PathBuf,
    _pool: Pool,
}

/// Tenants of a rig, and their settings.
#[derive(Clone)]
pub(crate) struct TenantSetup {
    pub(crate) by: TenantBy,
    /// Settings by tenant.
    pub(crate) config: BTreeMap<PathBuf, TenantConfig>,
}

impl TenantSetup {
    pub(crate) fn of(by: TenantBy, limits_bytes: &[(&str, u64)]) -> Self {
        let limit = |(tenant, bytes): &(&str, u64)| ((*tenant).into(), TenantConfig::limit(*bytes));
        Self { by, config: limits_bytes.iter().map(limit).collect() }
    }

    fn tenancy(self, engine: &Engine) -> Arc<Tenancy> {
        let tenants = Tenants::new(self.by, self.config, Arc::new(SystemClock)).unwrap();
        Tenancy::new(tenants, engine).unwrap()
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(32 << 20, Tunables::default())
    }

    pub(crate) fn with(arena_bytes: u64, tunables: Tunables) -> Self {
        Self::of_engine(new_engine(arena_bytes, tunables), None, |directory| Arc::new(directory))
    }

    /// A rig over a new directory; `layer` makes the backend from it.
    pub(crate) fn layered(layer: impl FnOnce(DirBackend) -> Arc<dyn Backend>) -> Self {
        Self::of_engine(new_engine(32 << 20, Tunables::default()), None, layer)
    }

    /// A rig over a directory that the test has prepared. `home` is removed at the end.
    pub(crate) fn over(home: PathBuf, source: PathBuf, arena_bytes: u64, tunables: Tunables) -> Self {
        let backend = Arc::new(DirBackend::open(&source).unwrap());
        Self::on(home, source, new_engine(arena_bytes, tunables), backend, None, false)
    }

    /// A volume with or without dontcache, whose tenants are those of `setup`.
    pub(crate) fn dontcache(dontcache: bool, setup: Option<TenantSetup>) -> Self {
        // No readahead, so that the contents of the cache are known.
        let tunables = Tunables { readahead_pages: 0, ..Tunables::default() };
        let (home, source) = new_source();
        let backend = Arc::new(DirBackend::open(&source).unwrap());
        Self::on(home, source, new_engine(32 << 20, tunables), backend, setup, dontcache)
    }

    /// A rig with tenants, over a new directory; `layer` makes the backend from it.
    pub(crate) fn with_tenants(
        arena_bytes: u64,
        tunables: Tunables,
        setup: TenantSetup,
        layer: impl FnOnce(DirBackend) -> Arc<dyn Backend>,
    ) -> Self {
        Self::of_engine(new_engine(arena_bytes, tunables), Some(setup), layer)
    }

    /// Another volume of the same engine, with its own tenants.
    pub(crate) fn beside(&self, setup: Option<TenantSetup>) -> Self {
        Self::of_engine(self.engine.clone(), setup, |directory| Arc::new(directory))
    }

    fn of_engine(
        engine: Engine,
        setup: Option<TenantSetup>,
        layer: impl FnOnce(DirBackend) -> Arc<dyn Backend>,
    ) -> Self {
        let (home, source) = new_source();
        let backend = layer(DirBackend::open(&source).unwrap());
        Self::on(home, source, engine, backend, setup, false)
    }

    fn on(
        home: PathBuf,
        source: PathBuf,
        engine: Engine,
        backend: Arc<dyn Backend>,
        setup: Option<TenantSetup>,
        dontcache: bool,
    ) -> Self {
        let path = home.join("mount");
        fs::create_dir(&path).unwrap();
        let pool = Pool::new(PoolOptions::default()).unwrap();
        let (backend, faults) = Fault::new(backend);
        let sb = engine.mount(&home.to_string_lossy(), Arc::new(backend)).unwrap();
        let tenancy = setup.map(|setup| setup.tenancy(&engine));
        let options = MountOptions { dontcache, uring: transport::uring(), ..MountOptions::default() };
        let mounted = MountedVolume::mount(&pool, sb, &path, &options, tenancy.clone());
        let mounted = mounted.expect("these tests mount FUSE file systems: run them as root, with /dev/fuse");
        Self { source, path, faults, mounted, engine, tenancy, home, _pool: pool }
    }

    /// Unmounts, and mounts the same source again at the same mount point.
    pub(crate) fn mount_again(&mut self) {
        self.umount().unwrap();
        let backend = Arc::new(DirBackend::open(&self.source).unwrap());
        let sb = self.engine.mount(&self.home.to_string_lossy(), backend).unwrap();
        let options = MountOptions { uring: transport::uring(), ..MountOptions::default() };
        self.mounted = MountedVolume::mount(&self._pool, sb, &self.path, &options, None).unwrap();
    }

    /// The path of a file in the mount.
    pub(crate) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// The path of a file in the source.
    pub(crate) fn stored(&self, name: impl AsRef<Path>) -> PathBuf {
        self.source.join(name)
    }

    /// The tenant with this name, once it has written.
    pub(crate) fn memcg(&self, name: &str) -> Option<Arc<Memcg>> {
        self.engine.memcgs().into_iter().find(|memcg| memcg.name() == name)
    }

    /// Bytes charged to a tenant: data that cannot be dropped.
    pub(crate) fn charged_bytes(&self, name: &str) -> u64 {
        self.memcg(name).map_or(0, |memcg| memcg.charged_bytes())
    }

    /// Releases all held calls, and stops holding later ones.
    pub(crate) fn let_through(&self) {
        self.faults.clear();
        self.faults.release_all();
    }

    /// Unmounts, and retries while it is busy: a child that another test is about to start shares our descriptors for a
    /// moment.
    pub(crate) fn umount(&self) -> Result<(), MountedError> {
        umount(&self.mounted, UmountRequest { deadline: Some(LONG), ..UmountRequest::default() }, &|_| {})
    }

    /// Unmounts without a retry, as `slackwater umount` does.
    pub(crate) fn umount_at_once(&self) -> Result<(), MountedError> {
        self.mounted.umount(UmountRequest { deadline: Some(LONG), ..UmountRequest::default() }, &|_| {})
    }
}

/// Unmounts as [`Rig::umount`] does.
pub(crate) fn umount(
    mounted: &MountedVolume,
    request: UmountRequest,
    progress: &dyn Fn(Progress),
) -> Result<(), MountedError> {
    let start = Instant::now();
    loop {
        let result = mounted.umount(request, progress);
        if !matches!(result, Err(MountedError::Busy { .. })) || start.elapsed() > LONG {
            return result;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.faults.clear();
        self.faults.release_all();
        // Already unmounted, unless the test failed.
        let _ = unmount(&self.path, true);
        let _ = fs::remove_dir_all(self.home.join("source"));
        let _ = fs::remove_dir(&self.path);
        let _ = fs::remove_dir(&self.home);
    }
}

/// A tmpfs at the home of a rig, for features that not every file system has; unmounted at the end.
pub(crate) struct Tmpfs(pub(crate) PathBuf);

impl Tmpfs {
    pub(crate) fn new(home: PathBuf) -> Self {
        rustix::mount::mount("tmpfs", &home, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        Self(home)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(&self.0, true);
        let _ = fs::remove_dir(&self.0);
    }
}

fn new_engine(arena_bytes: u64, tunables: Tunables) -> Engine {
    Engine::new(Arena::create(&ArenaConfig::memfd(arena_bytes)).unwrap(), Arc::new(SystemClock), tunables)
}

/// A new directory that every user may enter.
pub(crate) fn new_home() -> PathBuf {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let home = Path::new("/tmp").join(format!("slackwater-volume-{}-{number}", std::process::id()));
    fs::create_dir(&home).unwrap();
    open_to_all(&home);
    home
}

/// The same, with a source directory in it.
fn new_source() -> (PathBuf, PathBuf) {
    let home = new_home();
    let source = home.join("source");
    fs::create_dir(&source).unwrap();
    open_to_all(&source);
    (home, source)
}

/// Makes a directory accessible to all users, whatever the umask.
fn open_to_all(path: &Path) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

#[track_caller]
pub(crate) fn assert_same(found: &[u8], wanted: &[u8]) {
    assert_eq!(found.len(), wanted.len());
    if found == wanted {
        return;
    }
    let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    assert_eq!(differs, None, "first different byte");
}

/// Runs work that may hang, and fails the test if it does.
#[track_caller]
pub(crate) fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    done.recv_timeout(LONG).unwrap_or_else(|_| panic!("hangs: {what}"))
}
