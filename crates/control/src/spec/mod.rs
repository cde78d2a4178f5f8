//! The specification of a volume and of the process that serves it: the one place of each option's name, type, default,
//! check and help, and of where the option is allowed.
//!
//! ```text
//! values   the texts of values
//! fields   options by name: in a list, in a table, as a setting
//! wire     the forms that other versions of the program read
//! settings settings that change while a process serves
//! ```
//!
//! A field of [`VolumeSpec`] is an option of `mount`, of `-o` and fstab, of a volume in the configuration of a daemon, and
//! of the requests to a daemon. The lists below say which of them can also be changed while the volume is mounted, come
//! from a container platform, or are left out somewhere.

pub mod fields;
pub mod settings;
pub mod values;
pub mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Deserializer, Serialize, de};
use slackwater_host::Printable as _;
use slackwater_host::size;
use slackwater_mount::tenants::{TenantBy, TenantConfig};

use crate::exit::Failure;
use crate::name::VolumeName;

use self::fields::Refused;
use self::values::{Address, Age, By, DirtyLimit, Follow, Rate, Size, TenantDontcache, TenantLimit, percent};

/// Percentage of the cache that may hold unwritten data.
pub const DIRTY_RATIO: u32 = 20;
/// Age at which dirty data is written back.
pub const DIRTY_EXPIRE: Duration = Duration::from_secs(30);

/// How old a reader of an object volume may be.
pub const FOLLOW: Duration = Duration::from_secs(5);

/// Options of a volume that `slackwater set` changes.
pub const CHANGEABLE: [&str; 3] = ["dontcache", "dirty-limit", "dirty-expire"];
/// Options of a volume that a container platform may state, each with an example.
pub const IN_CONTAINERS: [(&str, &str); 4] =
    [("dirty-limit", "64MiB"), ("dontcache", "on"), ("dirty-expire", "5s"), ("upload-limit", "50MiB")];
/// An option that a configuration cannot have: each start of the daemon would fence another process.
pub const NOT_CONFIGURED: &str = "take-over";
/// Options that two mounts of a volume need not have in common: root, who alone can mount a volume twice, always allows
/// other users; and the last one asks for a mount of its own.
pub const NOT_COMPARED: [&str; 2] = ["allow-other", NOT_CONFIGURED];
/// Longest label of a volume.
const LABEL_CHARS: usize = 64;
/// The value of an option that a mount does not have.
pub const NONE: &str = "none";

/// The options of a volume.
#[derive(Args, Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct VolumeSpec {
    /// Keep nothing in the cache: write data back at once, and evict it when it is durable
    ///
    /// To override this for one file, set its attribute user.slackwater.dontcache to 0 (cache it) or 1 (do not).
    #[arg(long)]
    pub dontcache: bool,
    /// Limit the data of the volume that is not yet durable, such as 64MiB; writers wait at the limit
    #[arg(long, value_name = "SIZE")]
    pub dirty_limit: Option<DirtyLimit>,
    /// Age at which dirty data is written back [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub dirty_expire: Option<Age>,
    /// Mount it read-only
    ///
    /// An object volume can be mounted read-only on any number of machines beside the one that writes.
    #[arg(long)]
    pub read_only: bool,
    /// How old a read-only object volume may be, compared with its writer's last commit [default: 5s]
    #[arg(long, value_name = "TIME")]
    pub follow: Option<Follow>,
    /// Take an object volume from the process that has it
    ///
    /// That process keeps everything that it has made durable, and can write nothing more: its fsync fails with ESTALE.
    /// Use it only if that process is dead or cannot be reached.
    #[arg(long)]
    pub take_over: bool,
    /// Limit what an object volume sends to its store per second, such as 50MiB
    #[arg(long, value_name = "SIZE")]
    pub upload_limit: Option<Rate>,
    /// Let other users access the mount, subject to file permissions [default for root]
    #[arg(long)]
    pub allow_other: bool,
    /// How requests reach this process: by /dev/fuse, by io_uring, or by io_uring if possible
    ///
    /// io_uring is faster, above all if other CPUs are idle. It needs Linux 6.14 and
    /// `echo Y > /sys/module/fuse/parameters/enable_uring`, and takes a thread for each CPU. `auto` does not use it in a
    /// daemon, which has many volumes. With `uring` the mount fails where it is not possible. Choose `dev` for a process
    /// that you stop by a signal or in a debugger: with io_uring, programs that wait for it cannot be killed meanwhile.
    #[arg(long, value_name = "WHAT", default_value_t = Transport::Auto, value_enum)]
    pub transport: Transport,
    /// A text for people, such as "pictures of 2024", which `slackwater ls` shows
    #[arg(long, value_name = "TEXT", value_parser = label)]
    #[serde(deserialize_with = "labelled")]
    pub label: Option<String>,
    /// Ignore set-user-ID and set-group-ID bits
    #[arg(long)]
    pub nosuid: bool,
    /// Do not allow device files to be opened
    #[arg(long)]
    pub nodev: bool,
    /// Do not allow programs to be executed
    #[arg(long)]
    pub noexec: bool,
}

