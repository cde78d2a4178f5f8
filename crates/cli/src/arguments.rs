//! The command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use slackwater_fuse::Printable as _;

use crate::exit::{EXIT_STATUSES, Failure};
use crate::registry::Registry;
use crate::volume::front_end::TenantBy;

const EXAMPLES: &str = "\
Examples:
  slackwater mount ~/data /mnt/data                     stays in the foreground; Ctrl-C unmounts
  slackwater mount ~/data /mnt/data --background        returns when it is mounted
  slackwater mount /srv/db /mnt/db --cache 2GiB --dirty-expire 5s
  slackwater mount /srv/db /mnt/db --tenant-by cgroup --tenant-dontcache /system.slice/backup.service=on
  slackwater mount ~/data /mnt/data --metrics 9810      figures for Prometheus at http://127.0.0.1:9810/metrics
  slackwater umount /mnt/data                           returns when everything is in ~/data
  slackwater umount /mnt/data --force --deadline 2m     also while programs have files open
  slackwater status --json
  slackwater daemon --config /etc/slackwater.toml       many volumes in one process
  slackwater mount --daemon /srv/web /mnt/web           one more for it
  slackwater ls
  slackwater top                                        a live view of volumes and tenants
  slackwater top --once --json --interval 5s            their rates, for a script
  slackwater doctor                                     what this machine can and cannot do

In /etc/fstab, with this program linked as /sbin/mount.slackwater:
  /srv/db  /mnt/db  slackwater  cache=2GiB,dirty-expire=5s,nofail  0 0
";

/// A directory mounted through a write-back cache: writes at the speed of memory, brought to the directory in the
/// background, nothing lost at unmount or when the process is killed.
#[derive(Parser, Debug)]
#[command(name = "slackwater", version, max_term_width = 100, after_help = format!("{EXAMPLES}\n{EXIT_STATUSES}"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Mount the directory SOURCE at MOUNTPOINT, through the cache
    Mount(Box<MountArguments>),
    /// Bring everything to the source, and unmount
    Umount(UmountArguments),
    /// Make everything durable in the source that was written so far, shared mappings included
    Sync(SyncArguments),
    /// Serve many volumes in one process, with one cache
    Daemon(DaemonArguments),
    /// The volumes of a daemon
    Ls(QueryArguments),
    /// The tenants of a daemon, over all its volumes
    Tenants(QueryArguments),
    /// Have a volume of a daemon, or a tenant, be otherwise from now on
    Set(SetArguments),
    /// What happens in a daemon, as it happens
    Events(QueryArguments),
    /// What is mounted, and how much of it is not in the source yet
    Status(StatusArguments),
    /// Watch volumes and tenants: how much is not in the source yet, how fast it gets there, who waits
    Top(TopArguments),
    /// Say what this machine lacks, and what is lost with it
    Doctor,
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

/// What a volume of a daemon has in common with its others.
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

/// Which daemon.
#[derive(Args, Clone, Debug)]
pub(crate) struct DaemonSocket {
    /// Where the daemon listens [default: daemon.sock in the runtime directory, /run/slackwater for root]
    #[arg(long, value_name = "PATH", env = "SLACKWATER_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
}

impl DaemonSocket {
    /// Where it listens, absolute.
    ///
    /// # Errors
    /// What was given is no path.
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        let path = self.socket.clone().map_or_else(Registry::default_socket, Ok)?;
        std::path::absolute(&path).map_err(|error| Failure::usage(format!("--socket {}: {error}", path.printable())))
    }
}

const DAEMON_NOTES: &str = "\
SIGTERM or Ctrl-C unmounts all volumes with everything in their sources; SIGTERM also those that are in use. After SIGTERM a volume whose
source takes nothing for 30 s is given up: the next daemon writes back what is left.

