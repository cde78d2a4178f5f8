//! A directory, mounted through the cache at another, with a layer of faults in between.

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
use slackwater_backends::{DirBackend, Fault, FaultControl, SystemClock};
use slackwater_fuse::mount::{MountOptions, unmount};
use slackwater_fuse::tenants::{TenantBy, TenantConfig, Tenants};
use slackwater_fuse::{MountedError, MountedVolume, Pool, PoolOptions, Progress, Tenancy, UmountRequest};

use crate::programs::LONG;

pub(crate) struct Rig {
    /// Where the bytes end up.
    pub(crate) source: PathBuf,
    /// Where programs see them.
    pub(crate) path: PathBuf,
    pub(crate) faults: FaultControl,
    pub(crate) mounted: Arc<MountedVolume>,
    pub(crate) engine: Engine,
    /// Who pays, where somebody does.
    pub(crate) tenancy: Option<Arc<Tenancy>>,
    home: PathBuf,
    _pool: Pool,
}

/// Who pays for what is written.
#[derive(Clone)]
pub(crate) struct Paying {
    pub(crate) by: TenantBy,
    /// By tenant.
    pub(crate) config: BTreeMap<PathBuf, TenantConfig>,
}

impl Paying {
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

    /// Over a new directory from which `layer` makes the backend.
    pub(crate) fn layered(layer: impl FnOnce(DirBackend) -> Arc<dyn Backend>) -> Self {
        Self::of_engine(new_engine(32 << 20, Tunables::default()), None, layer)
    }

    /// On a directory that the test has prepared. `home` is removed in the end.
    pub(crate) fn over(home: PathBuf, source: PathBuf, arena_bytes: u64, tunables: Tunables) -> Self {
        let backend = Arc::new(DirBackend::open(&source).unwrap());
        Self::on(home, source, new_engine(arena_bytes, tunables), backend, None, false)
    }

    /// A volume that stays out of the cache, or does not; by whom it is paid is said in `paying`.
    pub(crate) fn dontcache(dontcache: bool, paying: Option<Paying>) -> Self {
        // Nothing is read ahead: what is in the cache is known.
        let tunables = Tunables { readahead_pages: 0, ..Tunables::default() };
        let (home, source) = new_source();
        let backend = Arc::new(DirBackend::open(&source).unwrap());
        Self::on(home, source, new_engine(32 << 20, tunables), backend, paying, dontcache)
    }

    /// With tenants, over a new directory from which `layer` makes the backend.
    pub(crate) fn paid(
        arena_bytes: u64,
        tunables: Tunables,
        paying: Paying,
        layer: impl FnOnce(DirBackend) -> Arc<dyn Backend>,
    ) -> Self {
        Self::of_engine(new_engine(arena_bytes, tunables), Some(paying), layer)
    }

    /// Another volume of the same engine. Its tenants are its own.
    pub(crate) fn beside(&self, paying: Option<Paying>) -> Self {
        Self::of_engine(self.engine.clone(), paying, |directory| Arc::new(directory))
    }

    fn of_engine(engine: Engine, paying: Option<Paying>, layer: impl FnOnce(DirBackend) -> Arc<dyn Backend>) -> Self {
        let (home, source) = new_source();
        let backend = layer(DirBackend::open(&source).unwrap());
        Self::on(home, source, engine, backend, paying, false)
    }

    fn on(
        home: PathBuf,
        source: PathBuf,
        engine: Engine,
        backend: Arc<dyn Backend>,
        paying: Option<Paying>,
        dontcache: bool,
    ) -> Self {
        let path = home.join("mount");
        fs::create_dir(&path).unwrap();
        let pool = Pool::new(PoolOptions::default()).unwrap();
        let (backend, faults) = Fault::new(backend);
        let sb = engine.mount(&home.to_string_lossy(), Arc::new(backend)).unwrap();
        let tenancy = paying.map(|paying| paying.tenancy(&engine));
        let options = MountOptions { dontcache, ..MountOptions::default() };
        let mounted = MountedVolume::mount(&pool, sb, &path, &options, tenancy.clone());
        let mounted = mounted.expect("these tests mount FUSE file systems: run them as root, with /dev/fuse");
        Self { source, path, faults, mounted, engine, tenancy, home, _pool: pool }
    }

    /// Unmounts, and mounts the same source again at the same place.
    pub(crate) fn mount_again(&mut self) {
        self.umount().unwrap();
        let backend = Arc::new(DirBackend::open(&self.source).unwrap());
        let sb = self.engine.mount(&self.home.to_string_lossy(), backend).unwrap();
        self.mounted = MountedVolume::mount(&self._pool, sb, &self.path, &MountOptions::default(), None).unwrap();
    }

    /// As the mount has it.
    pub(crate) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// As the source has it.
    pub(crate) fn stored(&self, name: impl AsRef<Path>) -> PathBuf {
        self.source.join(name)
    }

    /// The tenant of this name, once it has written.
    pub(crate) fn memcg(&self, name: &str) -> Option<Arc<Memcg>> {
        self.engine.memcgs().into_iter().find(|memcg| memcg.name() == name)
    }

    /// What cannot be dropped of a tenant's data.
    pub(crate) fn charged_bytes(&self, name: &str) -> u64 {
        self.memcg(name).map_or(0, |memcg| memcg.charged_bytes())
    }

    /// Lets everything that is held go on, and what comes later.
    pub(crate) fn let_through(&self) {
        self.faults.clear();
        self.faults.release_all();
    }

    /// Unmounts. A child that another test is about to start has our descriptors for a moment: that is waited for.
    pub(crate) fn umount(&self) -> Result<(), MountedError> {
        umount(&self.mounted, UmountRequest { deadline: Some(LONG), ..UmountRequest::default() }, &|_| {})
    }

    /// Unmounts as `slackwater umount` does.
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
        // Mounted no more, where the test got to its end.
        let _ = unmount(&self.path, true);
        let _ = fs::remove_dir_all(self.home.join("source"));
        let _ = fs::remove_dir(&self.path);
        let _ = fs::remove_dir(&self.home);
    }
}

/// A tmpfs at the home of a rig, for what not every file system has; unmounted in the end.
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

/// A new directory that everybody may look into.
pub(crate) fn new_home() -> PathBuf {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let home = Path::new("/tmp").join(format!("slackwater-volume-{}-{number}", std::process::id()));
    fs::create_dir(&home).unwrap();
    open_to_all(&home);
    home
}

/// The same with a source in it.
fn new_source() -> (PathBuf, PathBuf) {
    let home = new_home();
    let source = home.join("source");
    fs::create_dir(&source).unwrap();
    open_to_all(&source);
    (home, source)
}

/// Whatever the umask of these tests is.
fn open_to_all(path: &Path) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

/// Bytes that are not zero and differ from page to page.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + i / 4096) as u8 ^ seed | 1).collect()
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

/// Runs what may hang, and fails instead.
#[track_caller]
pub(crate) fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    done.recv_timeout(LONG).unwrap_or_else(|_| panic!("hangs: {what}"))
}
