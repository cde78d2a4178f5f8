//! Settings changed while a volume is mounted: whether data stays out of the cache, and limits of tenants.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use slackwater::Tunables;
use slackwater_mount::tenants::{TenantBy, TenantConfig, TenantsError};
use slackwater_testkit::{Rule, pattern};

use crate::cgroups::{Cgroup, memory, unified};
use crate::programs::{until, wait};
use crate::rig::{Rig, TenantSetup, assert_same};
use crate::tenants::until_it_waits;

const MIB: u64 = 1 << 20;
const USER: u32 = 4713;
const PAGE: u64 = 4096;
const BLOCK: usize = 64 << 10;
/// Size of a file whose cached pages are counted.
const BYTES: usize = 48 * 4096;

fn set(rig: &Rig, tenant: &str, config: TenantConfig) {
    rig.tenancy.as_ref().unwrap().set_config(Path::new(tenant), config).unwrap();
}

fn dontcache(dontcache: Option<bool>) -> TenantConfig {
    TenantConfig { limit_bytes: None, dontcache }
}

/// Pages of a new file that remain in the cache once it is clean.
fn cached_after_write(rig: &Rig, name: &str) -> u64 {
    let cached = || u64::from(rig.engine.arena().frames()) - rig.engine.arena().free_frames();
    let before = cached();
    let file = File::create_new(rig.file(name)).unwrap();
    for (number, block) in pattern(3, BYTES).chunks(BLOCK).enumerate() {
        file.write_all_at(block, (number * BLOCK) as u64).unwrap();
    }
    rig.mounted.sync().unwrap();
    cached() - before
}

#[test]
fn a_volume_stays_out_of_the_cache_once_dontcache_is_set() {
    let rig = Rig::dontcache(false, None);
    assert_eq!(cached_after_write(&rig, "a"), BYTES as u64 / PAGE);
    rig.mounted.set_dontcache(true);
    assert_eq!(cached_after_write(&rig, "b"), 0);
    rig.mounted.set_dontcache(false);
    assert_eq!(cached_after_write(&rig, "c"), BYTES as u64 / PAGE);
    rig.umount().unwrap();
}

#[test]
fn a_tenant_stays_out_of_the_cache_once_dontcache_is_configured() {
    let own = format!("uid:{}", rustix::process::getuid().as_raw());
    for (by, tenant) in [(TenantBy::Volume, "volume"), (TenantBy::Uid, own.as_str())] {
        let rig = Rig::dontcache(false, Some(TenantSetup::of(by, &[])));
        assert_eq!(cached_after_write(&rig, "a"), BYTES as u64 / PAGE);
        set(&rig, tenant, dontcache(Some(true)));
        assert_eq!(cached_after_write(&rig, "b"), 0);
        set(&rig, tenant, dontcache(Some(false)));
        assert_eq!(cached_after_write(&rig, "c"), BYTES as u64 / PAGE);
        rig.mounted.set_dontcache(true);
        assert_eq!(cached_after_write(&rig, "d"), BYTES as u64 / PAGE, "the tenant's setting overrides the volume's");
        set(&rig, tenant, TenantConfig::default());
        assert_eq!(cached_after_write(&rig, "e"), 0, "the tenant has no setting any more");
        rig.umount().unwrap();
    }
}

/// A program that writes 16 MiB in small requests. Its own pages are charged to no tenant.
struct Writer(Child);