The configuration is TOML:

  cache = \"2GiB\"                 # of all volumes together
  dirty-expire = \"30s\"
  tenant-by = \"cgroup\"
  socket-group = \"adm\"           # who may use ls, status, tenants, events and top

  [tenants.\"/containers/a\"]
  limit = \"64MiB\"

  [volumes.web]
  source = \"/srv/web\"
  mountpoint = \"/mnt/web\"
  noexec = true

Examples:
  slackwater daemon --config /etc/slackwater.toml
  slackwater daemon --socket /run/slackwater/daemon.sock --cache 2GiB
  slackwater mount --daemon /srv/db /mnt/db --name db
  slackwater umount db
  slackwater set --tenant /containers/a limit=128MiB";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{DAEMON_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct DaemonArguments {
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
    /// What to mount at the start, and how
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Memory for page data of all volumes, such as 2GiB [default: as for mount]
    #[arg(long, value_name = "SIZE", value_parser = slackwater_size::parse)]
    pub(crate) cache: Option<u64>,
    /// File on tmpfs that holds the cache [default: one per socket, in /dev/shm/slackwater-UID]
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
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

const STATUS_NOTES: &str = "\
Of all volumes of this user, each in a process of its own or in a daemon. With --socket, or SLACKWATER_SOCKET set, of that
daemon's: it also answers those whom its socket-group lets look.

Examples:
  slackwater status /mnt/data
  slackwater status --json
  slackwater status web --socket /run/slackwater/daemon.sock";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{STATUS_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct StatusArguments {
    /// One volume only: where it is mounted, or with --socket its name
    #[arg(value_name = "MOUNTPOINT|NAME")]
    pub(crate) volume: Option<PathBuf>,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

const SET_NOTES: &str = "\
Of a volume: dontcache=on|off.
Of a tenant: limit=SIZE or limit=none; dontcache=on, off or none.

Examples:
  slackwater set web dontcache=on
  slackwater set --tenant /containers/a limit=64MiB dontcache=none";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{SET_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct SetArguments {
    /// The volume, unless --tenant is there; then what to set
    #[arg(required = true, value_name = "NAME|KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// A tenant, as for --tenant-limit of mount
    #[arg(long)]
    pub(crate) tenant: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

const SYNC_NOTES: &str = "\
sync(1), sync(2) and syncfs(2) return 0 on a mount and make nothing durable: Linux does not tell a FUSE server of them.
This command does. fsync(2) of a file works as everywhere, and so do O_SYNC and O_DSYNC.";

#[derive(Args, Clone, Debug)]
#[command(after_help = SYNC_NOTES)]
pub(crate) struct SyncArguments {
    /// Where the volumes are mounted, or their names in a daemon
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT|NAME")]
    pub(crate) volumes: Vec<PathBuf>,
    /// All that are mounted
    #[arg(long, conflicts_with = "volumes")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

const MOUNT_NOTES: &str = "\
In the foreground, Ctrl-C or SIGTERM unmounts with everything in the source. After SIGTERM the process ends, with status 7, also if
the source takes nothing for 30 s: the next mount writes back what is left. umount(8) and fusermount3 -u lose nothing either: the
process ends when the source has everything.

What was written survives the death of this process: the next mount of SOURCE brings it in. What was not synced does
not survive the death of the machine; it is at most --dirty-expire and a few seconds old.";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{MOUNT_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct MountArguments {
    /// The directory that has the data. Nobody else may change it meanwhile
    pub(crate) source: PathBuf,
    /// A directory elsewhere; what is in it is hidden meanwhile
    pub(crate) mountpoint: PathBuf,
    /// Memory for page data, such as 2GiB [default: 1/8 of the memory, at most half of what is
    /// available and of this cgroup's limit, and 3/4 of what is free in /dev/shm]
    #[arg(long, value_name = "SIZE", value_parser = slackwater_size::parse)]
    pub(crate) cache: Option<u64>,
    /// Percent of the cache that may hold data which is not in the source yet; then writers wait. Half of it starts
    /// write-back
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) dirty_ratio: u32,
    /// Who has limits of his own and waits for nobody else's data: each cgroup, each user, or all together
    #[arg(long, value_name = "WHAT", default_value_t = TenantBy::Volume, value_parser = clap::value_parser!(TenantBy))]
    pub(crate) tenant_by: TenantBy,
    /// What may be dirty for one tenant, such as /containers/a=64MiB; uid:1000=64MiB by user. A cgroup is written as
    /// /proc/PID/cgroup has it, or by its directory. May be given again [default: what its cgroup may use, by cgroup]
    #[arg(long, value_name = "TENANT=SIZE", value_parser = parse_tenant_limit)]
    pub(crate) tenant_limit: Vec<(PathBuf, u64)>,
    /// Keep what is read and written out of the cache: writes are brought to the source at once, and nothing of them stays.
    /// A file says otherwise by an attribute: setfattr -n user.slackwater.dontcache -v 0 FILE, or 1 without this option
    #[arg(long)]
    pub(crate) dontcache: bool,
    /// The same for one tenant, such as /containers/backup=on, or =off with --dontcache. A cgroup has those below it with it;
    /// what a file says goes first. May be given again
    #[arg(long, value_name = "TENANT=on|off", value_parser = parse_tenant_dontcache)]
    pub(crate) tenant_dontcache: Vec<(PathBuf, bool)>,
    /// Age at which data is brought to the source
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) dirty_expire: Duration,
    /// Refuse every change
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Let other users in, as the files' permissions say [default for root]
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Set-user-id bits have no effect
    #[arg(long)]
    pub(crate) nosuid: bool,
    /// Device nodes cannot be opened
    #[arg(long)]
    pub(crate) nodev: bool,
    /// No program can be run from it
    #[arg(long)]
    pub(crate) noexec: bool,
    /// Stay until it is unmounted [default]
    #[arg(long, conflicts_with = "background")]
    pub(crate) foreground: bool,
    /// Return when it is mounted
    #[arg(long)]
    pub(crate) background: bool,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, such as 127.0.0.1:9810. A port alone is one of this machine
    /// that no other reaches. Whoever reaches it sees the names of tenants and of the mount point
    #[arg(long, value_name = "ADDRESS", value_parser = parse_metrics)]
    pub(crate) metrics: Option<SocketAddr>,
    /// File on tmpfs that holds the cache [default: one per SOURCE, in /dev/shm/slackwater-UID]
    #[arg(long, value_name = "FILE")]
    pub(crate) arena: Option<PathBuf>,
    /// Wait while another process has SOURCE, instead of failing at once
    #[arg(long)]
    pub(crate) wait: bool,
    /// Have the daemon mount it, which then has its cache, tenants and ages, and returns when it is mounted
    #[arg(long, conflicts_with_all = OF_THE_PROCESS)]
    pub(crate) daemon: bool,
    /// What the daemon is to call it [default: the last name of MOUNTPOINT]
    #[arg(long, value_name = "NAME", requires = "daemon")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
    /// Options as in /etc/fstab, such as ro,cache=1GiB
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// This process was started by one with --background
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