/// The options of a process that serves volumes, and the configuration of a daemon.
#[derive(Args, Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServerSpec {
    /// Size of the cache, such as 2GiB; allocated at once, and never exceeded
    ///
    /// The default is 1/8 of the memory, but at most half of the available memory and of this cgroup's limit, and at
    /// most 3/4 of the free space in /dev/shm.
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
    /// Percentage of the cache that may hold unwritten data [default: 20]
    ///
    /// Write-back starts at half of it. Writers are slowed down from three quarters of it on, and block when it is used
    /// up.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    #[serde(deserialize_with = "percent")]
    pub dirty_ratio: Option<u32>,
    /// How tenants are distinguished: by cgroup, by uid, or one per volume [default: volume]
    ///
    /// Each tenant has its own limits and waits only for its own data. With `volume` all users of a mount are one
    /// tenant.
    #[arg(long, value_name = "WHAT")]
    pub tenant_by: Option<By>,
    /// Limit the unwritten data of a tenant, such as /containers/a=64MiB
    ///
    /// A cgroup is written as in /proc/PID/cgroup or as its directory, a user as uid:1000=64MiB. Can be given several
    /// times. The memory limit of a cgroup applies too, and the smaller limit counts.
    #[arg(long, value_name = "TENANT=SIZE")]
    pub tenant_limit: Vec<TenantLimit>,
    /// Turn --dontcache on or off for a tenant, such as /containers/backup=on
    ///
    /// Applies to a cgroup and to those below it. The attribute of a file overrides it. Can be given several times.
    #[arg(long, value_name = "TENANT=on|off")]
    pub tenant_dontcache: Vec<TenantDontcache>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, such as 9810 or 127.0.0.1:9810
    ///
    /// A port alone listens on 127.0.0.1, which only this machine can reach. Anyone who can reach the address sees the
    /// names of tenants and the mount point.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<Address>,
    /// File on tmpfs that holds the cache [default: one per source or daemon in /dev/shm/slackwater-UID]
    ///
    /// The local log of an object volume is a folder beside it.
    #[arg(long, value_name = "FILE")]
    pub arena: Option<PathBuf>,
    /// Age of dirty data of the volumes that have none of their own.
    #[arg(skip)]
    pub dirty_expire: Option<Age>,
    /// The group of the socket, whose members may query the daemon.
    #[arg(skip)]
    pub socket_group: Option<String>,
    /// The address that serves the page for operators.
    #[arg(skip)]
    pub web: Option<Address>,
    /// The file with the token that clients of the page must have.
    #[arg(skip)]
    pub web_token_file: Option<PathBuf>,
    /// The tenants with settings, by the path of a cgroup, or `uid:1000`.
    #[arg(skip)]
    pub tenants: BTreeMap<PathBuf, TenantTable>,
    /// The volumes that are mounted when the daemon starts.
    #[arg(skip)]
    #[serde(skip_serializing)]
    pub volumes: BTreeMap<VolumeName, VolumeTable>,
}

/// The options of one mount.
#[derive(Args, Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct MountSpec {
    #[command(flatten)]
    pub server: ServerSpec,
    #[command(flatten)]
    pub volume: VolumeSpec,
}

/// The settings of one tenant.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TenantTable {
    /// The limit of the tenant's unwritten data.
    pub limit: Option<Size>,
    pub dontcache: Option<bool>,
}

