//! Quoting for a shell, for commands that users copy.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A path as one word. If quotes are not enough, or the line would not stay one line, it is written as `$'...'`, which
/// bash, zsh and recent POSIX shells understand.
pub fn word(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-+./,:@%=".contains(byte);
    match path.to_str() {
        Some(text) if !text.is_empty() && bytes.iter().all(is_plain) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let mut word = "$'".to_owned();
            for byte in bytes {
                match byte {
                    b'\'' | b'\\' => word.extend(['\\', char::from(*byte)]),
                    b' '..=b'~' => word.push(char::from(*byte)),
                    // Three digits, so that a following digit is not part of the escape. Writing into a string does not
                    // fail.
                    _ => drop(write!(word, "\\{byte:03o}")),
                }
            }
            word + "'"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_word_as_the_path() {
        let plain = Path::new("/mnt/a-b_1.2");
        assert_eq!(word(plain), "/mnt/a-b_1.2");
        assert_eq!(word(Path::new("/mnt/my files")), "'/mnt/my files'");
        let names: [&[u8]; 9] = [
            b"",
            b"a b",
            b"it's",
            b"\"$HOME\" `id` \\ *?[~]",
            b"#!&;|<>(){}",
            "\u{e9}".as_bytes(),
            b"a\n1'\\",
            b"\xff7",
            b"\x01 ",
        ];
        for name in names {
            let path = Path::new(OsStr::from_bytes(name));
            let printed = Command::new("bash").args(["-c", &format!("printf %s {}", word(path))]).output().unwrap();
            assert!(printed.status.success() && printed.stdout == name, "{} became {printed:?}", word(path));
            assert!(!word(path).contains('\n'));
        }
    }
}
