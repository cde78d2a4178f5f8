//! `object`: volumes in an object store whose requests take 1 ms and 30 ms, beside the store itself, a volume of a
//! directory, and file systems of others on the same store.
//!
//! Two S3 servers in this process keep objects as files on this machine, one for each delay, and count the requests of
//! all clients. Every subject has its turn in each round.

mod bare;
mod rest;
mod results;
mod server;
mod small;
mod streams;
mod subject;
mod syncs;
mod testbed;
mod trees;

use anyhow::Result;

use self::testbed::Testbed;
use crate::harness::{Options, Report};

const ABOUT: &str = "Volumes in an object store whose requests take 1 ms and 30 ms, beside the store, a volume of a directory, \
                     and file systems of others on the same store.";

/// Rounds of parts that mount again or take long.
fn long_rounds(options: &Options) -> u32 {
    options.pick(6, 3)
}

/// Runs the experiment.
///
/// # Errors
/// A server cannot start, or a subject fails.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut report = Report::new("object", ABOUT, options);
    let mut testbed = Testbed::start(options)?;
    streams::measure(&mut testbed, options)?;
    small::measure(&mut testbed, options)?;
    syncs::measure(&mut testbed, options)?;
    trees::list(&mut testbed, options)?;
    if let Some(archive) = report.optional("a source tree", trees::archive(&testbed.home))? {
        trees::unpack(&mut testbed, options, &archive)?;
    }
    testbed.end_peers();
    let idle = rest::idle(&testbed, options)?;
    let peaks = rest::memory(&mut testbed, options)?;
    testbed.end()?;
    testbed.failures.drain(..).for_each(|failure| report.note(failure));
    results::write(&mut report, &testbed.series, options, &idle, &peaks);
    Ok(report)
}
