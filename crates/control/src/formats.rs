//! The formats that a program shares with the next server of a mount.

use std::path::Path;

use serde::{Deserialize, Serialize};
use slackwater_host::Printable as _;

use crate::exit::Failure;

/// The version of each format. A later program may print more of them.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Formats {
    /// The messages between the keeper and the server.
    pub keeper: u32,
    /// The front end's record.
    pub record: u32,
    /// The cache file.
    pub arena: u64,
    /// The local log of object volumes; 0 in a program without them.
    #[serde(default)]
    pub object_log: u32,
    /// The specification with which a keeper starts a server, and the settings of volumes; 0 in a program that takes
    /// words.
    #[serde(default)]
    pub specification: u32,
}

impl Formats {
    /// Whether a program with these formats can go on with a mount that has the formats `mount`.
    ///
    /// # Errors
    /// The program cannot go on; the message names the first format that differs.
    pub fn check(&self, program: &Path, mount: &Self) -> Result<(), Failure> {
        let formats = [
            ("arenas", self.arena, mount.arena),
            ("records of mounts", self.record.into(), mount.record.into()),
            ("messages of keepers", self.keeper.into(), mount.keeper.into()),
            ("logs of object volumes", self.object_log.into(), mount.object_log.into()),
            ("specifications", self.specification.into(), mount.specification.into()),
        ];
        match formats.into_iter().find(|(_, reads, has)| *has != 0 && reads != has) {
            None => Ok(()),
            Some((what, reads, has)) => {
                let program = program.printable();
                Err(Failure::failed(format!("{program} reads {what} of format {reads}, this mount has {has}"))
                    .advise("nothing has changed; unmount, and mount again with that program"))
            }
        }
    }
}
