//! The commands that only a daemon answers: `mount --daemon`, `ls`, `tenants`, `set`, `events`.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;
use slackwater_fuse::Printable as _;
use slackwater_size as size;

use crate::arguments::{MountArguments, QueryArguments, SetArguments};
use crate::commands::daemon::config::Config;
use crate::commands::mount::options;
use crate::commands::target::{SILENCE, Target, ask_daemon, list, no_daemon};
use crate::control::client::{ANSWER_WITHIN, Conversation, ask};
use crate::control::protocol::{Event, Happening, Listed, MountRequest, Phase, Reply, Request, Tenant};
use crate::exit::Failure;
use crate::output::terminal::outln;

/// A source may have to be looked at, and what an earlier mount left be brought in.
const MOUNTS_WITHIN: Duration = Duration::from_secs(600);

/// Has the daemon mount.
///
/// # Errors
/// As the daemon says.
pub(crate) fn mount(arguments: &MountArguments) -> Result<(), Failure> {
    let arguments = options::taken_in(arguments)?;
    check_options(&arguments)?;
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|error| Failure::usage(format!("{}: {error}", path.printable())))
    };
    let request = Request::Mount(MountRequest {
        name: arguments.name.clone(),
        source: absolute(&arguments.source)?,
        mountpoint: absolute(&arguments.mountpoint)?,
        options: options::of_volume(&arguments),
    });
    let socket = arguments.at.path()?;
    let answer = Conversation::open(&socket, None, &request, ANSWER_WITHIN)
        .and_then(|mut daemon| daemon.next(Some(MOUNTS_WITHIN)));
    let reply = answer.map_err(|error| no_daemon(&socket, &error))?;
    let Reply::Mounted { name, missing_features } = reply else { return Err(reply.refusal()) };
    outln!("Mounted {} at {} as {name}.", arguments.source.printable(), arguments.mountpoint.printable());
    missing_features.iter().for_each(|missing| outln!("Note: {missing}"));
    outln!("Unmount with: slackwater umount {name}");
    Ok(())
}

/// Refuses options that the daemon alone has, which its volumes have in common. As words of their own the command line refuses
/// them.
fn check_options(arguments: &MountArguments) -> Result<(), Failure> {
    let unsaid = Config::default();
    let of_daemon = [
        ("cache", arguments.cache.is_some()),
        ("arena", arguments.arena.is_some()),
        ("metrics", arguments.metrics.is_some()),
        ("dirty-ratio", arguments.dirty_ratio != unsaid.dirty_ratio),
        ("dirty-expire", arguments.dirty_expire != unsaid.dirty_expire),
        ("tenant-by", arguments.tenant_by != unsaid.tenant_by),
        ("tenant-limit", !arguments.tenant_limit.is_empty()),
        ("tenant-dontcache", !arguments.tenant_dontcache.is_empty()),
        ("wait", arguments.wait),
    ];
    match of_daemon.into_iter().find(|(_, is_said)| *is_said) {
        Some((name, _)) => Err(Failure::usage(format!("option {name} is the daemon's, for all its volumes"))
            .advise("say it in the daemon's configuration, or mount without --daemon")),
        None => Ok(()),
    }
}

/// Prints the volumes.
pub(crate) fn ls(arguments: &QueryArguments) -> Result<(), Failure> {
    let list = list(&arguments.at.path()?)?;
    if arguments.json {
        return print_json(&list);
    }
    if list.volumes.is_empty() {
        outln!("No volumes (pid {}, cache {}).", list.pid, size::text(list.cache_bytes));
    }
    let width = |of: fn(&Listed) -> String, least: usize| {
        list.volumes.iter().map(|listed| of(listed).chars().count()).max().unwrap_or(0).max(least)
    };
    let (name, left) = (width(|listed| listed.name.printable().to_string(), 4), 12);
    let point = width(|listed| listed.mountpoint.printable().to_string(), 10);
    if !list.volumes.is_empty() {
        outln!("{:name$}  {:>left$}  {:10}  {:point$}  SOURCE", "NAME", "NOT IN YET", "STATE", "MOUNTED AT");
    }
    for listed in &list.volumes {
        let state = match listed.phase {
            Phase::Starting => "starting",
            Phase::Mounted if listed.failing.is_some() => "FAILING",
            Phase::Mounted => "mounted",
            Phase::Unmounting => "unmounting",
            Phase::Elsewhere => "elsewhere",
            Phase::Flushing => "flushing",
        };
        let (bytes, at) = (size::text(listed.bytes_left), listed.mountpoint.printable());
        outln!(
            "{:name$}  {bytes:>left$}  {state:10}  {at:point$}  {}",
            listed.name.printable(),
            listed.source.printable()
        );
    }
    for source in &list.left {
        outln!(
            "{}: what a daemon that died has left of it is in the cache; mount it again to bring it in.",
            source.printable()
        );
    }
    Ok(())
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Failure::failed(format!("the answer cannot be written: {error}")))?;
    outln!("{text}");
    Ok(())
}

