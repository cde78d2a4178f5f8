//! `slackwater tenants`.

use crate::arguments::QueryArguments;
use crate::commands::target::ask_daemon;
use crate::control::protocol::{Reply, Request, Tenant};
use crate::exit::Failure;
use crate::output::terminal::{outln, print_json};

/// Prints the tenants.
pub(crate) fn run(arguments: &QueryArguments) -> Result<(), Failure> {
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
