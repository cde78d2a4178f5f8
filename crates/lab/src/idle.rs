//! `idle`: x.
use crate::options::Options;
use anyhow::Result;
use clap::Args;
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
}
pub(crate) fn run(a: &Arguments) -> Result<bool> {
    let _ = &a.options;
    Ok(true)
}