/// A volume in the configuration of a daemon.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VolumeTable {
    pub source: PathBuf,
    pub mountpoint: PathBuf,
    /// A file with the credentials of an object volume.
    pub credentials: Option<PathBuf>,
    pub options: VolumeSpec,
}

/// How requests reach the process of a mount.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// io_uring if this machine has it and the process serves a single volume, else /dev/fuse.
    #[default]
    Auto,
    /// io_uring, or nothing is mounted.
    Uring,
    /// /dev/fuse.
    Dev,
}

impl Transport {
    /// The same for a process with many volumes: each ring takes a thread per CPU.
    pub fn among_many(self) -> Self {
        if self == Self::Auto { Self::Dev } else { self }
    }
}

/// Checks a label: a line that fits into a list.
fn label(text: &str) -> Result<String, String> {
    let fits = (1..=LABEL_CHARS).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned()).ok_or_else(|| format!("must have 1 to {LABEL_CHARS} characters, on one line"))
}

fn labelled<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| label(&text).map_err(de::Error::custom)).transpose()
}

impl VolumeSpec {
    /// The age of dirty data, if the process has no other default.
    pub fn dirty_expire(&self) -> Duration {
        self.dirty_expire.map_or(DIRTY_EXPIRE, |age| age.0)
    }

    /// How old a reader may be.
    pub fn follow(&self) -> Duration {
        self.follow.map_or(FOLLOW, |follow| follow.0)
    }

    /// Changes an option of a mounted volume.
    ///
    /// # Errors
    /// The option does not exist or cannot change, or the value is invalid.
    pub fn change(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        if CHANGEABLE.contains(&key) { self.put(key, value) } else { Err(unknown(key)) }
    }

    /// Sets an option to a value of [`fields::text`], or to its default.
    ///
    /// # Errors
    /// The option does not exist, or the value is invalid.
    pub fn put(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        let set = match value {
            NONE if !fields::is_switch(self, key) => fields::reset(self, key),
            value => fields::set(self, key, Some(value)),
        };
        set.map_err(|refused| match refused {
            Refused::Unknown => unknown(key),
            Refused::Invalid(why) => Failure::usage(format!("{key}={}: {why}", value.printable())),
        })
    }
}

/// The failure for an unknown setting of a volume.
fn unknown(key: &str) -> Failure {
    let known = CHANGEABLE.map(|name| match fields::value_name::<VolumeSpec>(name) {
        Some(value) => format!("{name}={value}|{NONE}"),
        None => format!("{name}=on|off"),
    });
    settings::unknown(key, &known.join(", "))
}

impl ServerSpec {
    pub fn dirty_ratio(&self) -> u32 {
        self.dirty_ratio.unwrap_or(DIRTY_RATIO)
    }

    /// The age of dirty data of a volume that has none of its own.
    pub fn dirty_expire(&self) -> Duration {
        self.dirty_expire.map_or(DIRTY_EXPIRE, |age| age.0)
    }

    pub fn tenant_by(&self) -> TenantBy {
        self.tenant_by.map_or(TenantBy::Volume, |by| by.0)
    }

    /// The tenants with settings. The last one of a list for a tenant counts.
    pub fn tenants(&self) -> BTreeMap<PathBuf, TenantConfig> {
        let table = |table: &TenantTable| TenantConfig {
            limit_bytes: table.limit.map(|limit| limit.0),
            dontcache: table.dontcache,
        };
        let mut tenants: BTreeMap<_, _> = self.tenants.iter().map(|(name, it)| (name.clone(), table(it))).collect();
        for TenantLimit((tenant, bytes)) in self.tenant_limit.iter().cloned() {
            tenants.entry(tenant).or_default().limit_bytes = Some(bytes);
        }
        for TenantDontcache((tenant, is_on)) in self.tenant_dontcache.iter().cloned() {
            tenants.entry(tenant).or_default().dontcache = Some(is_on);
        }
        tenants.retain(|_, config| *config != TenantConfig::default());
        tenants
    }

    /// Overrides options by those that `other` states.
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub fn override_by(mut self, other: &Self) -> Result<Self, Failure> {
        let volumes = std::mem::take(&mut self.volumes);
        let overridden = fields::overridden(self, other);
        let overridden = overridden.map_err(|error| Failure::usage(format!("cannot use the options: {error}")))?;
        Ok(Self { volumes, ..overridden })
    }
}

