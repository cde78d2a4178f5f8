//! The formats that a program shares with the next server of a mount.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackwater_arena::Arena;
use slackwater_host::Printable as _;
use slackwater_mount::MountRecord;

use crate::exit::Failure;
use crate::keeper::protocol::PROTOCOL_VERSION;
use crate::object;
use crate::spec::start;

/// The hidden command that prints the formats.
const COMMAND: &str = "formats";
/// A program prints its formats within this time.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 4096;

/// The version of each format. A later program may print more of them.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Formats {
    /// The messages between the keeper and the server.
    keeper: u32,
    /// The front end's record.
    record: u32,
    arena: u64,
    /// The local log of object volumes; 0 in a program without them.
    #[serde(default)]
    object_log: u32,
    /// The specification with which a keeper starts a server, and the settings of volumes; 0 in a program that takes
    /// words.
    #[serde(default)]
    specification: u32,
}

impl Formats {
    /// The formats of this program. A mount has those of each program that serves it.
    pub(crate) const OWN: Self = Self {
        keeper: PROTOCOL_VERSION,
        record: MountRecord::FORMAT,
        arena: Arena::FORMAT,
        object_log: object::LOG_FORMAT,
        specification: start::FORMAT,
    };

    /// Asks a program.
    ///
    /// # Errors
    /// The program cannot be started, or prints something else.
    ///
    /// # Blocking
    /// For the program, at most [`ANSWERS_WITHIN`].
    pub(crate) fn of(program: &Path) -> Result<Self, Failure> {
        let name = program.printable();
        let mut command = Command::new(program);
        command.arg(COMMAND).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| Failure::failed(format!("cannot start {name}: {error}")))?;
        let (sender, answer) = channel();
        let stdout = child.stdout.take();
        thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(stdout) = stdout {
                // A part of an answer is none.
                let _ = stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut text);
            }
            // Nothing receives it after the time limit.
            let _ = sender.send(text);
        });
        let text = answer.recv_timeout(ANSWERS_WITHIN).unwrap_or_default();
        // It fails only when the program has ended.
        let _ = child.kill();
        let _ = child.wait();
        serde_json::from_slice(&text).map_err(|_| {
            Failure::failed(format!("{name} does not print its formats"))
                .advise("it is not slackwater, or a version without `slackwater upgrade`")
        })
    }

    /// Whether a program with these formats can go on with a mount that has the formats `mount`.
    ///
    /// # Errors
    /// The program cannot go on; the message names the first format that differs.
    pub(crate) fn check(&self, program: &Path, mount: &Self) -> Result<(), Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_that_differs_is_named() {
        let (own, program) = (Formats::OWN, Path::new("/next"));
        assert_eq!(own.check(program, &own), Ok(()));
        let refusal = |other: Formats| other.check(program, &own).unwrap_err().what;
        let specification = 0;
        let (arena, record, keeper) = (own.arena + 1, own.record + 1, own.keeper + 1);
        for (other, named) in [
            (Formats { arena, ..own }, format!("/next reads arenas of format {arena}, this mount has {}", own.arena)),
            (Formats { record, ..own }, format!("records of mounts of format {record}, this mount has")),
            (Formats { keeper, ..own }, format!("messages of keepers of format {keeper}, this mount has")),
            (Formats { specification, ..own }, "specifications of format 0, this mount has 1".into()),
            #[cfg(feature = "object")]
            (Formats { object_log: 0, ..own }, "logs of object volumes of format 0, this mount has".into()),
        ] {
            assert!(refusal(other).contains(&named), "{}", refusal(other));
        }
    }

    #[test]
    fn later_programs_may_print_more() {
        let text = r#"{"keeper":7,"record":8,"arena":9,"ring":10}"#;
        let formats = Formats { keeper: 7, record: 8, arena: 9, object_log: 0, specification: 0 };
        assert_eq!(serde_json::from_str::<Formats>(text).unwrap(), formats);
    }

    #[test]
    fn a_program_without_object_volumes_may_get_them() {
        let mount = Formats { object_log: 0, ..Formats::OWN };
        assert_eq!(Formats { object_log: 1, ..mount }.check(Path::new("/next"), &mount), Ok(()));
    }

    #[test]
    fn a_mount_of_a_program_that_takes_words_may_get_specifications() {
        let mount = Formats { specification: 0, ..Formats::OWN };
        assert_eq!(Formats::OWN.check(Path::new("/next"), &mount), Ok(()));
    }

    #[test]
    fn other_programs_have_no_formats() {
        for (program, why) in [("/bin/true", "does not print its formats"), ("/nonexistent", "cannot start")] {
            let failure = Formats::of(Path::new(program)).unwrap_err();
            assert!(failure.what.contains(why), "{failure}");
        }
    }
}
