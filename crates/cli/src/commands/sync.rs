//! `slackwater sync`.

use slackwater_control::exit::Failure;
use slackwater_control::protocol::Request;

use crate::arguments::SyncArguments;
use crate::commands::long_requests::{converse, died, each, targets};

/// Makes everything written so far durable.
pub(crate) fn run(arguments: &SyncArguments) -> Result<(), Failure> {
    let targets = targets(&arguments.volumes, arguments.all, &arguments.at)?;
    each(&targets, |target, is_only| {
        if !target.is_alive() && !target.has_ended_in_order() {
            return Err(died(target));
        }
        converse(target, &Request::Sync, "syncing", is_only)
    })
}