/// Prints the tenants.
pub(crate) fn tenants(arguments: &QueryArguments) -> Result<(), Failure> {
    let answer = ask_daemon(&arguments.at.path()?, &Request::Tenants)?;
    let Reply::Tenants { tenants, more_tenants } = answer else { return Err(answer.refusal()) };
    if arguments.json {
        return print_json(&serde_json::json!({ "version": 1, "tenants": tenants, "more_tenants": more_tenants }));
    }
    tenants.iter().map(Tenant::line).for_each(|line| outln!("{line}"));
    if more_tenants > 0 {
        outln!("and {more_tenants} more");
    }
    Ok(())
}

/// Changes a volume or a tenant.
pub(crate) fn set(arguments: &SetArguments) -> Result<(), Failure> {
    let (name, words) = match (&arguments.tenant, &arguments.words[..]) {
        (Some(_), words) => (None, words),
        (None, [name, words @ ..]) if !name.contains('=') || name.starts_with('/') => (Some(name), words),
        (None, _) => return Err(Failure::usage("which volume? write for example: slackwater set web dontcache=on")),
    };
    if words.is_empty() {
        return Err(Failure::usage("set what? slackwater set --help says what there is"));
    }
    let pair = |word: &String| match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!("{word} sets nothing; write for example dontcache=on"))),
    };
    let pairs = words.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
    let (socket, volume) = match name {
        Some(name) => Target::find(Path::new(name), &arguments.at).map(|target| (target.socket, target.volume))?,
        None => (arguments.at.path()?, None),
    };
    for (key, value) in pairs {
        let request = match arguments.tenant.clone() {
            Some(tenant) => Request::SetTenant { tenant, key, value },
            None => Request::Set { key, value },
        };
        ask(&socket, volume.as_deref(), &request, ANSWER_WITHIN).map_err(|error| no_daemon(&socket, &error))?.done()?;
    }
    Ok(())
}

/// Prints what happens, until it is interrupted or the daemon ends.
pub(crate) fn events(arguments: &QueryArguments) -> Result<(), Failure> {
    let socket = arguments.at.path()?;
    let failed = |error: io::Error| no_daemon(&socket, &error);
    let mut daemon = Conversation::open(&socket, None, &Request::Events, ANSWER_WITHIN).map_err(failed)?;
    loop {
        let reply = daemon.next(Some(SILENCE)).map_err(failed)?;
        let Reply::Event(event) = reply else { return reply.done() };
        if event.what == Happening::Idle {
            continue;
        }
        let line = if arguments.json { serde_json::to_string(&event).unwrap_or_default() } else { line(&event) };
        if writeln!(io::stdout(), "{line}").is_err() {
            // Whoever read it has gone.
            return Ok(());
        }
    }
}

fn line(event: &Event) -> String {
    let time = format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_millis(event.time_ms));
    let what = match event.what {
        Happening::Mounted => "mounted",
        Happening::Unmounting => "unmounting",
        Happening::StillMounted => "still mounted",
        Happening::Unmounted => "unmounted",
        Happening::Warning => "warning",
        Happening::Missed => "missed",
        Happening::Idle => "idle",
    };
    let mut line = format!("{time} {what}");
    if let Some(name) = &event.name {
        line += &format!(" {name}");
    }
    if !event.text.is_empty() {
        line += &format!(": {}", event.text.replace('\n', " "));
    }
    line
}
