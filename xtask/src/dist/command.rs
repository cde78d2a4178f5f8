//! Running the system's programs.

use std::path::Path;
use std::process::Command;

/// Runs to the end, without a word on success; returns the standard output as text.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    bytes(command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The same with the output as it is.
pub(super) fn bytes(command: &mut Command) -> Result<Vec<u8>, String> {
    let line = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let output = command.output().map_err(|error| format!("{}: {error}", line(command)))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let [said, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    Err(format!("{}: {}\n{said}{errors}", line(command), output.status))
}

/// The SHA-256 of a file, in hexadecimal digits.
pub(super) fn sha256(path: &Path) -> Result<String, String> {
    let line = output(Command::new("sha256sum").arg("--").arg(path))?;
    line.split(' ').next().map(str::to_owned).ok_or_else(|| format!("sha256sum prints nothing for {}", path.display()))
}

/// The bytes of a file, compressed by gzip without name and time.
pub(super) fn gzip(path: &Path) -> Result<Vec<u8>, String> {
    bytes(Command::new("gzip").args(["-9", "--no-name", "--stdout"]).arg(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_command_and_its_words() {
        let message = output(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"])).unwrap_err();
        assert!(message.starts_with("sh -c") && message.ends_with("one\ntwo\n"), "{message}");
        assert!(output(&mut Command::new("no-such-program")).is_err());
    }
}
