//! Damaged text, for tests of parsers: as from a corrupt file, a peer of another version, or an attacker. No parser may
//! panic on it, and each refusal has a message.

use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Pieces at which text parsers tend to fail.
const PIECES: [&[u8]; 30] = [
    b"",
    b" ",
    b"\n",
    b"\0",
    b"\"",
    b"\\",
    b"\\u0000",
    b"{",
    b"}",
    b"[",
    b"]",
    b"=",
    b",",
    b":",
    b"-",
    b"--",
    b"..",
    b"/",
    b"-1",
    b"0",
    b"1e400",
    b"99999999999999999999",
    b"18446744073709551615",
    b"9223372036854775808",
    b"584942417355y",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x1b[2J",
    b"null",
    b"true",
];

#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    Cut(Index),
}

impl Change {
    fn make(&self, text: &mut Vec<u8>) {
        match self {
            Self::Set(at, byte) => {
                if !text.is_empty() {
                    let at = at.index(text.len());
                    text[at] = *byte;
                }
            }
            Self::Insert(at, piece) => {
                let at = at.index(text.len() + 1);
                text.splice(at..at, piece.iter().copied());
            }
            Self::Remove(at, count) => {
                let at = at.index(text.len() + 1);
                text.drain(at..(at + count).min(text.len()));
            }
            Self::Repeat(at, count) => {
                let at = at.index(text.len() + 1);
                let again = text[at..(at + count).min(text.len())].to_vec();
                text.splice(at..at, again);
            }
            Self::Cut(at) => text.truncate(at.index(text.len() + 1)),
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        4 => (at(), select(PIECES.to_vec())).prop_map(|(at, piece)| Change::Insert(at, piece.to_vec())),
        2 => (at(), 1_usize..30).prop_map(|(at, count)| Change::Remove(at, count)),
        2 => (at(), 1_usize..60).prop_map(|(at, count)| Change::Repeat(at, count)),
        1 => at().prop_map(Change::Cut),
    ]
}

/// One of `texts`, changed in up to eight places.
pub fn damaged(texts: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (select(texts), prop::collection::vec(change(), 0..8)).prop_map(|(mut text, changes)| {
        changes.iter().for_each(|change| change.make(&mut text));
        text
    })
}

/// A few hundred cases, or as many as `PROPTEST_CASES` says.
pub fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}
