//! The command lines of the plugins, which every build has.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use slackwater_control::exit::EXIT_STATUSES;
use slackwater_control::spec::values::parse_duration;

use crate::help_texts::{CSI_NOTES, DOCKER_PLUGIN_NOTES};

/// The services that a plugin offers.
#[derive(Copy, Clone, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum CsiMode {
    /// Makes and removes volumes.
    Controller,
    /// Mounts volumes on this machine.
    Node,
    /// Both.
    All,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{CSI_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct CsiArguments {
    /// Unix socket to listen at, as a path or as unix:///PATH
    #[arg(long, value_name = "ENDPOINT", env = "CSI_ENDPOINT", hide_env_values = true)]
    pub(crate) endpoint: String,
    /// Name of this machine in the cluster [default: its host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_id: Option<String>,
    /// Services to offer
    #[arg(long, value_name = "MODE", default_value = "all", value_enum)]
    pub(crate) mode: CsiMode,
    /// Socket of the daemon [default: daemon.sock in the runtime directory, which is /run/slackwater for root]
    #[arg(long, value_name = "PATH", env = "SLACKWATER_SOCKET", hide_env_values = true)]
    pub(crate) daemon: Option<PathBuf>,
    /// Directory for the records of volumes; only the controller needs it
    #[arg(long, value_name = "DIR", default_value = "/var/lib/slackwater/volumes")]
    pub(crate) state: PathBuf,
    /// Name a place for volumes: a directory, or a URL as for mkfs
    ///
    /// A storage class selects it by its parameter `pool`, which may also be such a place itself. A class without that
    /// parameter uses the only pool. Can be given several times.
    #[arg(long, value_name = "NAME=PLACE", value_parser = parse_pool)]
    pub(crate) pool: Vec<(String, String)>,
    /// Time for an unmount; after it, the volume stays mounted, and the platform repeats the call
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) unmount_deadline: Duration,
    /// Where directories of this machine can be reached, such as kubernetes.io/hostname=worker-1
    ///
    /// With it, a volume in a directory is used only where the same is given. Leave it out if all machines have the
    /// directories, for example over NFS. Object volumes are used everywhere. Can be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_topology)]
    pub(crate) topology: Vec<(String, String)>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{DOCKER_PLUGIN_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct DockerPluginArguments {
    /// Unix socket to listen at; the name of the plugin is that of the file
    #[arg(long, value_name = "PATH", default_value = "/run/docker/plugins/slackwater.sock")]
    pub(crate) socket: PathBuf,
    /// Socket of the daemon [default: daemon.sock in the runtime directory, which is /run/slackwater for root]
    #[arg(long, value_name = "PATH", env = "SLACKWATER_SOCKET", hide_env_values = true)]
    pub(crate) daemon: Option<PathBuf>,
    /// Directory for the records of volumes and of their users
    #[arg(long, value_name = "DIR", default_value = "/var/lib/slackwater/docker")]
    pub(crate) state: PathBuf,
    /// Directory for the mount points of volumes
    #[arg(long, value_name = "DIR", default_value = "/run/slackwater/docker")]
    pub(crate) mounts: PathBuf,
    /// Where volumes are made that are created without `-o pool=`: a directory, or a URL as for mkfs
    #[arg(long, value_name = "PLACE")]
    pub(crate) pool: Option<String>,
    /// Time for an unmount; after it, the volume stays mounted, and the next call for it unmounts
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) unmount_deadline: Duration,
}

/// Parses a pool such as `fast=/srv/fast`.
fn parse_pool(text: &str) -> Result<(String, String), String> {
    const EXAMPLE: &str = "write for example fast=/srv/fast or cold=s3://bucket/volumes";
    let (name, place) = text.split_once('=').ok_or_else(|| format!("not a name and a place; {EXAMPLE}"))?;
    if name.is_empty() || name.contains('/') {
        return Err(format!("`{name}` is not the name of a pool; {EXAMPLE}"));
    }
    Ok((name.to_owned(), place.to_owned()))
}

/// Parses a segment of a topology.
fn parse_topology(text: &str) -> Result<(String, String), String> {
    const EXAMPLE: &str = "write for example kubernetes.io/hostname=worker-1";
    let pair = text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("not a key and a value; {EXAMPLE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_a_name_and_a_place() {
        let pool = |name: &str, place: &str| Ok((name.to_owned(), place.to_owned()));
        assert_eq!(parse_pool("fast=/srv/fast"), pool("fast", "/srv/fast"));
        assert_eq!(parse_pool("cold=s3://bucket/a=b"), pool("cold", "s3://bucket/a=b"));
        for text in ["/srv/fast", "=/srv/fast", "/srv=x"] {
            assert!(parse_pool(text).unwrap_err().contains("fast=/srv/fast"), "{text}");
        }
    }

    #[test]
    fn a_segment_of_a_topology_is_a_key_and_a_value() {
        assert_eq!(parse_topology("a/b=c"), Ok(("a/b".into(), "c".into())));
        for text in ["a", "=c", "a="] {
            assert!(parse_topology(text).unwrap_err().contains("kubernetes.io/hostname"), "{text}");
        }
    }
}
