//! The command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use slackwater_fuse::Printable as _;

use crate::exit::{EXIT_STATUSES, Failure};
use crate::help_texts::{
    COMPLETIONS_NOTES, DAEMON_NOTES, DOCTOR_NOTES, EVENTS_NOTES, EXAMPLES, LS_NOTES, MAN_NOTES, MOUNT_NOTES, SET_NOTES,
    SET_USAGE, STATUS_NOTES, SYNC_NOTES, TENANTS_NOTES, TOP_NOTES, UMOUNT_NOTES,
};
use crate::registry::Registry;
use crate::volume::front_end::TenantBy;

/// Mount a directory through a write-back cache.
///
/// Writes complete at memory speed; Slackwater writes the data back to the directory in the background. Unmounting
/// loses nothing, and neither does killing the process.
#[derive(Parser, Debug)]
#[command(name = "slackwater", version, max_term_width = 100, after_help = format!("{EXAMPLES}\n{EXIT_STATUSES}"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Mount the directory SOURCE at MOUNTPOINT through the cache
    Mount(Box<MountArguments>),
    /// Write everything back to the source directory and unmount
    Umount(UmountArguments),
    /// Make everything written so far durable, shared mappings included
    Sync(SyncArguments),
    /// Serve many volumes in one process, with one cache
    Daemon(DaemonArguments),
    /// List the volumes of a daemon
    #[command(after_help = format!("{LS_NOTES}\n\n{EXIT_STATUSES}"))]
    Ls(QueryArguments),
    /// List the tenants of a daemon, each with its data on all volumes
    #[command(after_help = format!("{TENANTS_NOTES}\n\n{EXIT_STATUSES}"))]
    Tenants(QueryArguments),
    /// Change settings of a running volume or tenant of a daemon
    Set(SetArguments),
    /// Follow the events of a daemon
    #[command(after_help = format!("{EVENTS_NOTES}\n\n{EXIT_STATUSES}"))]
    Events(QueryArguments),
    /// Show what is mounted and how much data is not yet written back
    Status(StatusArguments),
    /// Watch volumes and tenants live: unwritten data, write-back rates, slowed writers
    Top(TopArguments),
    /// Check this machine for missing features and say what each one affects
    #[command(after_help = DOCTOR_NOTES)]
    Doctor,
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_NOTES)]
    Completions {
        /// The shell to print it for
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = MAN_NOTES)]
    Man,
}

/// Options of `mount` that apply to a whole process, and so conflict with `--daemon`.
const OF_THE_PROCESS: [&str; 11] = [
    "cache",
    "dirty_ratio",
    "tenant_by",
    "tenant_limit",
    "tenant_dontcache",
    "dirty_expire",
    "metrics",
    "foreground",
    "background",
    "arena",
    "wait",
];

/// The option that selects a daemon.
#[derive(Args, Clone, Debug)]
pub(crate) struct DaemonSocket {
    /// Socket of the daemon [default: daemon.sock in the runtime directory, which is /run/slackwater for root]
    #[arg(long, value_name = "PATH", env = "SLACKWATER_SOCKET", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
}

