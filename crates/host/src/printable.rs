//! Safe printing of names: of files, processes, volumes and tenants.
//!
//! A name can contain any byte. Printed as it is, it could move the cursor, forge a line of a list, or reverse the
//! text. So every printed or logged name goes through [`Printable`]. It is the only implementation; `cargo xtask tidy`
//! looks for others.

use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A name that can be printed safely.
pub trait Printable {
    /// The name on one line. Unprintable characters are escaped as in Rust (`\n`, `\u{1b}`), invalid UTF-8 as `\xNN`,
    /// and an empty name is `""`; other characters are unchanged. Escaping an escaped name changes nothing.
    fn printable(&self) -> Escaped<'_>;
}

impl Printable for OsStr {
    fn printable(&self) -> Escaped<'_> {
        Escaped(self.as_bytes())
    }
}

impl Printable for Path {
    fn printable(&self) -> Escaped<'_> {
        Escaped(self.as_os_str().as_bytes())
    }
}

impl Printable for str {
    fn printable(&self) -> Escaped<'_> {
        Escaped(self.as_bytes())
    }
}

/// See [`Printable::printable`].
#[derive(Copy, Clone, Debug)]
pub struct Escaped<'a>(&'a [u8]);

impl Display for Escaped<'_> {
    /// Padded as the format requests.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if f.width().is_none() && f.precision().is_none() {
            return write_escaped(f, self.0);
        }
        let mut text = String::new();
        write_escaped(&mut text, self.0)?;
        f.pad(&text)
    }
}

fn write_escaped(to: &mut impl Write, name: &[u8]) -> fmt::Result {
    if name.is_empty() {
        return to.write_str("\"\"");
    }
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match does_print(character) {
                true => to.write_char(character)?,
                false => write!(to, "{}", character.escape_default())?,
            }
        }
        chunk.invalid().iter().try_for_each(|byte| write!(to, "\\x{byte:02x}"))?;
    }
    Ok(())
}

/// Whether a terminal shows the character in place on this line. The others are control characters, direction marks,
/// line separators and characters without width.
fn does_print(character: char) -> bool {
    let is_layout = matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !character.is_control() && !is_layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_on_one_line_and_do_not_affect_the_terminal() {
        let same = ["/srv/a file", "/srv/\u{e4}\u{f6}\u{fc} \u{65e5}\u{672c}", "e\u{301}", "back\\slash 'quotes\""];
        assert!(same.iter().all(|name| name.printable().to_string() == **name));
        assert_eq!("a\nb\t\u{1b}[2J\u{7f}\u{9b}".printable().to_string(), "a\\nb\\t\\u{1b}[2J\\u{7f}\\u{9b}");
        assert_eq!("\u{202e}txt.exe\u{2028}".printable().to_string(), "\\u{202e}txt.exe\\u{2028}");
        assert_eq!(OsStr::from_bytes(b"x\xff\xc3(\n").printable().to_string(), "x\\xff\\xc3(\\n");
        assert_eq!("".printable().to_string(), "\"\"");
        let once = "a\nb".printable().to_string();
        assert_eq!(once.printable().to_string(), once);
        assert_eq!(format!("{:6}|{:>5}|", "a\n".printable(), Path::new("/b").printable()), "a\\n   |   /b|");
    }
}
