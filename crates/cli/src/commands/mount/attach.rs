//! A source that a live process serves: that process mounts the same volume at a further mount point.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use humantime::format_duration;
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::arguments::MountArguments;
use crate::commands::mount::options;
use crate::commands::target::ask_each;
use crate::control::client::{ANSWER_WITHIN, Conversation};
use crate::control::protocol::{Reply, Request, Transport, VolumeOptions};
use crate::exit::{Failure, Reason};
use crate::object;
use crate::output::shell;
use crate::output::terminal::outln;
use crate::registry::{Entry, Found};
use crate::volume::settings::{OFF, ON, READ_ONLY};

/// Options by their names, each with its value.
type Options = BTreeMap<String, String>;

/// Has the process of `found` mount its volume at the mount point of `entry`, and announces it. Returns whether it has: not if it is about
/// to end, or cannot mount a volume twice.
///
/// # Errors
/// The volume does not have one of the options that were stated, or cannot be mounted there.
pub(super) fn attach(found: &Found, entry: &Entry, arguments: &MountArguments) -> Result<bool, Failure> {
    // Both ask for a mount of their own.
    if arguments.wait || arguments.take_over {
        return Ok(false);
    }
    let (mountpoint, options) = (entry.mountpoint.clone(), stated(arguments, &entry.arena));
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

/// The options on the command line that concern the volume or its cache.
pub(super) fn stated(arguments: &MountArguments, arena: &Path) -> Options {
    let mut stated = stated_of_volume(&options::of_volume(arguments));
    let mut add = |name: &str, value: Option<String>| stated.extend(value.map(|value| (name.to_owned(), value)));
    add("cache", arguments.cache.map(bytes));
    add("dirty-ratio", text(arguments.dirty_ratio));
    add("dirty-expire", text(arguments.dirty_expire.map(format_duration)));
    add("tenant-by", text(arguments.tenant_by));
    add("metrics", text(arguments.metrics));
    add("arena", arguments.arena.as_ref().map(|_| arena.to_string_lossy().into_owned()));
    for (tenant, limit) in &arguments.tenant_limit {
        add(&format!("tenant-limit {}", tenant.to_string_lossy()), Some(bytes(*limit)));
    }
    for (tenant, dontcache) in &arguments.tenant_dontcache {
        add(&format!("tenant-dontcache {}", tenant.to_string_lossy()), Some(on_or_off(*dontcache)));
    }
    stated
}

/// The options of a mount process, for those that want to mount its source as well.
pub(super) fn running(arguments: &MountArguments, entry: &Entry) -> Options {
    let defaults = [
        ("cache", bytes(entry.cache_bytes)),
        ("dirty-ratio", arguments.dirty_ratio().to_string()),
        ("dirty-expire", format_duration(arguments.dirty_expire()).to_string()),
        ("tenant-by", arguments.tenant_by().to_string()),
        ("arena", entry.arena.to_string_lossy().into_owned()),
        ("follow", format_duration(object::FOLLOW).to_string()),
    ];
    let mut running: Options = defaults.map(|(name, value)| (name.to_owned(), value)).into();
    running.extend(of_volume(&options::of_volume(arguments)));
    running.extend(stated(arguments, &entry.arena));
    running
}

/// The options of a volume that differ from the defaults.
pub(crate) fn stated_of_volume(options: &VolumeOptions) -> Options {
    let mut stated = of_volume(options);
    stated.retain(|_, value| value != OFF);
    stated
}

/// The options of a volume.
pub(crate) fn of_volume(options: &VolumeOptions) -> Options {
    let VolumeOptions { read_only, allow_other, nosuid, nodev, noexec, dontcache, transport, .. } = *options;
    // Always so for root, who alone can mount a volume twice.
    let _ = allow_other;
    let flags =
        [(READ_ONLY, read_only), ("nosuid", nosuid), ("nodev", nodev), ("noexec", noexec), ("dontcache", dontcache)];
    let mut all: Options = flags.map(|(name, is_on)| (name.to_owned(), on_or_off(is_on))).into();
    let mut add = |name: &str, value: Option<String>| all.extend(value.map(|value| (name.to_owned(), value)));
    add("transport", (transport != Transport::Auto).then(|| transport.to_string()));
    add("follow", text(options.follow.map(format_duration)));
    add("upload-limit", options.upload_limit_bytes_per_s.map(bytes));
    all
}

fn text(value: Option<impl Display>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn bytes(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", size::text(bytes))
}

pub(super) fn on_or_off(is_on: bool) -> String {
    if is_on { ON } else { OFF }.to_owned()
}