const UMOUNT_NOTES: &str = "\
Without --force a volume in use is left alone, and the message names the processes. Ctrl-C here stops watching: the
unmount goes on until its deadline.

With --force the mount point is free at the deadline, also if the source hangs or another mount namespace holds the volume. Data
that is not in the source by then stays in the cache: the status is 7, and the next mount of the source writes it back.";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{UMOUNT_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct UmountArguments {
    /// Where the volumes are mounted, or their names in a daemon
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT|NAME")]
    pub(crate) volumes: Vec<PathBuf>,
    /// All that are mounted
    #[arg(long, conflicts_with = "volumes")]
    pub(crate) all: bool,
    /// Give up when this much time has passed; without --force the volume stays mounted and works on
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) deadline: Duration,
    /// Also while it is in use: later requests of those programs fail with EIO, what they wrote is kept
    #[arg(long)]
    pub(crate) force: bool,
    /// Throw away what is not in the source, after naming it: the one way to lose data
    #[arg(long)]
    pub(crate) discard: bool,
    /// Do not ask before throwing away
    #[arg(long, requires = "discard")]
    pub(crate) yes: bool,
    /// Take it away from its mount point at once, and return; it ends when nobody uses it any more and everything is in
    /// the source
    #[arg(long, conflicts_with_all = ["force", "discard", "deadline"])]
    pub(crate) lazy: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

/// Reads where metrics are served: `9810`, `:9810`, `127.0.0.1:9810` or `[::1]:9810`.
pub(crate) fn parse_metrics(text: &str) -> Result<SocketAddr, &'static str> {
    let port = text.strip_prefix(':').unwrap_or(text).parse().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    port.or_else(|_| text.parse()).map_err(|_| "not an address and a port; write for example 127.0.0.1:9810")
}

const TOP_NOTES: &str = "\
Keys: d w p a n sort, r reverses, v switches between volumes and tenants, f folds,
? explains the columns, q leaves.

