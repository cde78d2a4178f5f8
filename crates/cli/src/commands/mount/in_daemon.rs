//! `slackwater mount --daemon`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slackwater_control::client::{ANSWER_WITHIN, Conversation};
use slackwater_control::daemon::{ask_each, has_successor, no_daemon};
use slackwater_control::exit::Failure;
use slackwater_control::name;
use slackwater_control::outln;
use slackwater_control::protocol::{MountRequest, Reply, Request, VolumeRef};
use slackwater_control::spec::fields;
use slackwater_host::Printable as _;

use crate::arguments::MountArguments;
use crate::commands::mount::options;

/// The source may have to be examined, and data of an earlier mount written back.
const MOUNTS_WITHIN: Duration = Duration::from_secs(600);

/// Asks the daemon to mount.
///
/// # Errors
/// The daemon refuses, or cannot be reached.
pub(crate) fn run(arguments: &MountArguments) -> Result<(), Failure> {
    let arguments = options::with_option_lists(arguments)?;
    check_options(&arguments)?;
    let absolute = |path: &Path, of: fn(&Path) -> io::Result<PathBuf>| {
        of(path).map_err(|error| Failure::usage(format!("{}: {error}", path.printable())))
    };
    let request = Request::Mount(MountRequest {
        name: arguments.name.clone(),
        source: absolute(&arguments.source, name::absolute)?,
        mountpoint: absolute(&arguments.mountpoint, |path| std::path::absolute(path))?,
        options: arguments.spec.volume.clone(),
        credentials: arguments
            .credentials
            .as_deref()
            .map(|path| absolute(path, |path| std::path::absolute(path)))
            .transpose()?,
        is_repeated: false,
    });
    let (socket, repeated) = (arguments.at.path()?, request.clone().repeated());
    let ask = |is_repeated| {
        let request = if is_repeated { &repeated } else { &request };
        let daemon = Conversation::open(&socket, &VolumeRef::default(), request, ANSWER_WITHIN);
        daemon.and_then(|mut daemon| daemon.next(Some(MOUNTS_WITHIN)))
    };
    let answer = ask_each(|error| has_successor(&socket, error), ask);
    let reply = answer.map_err(|error| no_daemon(&socket, &error))?;
    let Reply::Mounted { name, missing_features } = reply else { return Err(reply.refusal()) };
    outln!("Mounted {} at {} as {name}.", arguments.source.printable(), arguments.mountpoint.printable());
    missing_features.iter().for_each(|missing| outln!("Note: {missing}"));
    outln!("Unmount with: slackwater umount {name}");
    Ok(())
}

/// Refuses options that apply to a whole daemon. If they are given as separate options, the command line parser already
/// refuses them.
fn check_options(arguments: &MountArguments) -> Result<(), Failure> {
    let stated = fields::stated(&arguments.spec.server).next().map(|(name, _)| name);
    let others = [("wait", arguments.wait), ("keep", arguments.keep)];
    let others = others.into_iter().find(|(_, is_stated)| *is_stated).map(|(name, _)| name.to_owned());
    match stated.or(others) {
        Some(name) => Err(Failure::usage(format!("option {name} applies to the whole daemon"))
            .advise("set it in the daemon's configuration, or mount without --daemon")),
        None => Ok(()),
    }
}