impl MountSpec {
    /// The options of a volume of a daemon, with their defaults.
    pub fn of_volume(volume: VolumeSpec) -> Self {
        let follow = Some(Follow(volume.follow()));
        Self { volume: VolumeSpec { follow, ..volume }, server: ServerSpec::default() }
    }

    /// The options of a mount process with this cache, with their defaults.
    pub fn of_process(self, cache_bytes: u64, arena: &Path) -> Self {
        let Self { server, volume } = self;
        let dirty_expire = Some(Age(volume.dirty_expire()));
        let server = ServerSpec {
            cache: Some(Size(cache_bytes)),
            dirty_ratio: Some(server.dirty_ratio()),
            tenant_by: Some(By(server.tenant_by())),
            arena: Some(arena.to_path_buf()),
            ..server
        };
        Self { server, ..Self::of_volume(VolumeSpec { dirty_expire, ..volume }) }
    }

    /// Sets an option of the volume or of its process, as [`fields::set`].
    ///
    /// # Errors
    /// The option does not exist for a mount, or the value is invalid.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), Refused> {
        match fields::set(&mut self.volume, name, value) {
            Err(Refused::Unknown) if fields::is_on_command_line::<Self>(name) => {
                fields::set(&mut self.server, name, value)
            }
            outcome => outcome,
        }
    }

    /// The options that were stated, by name; those of tenants each for itself.
    fn stated(&self) -> impl Iterator<Item = (String, String)> {
        let volume = fields::stated(&self.volume).filter(|(name, _)| !NOT_COMPARED.contains(&name.as_str()));
        fields::stated(&self.server).chain(volume)
    }

    /// A line for each option that this mount states and that `other`, which is mounted, has not or has otherwise.
    pub fn contradictions(&self, other: &Self) -> Vec<String> {
        let own: Vec<_> = other.stated().collect();
        let differs = |(name, value): (String, String)| {
            let its = own.iter().find(|(own, _)| *own == name).map(|(_, value)| value.as_str());
            (its != Some(&value)).then(|| {
                let absent = if fields::is_switch(&self.volume, &name) { values::OFF } else { NONE };
                let its = its.map_or_else(|| absent.to_owned(), |value| for_people(&name, value));
                format!("--{name} is {} here, and {its} there", for_people(&name, &value))
            })
        };
        self.stated().filter_map(differs).collect()
    }
}

/// A value in a message.
fn for_people(name: &str, value: &str) -> String {
    with_unit(name, value).printable().to_string()
}

/// A value, and a number of bytes also in a unit.
fn with_unit(name: &str, value: &str) -> String {
    let option = name.split(' ').next().unwrap_or(name);
    let kind = fields::value_name::<MountSpec>(option).unwrap_or_default();
    match value.parse() {
        Ok(bytes) if kind.ends_with("SIZE") => format!("{} ({bytes} bytes)", size::text(bytes)),
        _ => value.to_owned(),
    }
}

/// Deserialized by hand, because `flatten` of serde loses the line of an error.
impl<'de> Deserialize<'de> for VolumeTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;

        impl<'de> de::Visitor<'de> for Table {
            type Value = VolumeTable;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the table of a volume")
            }

            fn visit_map<M: de::MapAccess<'de>>(self, mut map: M) -> Result<VolumeTable, M::Error> {
                let (mut source, mut mountpoint, mut credentials) = (None, None, None);
                let mut options = VolumeSpec::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "source" => source = Some(map.next_value()?),
                        "mountpoint" => mountpoint = Some(map.next_value()?),
                        "credentials" => credentials = Some(map.next_value()?),
                        NOT_CONFIGURED => return Err(de::Error::custom(format!("unknown field `{key}`"))),
                        name => map.next_value_seed(fields::Field(&mut options, name))?,
                    }
                }
                let missing = |name| move || de::Error::missing_field(name);
                let (source, mountpoint) =
                    (source.ok_or_else(missing("source"))?, mountpoint.ok_or_else(missing("mountpoint"))?);
                Ok(VolumeTable { source, mountpoint, credentials, options })
            }
        }

        deserializer.deserialize_map(Table)
    }
}
