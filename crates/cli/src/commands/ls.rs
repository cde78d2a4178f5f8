//! `slackwater ls`.

use slackwater_control::daemon::list;
use slackwater_control::exit::Failure;
use slackwater_control::outln;
use slackwater_control::output::terminal::print_json;
use slackwater_control::protocol::{Listed, ObjectRole, Phase};
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::arguments::QueryArguments;
use crate::commands::status::describe_kept;

/// Prints the volumes.
pub(crate) fn run(arguments: &QueryArguments) -> Result<(), Failure> {
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
    let point = width(|listed| listed.mountpoint.printable().to_string(), 11);
    if !list.volumes.is_empty() {
        outln!("{:name$}  {:>left$}  {:10}  {:point$}  SOURCE", "NAME", "UNWRITTEN", "STATE", "MOUNT POINT");
    }
    for listed in &list.volumes {
        let state = match listed.phase {
            Phase::Starting => "starting",
            Phase::Mounted if listed.object.as_ref().is_some_and(|object| object.role == ObjectRole::Fenced) => {
                "FENCED"
            }
            Phase::Mounted if listed.failing.is_some() => "FAILING",
            Phase::Mounted => "mounted",
            Phase::Unmounting => "unmounting",
            Phase::Elsewhere => "elsewhere",
            Phase::Flushing => "flushing",
        };
        let (bytes, at) = (size::text(listed.bytes_left), listed.mountpoint.printable());
        let label = listed.label.iter().map(|label| format!("  ({})", label.printable())).collect::<String>();
        outln!(
            "{:name$}  {bytes:>left$}  {state:10}  {at:point$}  {}{label}",
            listed.name.printable(),
            listed.source.printable()
        );
    }
    if let Some(kept) = &list.kept {
        outln!("{}", describe_kept(kept).trim_end());
    }
    for source in &list.left {
        outln!(
            "{}: a daemon that died left unwritten data in the cache; mount it again to write it back.",
            source.printable()
        );
    }
    Ok(())
}
