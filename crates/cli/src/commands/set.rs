//! `slackwater set`.

use std::path::Path;

use slackwater_control::client::{ANSWER_WITHIN, ask, is_cut_off};
use slackwater_control::daemon::{ask_each, no_daemon};
use slackwater_control::exit::Failure;
use slackwater_control::protocol::{Request, VolumeRef};

use crate::arguments::SetArguments;
use crate::commands::target::Target;

/// Changes settings of a volume or a tenant.
pub(crate) fn run(arguments: &SetArguments) -> Result<(), Failure> {
    let (name, words) = match (&arguments.tenant, &arguments.words[..]) {
        (Some(_), words) => (None, words),
        (None, [name, words @ ..]) if !name.contains('=') || name.starts_with('/') => (Some(name), words),
        (None, _) => return Err(Failure::usage("no volume given; write for example: slackwater set web dontcache=on")),
    };
    if words.is_empty() {
        return Err(Failure::usage("no setting given; slackwater set --help lists them"));
    }
    let pair = |word: &String| match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!("{word} is not a setting; write for example dontcache=on"))),
    };
    let pairs = words.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
    let set_all = |socket: &Path, volume: &VolumeRef| -> Result<(), Failure> {
        for (key, value) in pairs.clone() {
            let request = match arguments.tenant.clone() {
                Some(tenant) => Request::SetTenant { tenant, key, value },
                None => Request::Set { key, value },
            };
            ask_each(is_cut_off, |_| ask(socket, volume, &request, ANSWER_WITHIN))
                .map_err(|error| no_daemon(socket, &error))?
                .done()?;
        }
        Ok(())
    };
    match name {
        Some(name) => {
            Target::find(Path::new(name), &arguments.at)?.attempt(|target| set_all(&target.socket, &target.volume))
        }
        None => set_all(&arguments.at.path()?, &VolumeRef::default()),
    }
}