--once --json prints an object; null in it is what nobody knows:
  version       1
  interval_ms   between the two looks
  volumes       pid, name (in a daemon), source, mountpoint, phase, failing (why
                write-back fails), cache_bytes, open_files, eta_ms (of an unmount under
                way), figures, tenants, more_tenants (those that did not fit)
  tenants       of a volume: id, name, state, wants_room (it is at its limit), figures
  figures       held_bytes, limit_bytes, dirty_bytes, writeback_bytes, unstable_bytes,
                written_bytes_per_s, paused_ms_per_s, oldest_ms, hit_percent (pages that
                reads found in the cache; the kernel's own cache answers before it)
  silent, dead  processes that do not answer, or died and left an arena: pid, source,
                mountpoint, arena";

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{TOP_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct TopArguments {
    /// Time between two looks; rates are those of this time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub(crate) interval: Duration,
    /// Print one table of two looks, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// For programs
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
    /// No colours; also with NO_COLOR set, or TERM=dumb
    #[arg(long)]
    pub(crate) no_color: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

/// Reads a limit such as `/containers/a=64MiB`.
pub(crate) fn parse_tenant_limit(text: &str) -> Result<(PathBuf, u64), String> {
    let (tenant, size) = text.rsplit_once('=').ok_or("not a limit; write for example /containers/a=64MiB")?;
    if tenant.is_empty() {
        return Err("whose limit? write for example /containers/a=64MiB".to_owned());
    }
    let bytes = slackwater_size::parse(size).map_err(|error| error.to_string())?;
    Ok((tenant.into(), bytes))
}

/// Reads who stays out of the cache, such as `/containers/backup=on`.
pub(crate) fn parse_tenant_dontcache(text: &str) -> Result<(PathBuf, bool), String> {
    const EXAMPLE: &str = "write for example /containers/backup=on";
    let (tenant, word) = text.rsplit_once('=').ok_or_else(|| format!("not a tenant and on or off; {EXAMPLE}"))?;
    if tenant.is_empty() {
        return Err(format!("whose? {EXAMPLE}"));
    }
    match word {
        "on" => Ok((tenant.into(), true)),
        "off" => Ok((tenant.into(), false)),
        other => Err(format!("`{other}` is neither on nor off; {EXAMPLE}")),
    }
}

/// Reads a time such as `30s`, `500ms`, `1.5m` or `1h`. A number alone is not taken: the kernel's knobs of that kind
/// count hundredths.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| "not a time; write for example 30s, 500ms, 5m or 1h")
}

/// Reads a time between two looks that is worth waiting for.
fn parse_interval(text: &str) -> Result<Duration, &'static str> {
    let interval = parse_duration(text)?;
    let is_in_bounds = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval);
    is_in_bounds.then_some(interval).ok_or("between 100ms and 1h; write for example 1s")
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
        // systemd escapes what it makes names of, and leaves this sign.
        assert_eq!(parse_tenant_limit("/a=b=4096"), limit("/a=b", 4096));
        for (text, why) in [("64MiB", "not a limit"), ("=64MiB", "whose"), ("/a=", "256MiB"), ("/a=lots", "256MiB")] {
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
    fn an_interval_is_neither_nothing_nor_for_ever() {
        assert_eq!(parse_interval("250ms"), Ok(Duration::from_millis(250)));
        for text in ["0s", "99ms", "61m", "100years"] {
            assert!(parse_interval(text).unwrap_err().contains("between 100ms and 1h"), "{text}");
        }
        assert!(parse_interval("5").unwrap_err().contains("30s"));
    }

    #[test]
    fn a_tenant_stays_out_of_the_cache_or_does_not() {
        assert_eq!(parse_tenant_dontcache("/containers/backup=on"), Ok(("/containers/backup".into(), true)));
        assert_eq!(parse_tenant_dontcache("/a=b=off"), Ok(("/a=b".into(), false)));
        for (text, why) in [("on", "not a tenant"), ("=on", "whose"), ("/a=", "neither"), ("/a=yes", "`yes`")] {
            let refusal = parse_tenant_dontcache(text).unwrap_err();
            assert!(refusal.contains(why) && refusal.contains("/containers/backup=on"), "{text}: {refusal}");
        }
    }
}
