//! `slackwater tenants`.

use slackwater_control::daemon::ask_daemon;
use slackwater_control::exit::Failure;
use slackwater_control::outln;
use slackwater_control::output::terminal::print_json;
use slackwater_control::protocol::{Reply, Request};

use crate::arguments::QueryArguments;
use crate::volume::tenants::line;

/// Prints the tenants.
pub(crate) fn run(arguments: &QueryArguments) -> Result<(), Failure> {
    let answer = ask_daemon(&arguments.at.path()?, &Request::Tenants)?;
    let Reply::Tenants { tenants, more_tenants } = answer else { return Err(answer.refusal()) };
    if arguments.json {
        return print_json(&serde_json::json!({ "version": 1, "tenants": tenants, "more_tenants": more_tenants }));
    }
    tenants.iter().map(|tenant| line(tenant, &tenants)).for_each(|line| outln!("{line}"));
    if more_tenants > 0 {
        outln!("and {more_tenants} more");
    }
    Ok(())
}
