//! A source that a live process serves: that process mounts the same volume at a further mount point.

use slackwater_control::client::{ANSWER_WITHIN, Conversation};
use slackwater_control::daemon::ask_each;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::outln;
use slackwater_control::output::shell;
use slackwater_control::protocol::{Reply, Request};
use slackwater_control::spec::wire;
use slackwater_host::Printable as _;

use crate::arguments::MountArguments;
use crate::registry::{Entry, Found};

/// Has the process of `found` mount its volume at the mount point of `entry`, and announces it. Returns whether it has:
/// not if it is about to end, or cannot mount a volume twice.
///
/// # Errors
/// The volume does not have one of the options that were stated, or cannot be mounted there.
pub(super) fn attach(found: &Found, entry: &Entry, arguments: &MountArguments) -> Result<bool, Failure> {
    // Both ask for a mount of their own.
    if arguments.wait || arguments.spec.volume.take_over {
        return Ok(false);
    }
    let mut spec = arguments.spec.clone();
    // Its absolute path.
    spec.server.arena = spec.server.arena.map(|_| entry.arena.clone());
    let (mountpoint, options) = (entry.mountpoint.clone(), wire::texts(&spec));
    let ask = |is_repeated| {
        let request = Request::Attach { mountpoint: mountpoint.clone(), options: options.clone(), is_repeated };
        let mut conversation = Conversation::open(&found.socket(), &found.entry.volume_ref(), &request, ANSWER_WITHIN)?;
        loop {
            let reply = conversation.next(Some(ANSWER_WITHIN))?;
            if !matches!(reply, Reply::Progress { .. }) {
                return Ok(reply);
            }
        }
    };
    match ask_each(|error| found.is_answered_by_successor(error), ask) {
        Ok(Reply::Done) => {
            announce(found, entry);
            Ok(true)
        }
        Ok(Reply::Failed(failure)) if failure.reason == Reason::NotMounted => Ok(false),
        // A process of an earlier version.
        Ok(Reply::Failed(failure)) if failure.what.starts_with("invalid request") => Ok(false),
        Ok(reply) => Err(reply.refusal()),
        Err(_) => Ok(false),
    }
}

/// Says where the volume is mounted now.
fn announce(found: &Found, entry: &Entry) {
    let (source, mountpoint) = (entry.source.name().printable(), entry.mountpoint.printable());
    outln!("Mounted {source} at {mountpoint}: one more mount point of the volume that pid {} serves.", found.entry.pid);
    outln!("Unmount with: slackwater umount {}", shell::word(&entry.mountpoint));
}
