//! The formats of this program and of others.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use slackwater_arena::Arena;
use slackwater_control::exit::Failure;
use slackwater_control::formats::Formats;
use slackwater_host::Printable as _;
use slackwater_mount::MountRecord;

use crate::keeper::protocol::PROTOCOL_VERSION;
use crate::object;
use crate::server::start;

/// The hidden command that prints the formats.
const COMMAND: &str = "formats";
/// A program prints its formats within this time.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 4096;

/// The formats of this program. A mount has those of each program that serves it.
pub(crate) const OWN: Formats = Formats {
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
pub(crate) fn of(program: &Path) -> Result<Formats, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_that_differs_is_named() {
        let (own, program) = (OWN, Path::new("/next"));
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
        let mount = Formats { object_log: 0, ..OWN };
        assert_eq!(Formats { object_log: 1, ..mount }.check(Path::new("/next"), &mount), Ok(()));
    }

    #[test]
    fn a_mount_of_a_program_that_takes_words_may_get_specifications() {
        let mount = Formats { specification: 0, ..OWN };
        assert_eq!(OWN.check(Path::new("/next"), &mount), Ok(()));
    }

    #[test]
    fn other_programs_have_no_formats() {
        for (program, why) in [("/bin/true", "does not print its formats"), ("/nonexistent", "cannot start")] {
            let failure = of(Path::new(program)).unwrap_err();
            assert!(failure.what.contains(why), "{failure}");
        }
    }
}