impl Writer {
    fn new(rig: &Rig, name: &str, as_tenant: impl FnOnce(&[&str]) -> Command) -> Self {
        let of = format!("of={}", rig.file(name).display());
        Self(as_tenant(&["if=/dev/zero", &of, "bs=64K", "count=256", "conv=notrunc"]).spawn().unwrap())
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn succeeds(&mut self) -> bool {
        wait(&mut self.0).expect("the program ends").success()
    }
}

/// A tenant without a limit gets one, then a larger one while its write is blocked, and finally none.
fn limits_change_under_a_writer(rig: &Rig, tenant: &str, writer: impl Fn(&str) -> Writer) {
    const TOTAL: u64 = 16 * MIB;
    rig.faults.add(Rule::hold().on("write"));
    assert!(writer("free").succeeds(), "nothing is configured");
    assert_eq!(rig.memcg(tenant).unwrap().limit_bytes(), None);
    assert_eq!(rig.charged_bytes(tenant), TOTAL);
    set(rig, tenant, TenantConfig::limit(20 * MIB));
    assert_eq!(rig.memcg(tenant).unwrap().limit_bytes(), Some(20 * MIB), "at once, without a lookup");
    let mut limited = writer("limited");
    until_it_waits(rig, tenant, &limited.0);
    assert!(limited.is_running() && rig.charged_bytes(tenant) <= 20 * MIB + MIB);
    // Only the blocked write can notice the new limit.
    set(rig, tenant, TenantConfig::limit(64 * MIB));
    assert!(limited.succeeds(), "the write fits into the new limit");
    assert_eq!(rig.charged_bytes(tenant), 2 * TOTAL);
    set(rig, tenant, TenantConfig::limit(33 * MIB));
    let mut limited = writer("limited again");
    until_it_waits(rig, tenant, &limited.0);
    set(rig, tenant, TenantConfig::default());
    assert!(limited.succeeds(), "the limit was removed");
    assert_eq!(rig.memcg(tenant).unwrap().limit_bytes(), None);
    rig.let_through();
    rig.umount().unwrap();
    for name in ["free", "limited", "limited again"] {
        assert_same(&fs::read(rig.stored(name)).unwrap(), &vec![0; TOTAL as usize]);
    }
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    command
}

#[test]
fn limits_of_a_user_change_while_mounted() {
    let rig = Rig::with_tenants(256 * MIB, Tunables::default(), TenantSetup::of(TenantBy::Uid, &[]), |directory| {
        std::sync::Arc::new(directory)
    });
    for name in ["free", "limited", "limited again"] {
        let file = File::create(rig.file(name)).unwrap();
        std::os::unix::fs::fchown(&file, Some(USER), None).unwrap();
    }
    limits_change_under_a_writer(&rig, &format!("uid:{USER}"), |name| {
        Writer::new(&rig, name, |words| {
            let mut dd = Command::new("dd");
            dd.args(words).uid(USER);
            quiet(dd)
        })
    });
}

#[test]
fn limits_of_a_cgroup_change_while_mounted() {
    let Some(hierarchy) = unified().or_else(memory) else { return };
    let tenant = Cgroup::top(&hierarchy);
    let rig = Rig::with_tenants(256 * MIB, Tunables::default(), TenantSetup::of(TenantBy::Cgroup, &[]), |directory| {
        std::sync::Arc::new(directory)
    });
    limits_change_under_a_writer(&rig, &tenant.path, |name| {
        Writer::new(&rig, name, |words| tenant.command("dd", words))
    });
}

/// A cgroup below another becomes a tenant when it is configured, by its path or its directory, and ceases to be one
/// when the settings are removed.
#[test]
fn a_cgroup_becomes_a_tenant_when_it_is_configured() {
    let Some(hierarchy) = unified().or_else(memory) else { return };
    let top = Cgroup::top(&hierarchy);
    let below = top.below("below");
    let rig = Rig::with_tenants(64 * MIB, Tunables::default(), TenantSetup::of(TenantBy::Cgroup, &[]), |directory| {
        std::sync::Arc::new(directory)
    });
    rig.faults.add(Rule::hold().on("write"));
    let write = |name: &str| {
        let of = format!("of={}", rig.file(name).display());
        let mut dd = below.command("dd", &["if=/dev/zero", &of, "bs=1M", "count=1"]).spawn().unwrap();
        assert!(wait(&mut dd).expect("the program ends").success());
    };
    write("a");
    assert_eq!((rig.charged_bytes(&top.path), rig.memcg(&below.path).is_some()), (MIB, false));
    set(&rig, below.directory.to_str().unwrap(), TenantConfig::limit(8 * MIB));
    write("b");
    assert_eq!((rig.charged_bytes(&top.path), rig.charged_bytes(&below.path)), (MIB, MIB));
    set(&rig, &below.path, TenantConfig::default());
    write("c");
    assert_eq!((rig.charged_bytes(&top.path), rig.charged_bytes(&below.path)), (2 * MIB, MIB));
    assert_eq!(rig.memcg(&below.path).unwrap().limit_bytes(), None);
    rig.let_through();
    rig.umount().unwrap();
    drop((below, top));
    until("the tenants are gone", || rig.engine.memcgs().len() == 1);
}

#[test]
fn settings_for_impossible_tenants_are_rejected() {
    let rig = Rig::dontcache(false, Some(TenantSetup::of(TenantBy::Uid, &[])));
    let tenancy = rig.tenancy.as_ref().unwrap();
    let refusal = tenancy.set_config(Path::new("/a"), TenantConfig::limit(MIB)).unwrap_err();
    assert!(matches!(refusal, TenantsError::NoSuchTenant { .. }), "{refusal}");
    rig.umount().unwrap();
}