impl DaemonSocket {
    /// The socket's absolute path.
    ///
    /// # Errors
    /// The option's value is not a path.
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        let path = self.socket.clone().map_or_else(Registry::default_socket, Ok)?;
        std::path::absolute(&path).map_err(|error| Failure::usage(format!("--socket {}: {error}", path.printable())))
    }
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{DAEMON_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct DaemonArguments {
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
    /// Configuration file: cache, tenants, and the volumes to mount at start
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Size of the cache that all volumes share, such as 2GiB [default: as for mount]
    #[arg(long, value_name = "SIZE", value_parser = slackwater_arena::size::parse)]
    pub(crate) cache: Option<u64>,
    /// File on tmpfs that holds the cache [default: one per socket in /dev/shm/slackwater-UID]
    #[arg(long, value_name = "FILE")]
    pub(crate) arena: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, as for mount
    #[arg(long, value_name = "ADDRESS", value_parser = parse_metrics)]
    pub(crate) metrics: Option<SocketAddr>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct QueryArguments {
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{STATUS_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct StatusArguments {
    /// Show only this volume: its mount point or, with --socket, its name
    #[arg(value_name = "MOUNTPOINT|NAME")]
    pub(crate) volume: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{SET_NOTES}\n\n{EXIT_STATUSES}"), override_usage = SET_USAGE)]
pub(crate) struct SetArguments {
    /// The volume, unless --tenant is given, followed by the settings
    #[arg(required = true, value_name = "NAME|KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// Change this tenant, written as for --tenant-limit of mount
    #[arg(long)]
    pub(crate) tenant: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{SYNC_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct SyncArguments {
    /// Mount points of the volumes, or their names in a daemon
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT|NAME")]
    pub(crate) volumes: Vec<PathBuf>,
    /// Sync all volumes
    #[arg(long, conflicts_with = "volumes")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{MOUNT_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct MountArguments {
    /// The source directory, which holds the data
    ///
    /// Programs should change the files through the mount only. Changes that are made in SOURCE directly are noticed
    /// within a second. Where the mount has unwritten data of the same file, that data is written over the change, with
    /// a warning.
    pub(crate) source: PathBuf,
    /// Where to mount it: a directory outside SOURCE, whose contents are hidden while it is mounted
    pub(crate) mountpoint: PathBuf,
    /// Size of the cache, such as 2GiB; allocated at once, and never exceeded
    ///
    /// The default is 1/8 of the memory, but at most half of the available memory and of this cgroup's limit, and at
    /// most 3/4 of the free space in /dev/shm.
    #[arg(long, value_name = "SIZE", value_parser = slackwater_arena::size::parse)]
    pub(crate) cache: Option<u64>,
    /// Percentage of the cache that may hold unwritten data
    ///
    /// Write-back starts at half of it. Writers are slowed down from three quarters of it on, and block when it is used
    /// up.
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) dirty_ratio: u32,
    /// How tenants are distinguished: by cgroup, by uid, or one per volume
    ///
    /// Each tenant has its own limits and waits only for its own data. With `volume` all users of the mount are one
    /// tenant.
    #[arg(long, value_name = "WHAT", default_value_t = TenantBy::Volume, value_parser = clap::value_parser!(TenantBy))]
    pub(crate) tenant_by: TenantBy,
    /// Limit the unwritten data of a tenant, such as /containers/a=64MiB
    ///
    /// A cgroup is written as in /proc/PID/cgroup or as its directory, a user as uid:1000=64MiB. Can be given several
    /// times. The memory limit of a cgroup applies too, and the smaller limit counts.
    #[arg(long, value_name = "TENANT=SIZE", value_parser = parse_tenant_limit)]
    pub(crate) tenant_limit: Vec<(PathBuf, u64)>,
    /// Keep nothing in the cache: write data back at once, and evict it when it is durable
    ///
    /// To override this for one file, set its attribute user.slackwater.dontcache to 0 (cache it) or 1 (do not).
    #[arg(long)]
    pub(crate) dontcache: bool,
    /// Turn --dontcache on or off for a tenant, such as /containers/backup=on
    ///
    /// Applies to a cgroup and to those below it. The attribute of a file overrides it. Can be given several times.
    #[arg(long, value_name = "TENANT=on|off", value_parser = parse_tenant_dontcache)]
    pub(crate) tenant_dontcache: Vec<(PathBuf, bool)>,
    /// Age at which dirty data is written back
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) dirty_expire: Duration,
    /// Mount it read-only
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Let other users access the mount, subject to file permissions [default for root]
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Ignore set-user-ID and set-group-ID bits
    #[arg(long)]
    pub(crate) nosuid: bool,
    /// Do not allow device files to be opened
    #[arg(long)]
    pub(crate) nodev: bool,
    /// Do not allow programs to be executed
    #[arg(long)]
    pub(crate) noexec: bool,
    /// Stay in the foreground until it is unmounted [default]
    #[arg(long, conflicts_with = "background")]
    pub(crate) foreground: bool,
    /// Return once it is mounted
    #[arg(long)]
    pub(crate) background: bool,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, such as 9810 or 127.0.0.1:9810
    ///
    /// A port alone listens on 127.0.0.1, which only this machine can reach. Anyone who can reach the address sees the
    /// names of tenants and the mount point.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_metrics)]
    pub(crate) metrics: Option<SocketAddr>,
    /// File on tmpfs that holds the cache [default: one per SOURCE in /dev/shm/slackwater-UID]
    #[arg(long, value_name = "FILE")]
    pub(crate) arena: Option<PathBuf>,
    /// Wait until no other process has SOURCE mounted, instead of failing at once
    #[arg(long)]
    pub(crate) wait: bool,
    /// Mount it in the running daemon
    ///
    /// The volume uses the daemon's cache, tenants and --dirty-expire. The command returns once it is mounted.
    #[arg(long, conflicts_with_all = OF_THE_PROCESS)]
    pub(crate) daemon: bool,
    /// Name of the volume in the daemon [default: the last component of MOUNTPOINT]
    #[arg(long, value_name = "NAME", requires = "daemon")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
    /// Comma-separated options as in /etc/fstab, such as ro,cache=1GiB
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Set by `--background` in the process that it starts
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{UMOUNT_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct UmountArguments {
    /// Mount points of the volumes, or their names in a daemon
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT|NAME")]
    pub(crate) volumes: Vec<PathBuf>,
    /// Unmount all volumes
    #[arg(long, conflicts_with = "volumes")]
    pub(crate) all: bool,
    /// Give up after this time; without --force, the volume then stays mounted and usable
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) deadline: Duration,
    /// Unmount even if the volume is in use
    ///
    /// Later requests of the programs that use it fail with EIO. Their written data is kept.
    #[arg(long)]
    pub(crate) force: bool,
    /// Discard unwritten data after listing it and asking
    ///
    /// No other unmount loses data.
    #[arg(long)]
    pub(crate) discard: bool,
    /// Discard without asking
    #[arg(long, requires = "discard")]
    pub(crate) yes: bool,
    /// Detach the volume from its mount point at once, and return
    ///
    /// The volume ends once no program uses it and everything is written back.
    #[arg(long, conflicts_with_all = ["force", "discard", "deadline"])]
    pub(crate) lazy: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

/// Parses the address that serves metrics: `9810`, `:9810`, `127.0.0.1:9810` or `[::1]:9810`.
pub(crate) fn parse_metrics(text: &str) -> Result<SocketAddr, &'static str> {
    let port = text.strip_prefix(':').unwrap_or(text).parse().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    port.or_else(|_| text.parse()).map_err(|_| "not an address and a port; write for example 127.0.0.1:9810")
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{TOP_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct TopArguments {
    /// Time between two samples; rates are averages over this time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub(crate) interval: Duration,
    /// Take two samples, print one table, and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
    /// Do not use colours; also set by NO_COLOR and TERM=dumb
    #[arg(long)]
    pub(crate) no_color: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

/// Parses a limit such as `/containers/a=64MiB`.
pub(crate) fn parse_tenant_limit(text: &str) -> Result<(PathBuf, u64), String> {
    let (tenant, size) = text.rsplit_once('=').ok_or("not a limit; write for example /containers/a=64MiB")?;
    if tenant.is_empty() {
        return Err("no tenant before the limit; write for example /containers/a=64MiB".to_owned());
    }
    let bytes = slackwater_arena::size::parse(size).map_err(|error| error.to_string())?;
    Ok((tenant.into(), bytes))
}

/// Parses a tenant and its `dontcache` setting, such as `/containers/backup=on`.
pub(crate) fn parse_tenant_dontcache(text: &str) -> Result<(PathBuf, bool), String> {
    const EXAMPLE: &str = "write for example /containers/backup=on";
    let (tenant, word) = text.rsplit_once('=').ok_or_else(|| format!("expected a tenant and on or off; {EXAMPLE}"))?;
    if tenant.is_empty() {
        return Err(format!("no tenant before the `=`; {EXAMPLE}"));
    }
    match word {
        "on" => Ok((tenant.into(), true)),
        "off" => Ok((tenant.into(), false)),
        other => Err(format!("`{other}` is neither on nor off; {EXAMPLE}")),
    }
}

/// Parses a time such as `30s`, `500ms`, `1.5m` or `1h`. A number without a unit is refused: the kernel's settings of
/// that kind count hundredths of a second.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| "not a time; write for example 30s, 500ms, 5m or 1h")
}

/// Parses the time between two samples of `top`.
fn parse_interval(text: &str) -> Result<Duration, &'static str> {
    let interval = parse_duration(text)?;
    let is_in_bounds = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval);
    is_in_bounds.then_some(interval).ok_or("must be between 100ms and 1h; write for example 1s")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::{Arguments, parse_interval, parse_metrics, parse_tenant_dontcache, parse_tenant_limit};

    #[test]
    fn definition_is_consistent_and_documents_exit_statuses() {
        let mut command = Arguments::command();
        command.clone().debug_assert();
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples:") && help.contains("5  not mounted"), "{help}");
    }
    #[test]
    fn a_tenant_limit_is_a_name_and_a_size() {
        let limit = |tenant: &str, bytes| Ok((tenant.into(), bytes));
        assert_eq!(parse_tenant_limit("/containers/a=64MiB"), limit("/containers/a", 64 << 20));
        assert_eq!(parse_tenant_limit("uid:1000=0"), limit("uid:1000", 0));
        // systemd escapes unit names, but leaves this character.
        assert_eq!(parse_tenant_limit("/a=b=4096"), limit("/a=b", 4096));
        for (text, why) in [("64MiB", "not a limit"), ("=64MiB", "no tenant"), ("/a=", "256MiB"), ("/a=lots", "256MiB")]
        {
            let refusal = parse_tenant_limit(text).unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }

    #[test]
    fn metrics_are_served_on_loopback_unless_an_address_is_given() {
        for text in ["9810", ":9810", "127.0.0.1:9810"] {
            assert_eq!(parse_metrics(text).unwrap().to_string(), "127.0.0.1:9810", "{text}");
        }
        assert_eq!(parse_metrics("[::1]:0").unwrap().to_string(), "[::1]:0");
        assert_eq!(parse_metrics("0.0.0.0:80").unwrap().to_string(), "0.0.0.0:80");
        for text in ["", ":", "localhost:9810", "127.0.0.1", "65536", "-1", "http://127.0.0.1:9810", "::1:9810x"] {
            assert!(parse_metrics(text).unwrap_err().contains("127.0.0.1:9810"), "{text}");
        }
    }

    #[test]
    fn an_interval_is_between_100ms_and_1h() {
        assert_eq!(parse_interval("250ms"), Ok(Duration::from_millis(250)));
        for text in ["0s", "99ms", "61m", "100years"] {
            assert!(parse_interval(text).unwrap_err().contains("between 100ms and 1h"), "{text}");
        }
        assert!(parse_interval("5").unwrap_err().contains("30s"));
    }

    #[test]
    fn a_tenant_dontcache_setting_is_a_name_and_on_or_off() {
        assert_eq!(parse_tenant_dontcache("/containers/backup=on"), Ok(("/containers/backup".into(), true)));
        assert_eq!(parse_tenant_dontcache("/a=b=off"), Ok(("/a=b".into(), false)));
        for (text, why) in [("on", "expected a tenant"), ("=on", "no tenant"), ("/a=", "neither"), ("/a=yes", "`yes`")]
        {
            let refusal = parse_tenant_dontcache(text).unwrap_err();
            assert!(refusal.contains(why) && refusal.contains("/containers/backup=on"), "{text}: {refusal}");
        }
    }
}
