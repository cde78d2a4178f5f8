//! Directory entries: the names of one hash.

use bytes::{BufMut, BytesMut};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::format::codec::{Corrupt, Decode, Encode, Input, put_bytes, put_varint};

/// A name in a directory.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    pub(crate) ino: u64,
    /// The type bits of the node's mode.
    pub(crate) type_bits: u32,
}

impl Entry {
    /// A free index: between names that keep theirs. Only this entry has an empty name.
    pub(crate) const FREE: Self = Self { name: OsString::new(), ino: 0, type_bits: 0 };

    /// Whether the index is free.
    pub(crate) fn is_free(&self) -> bool {
        self.name.is_empty()
    }
}

/// The most names of one hash: their index has two bits in a cookie.
const NAMES_PER_HASH: usize = 4;

/// The names of a directory whose hashes are equal: nearly always one. The last is never [free](Entry::FREE).
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub(crate) struct Entries(pub(crate) Vec<Entry>);

impl Entries {
    /// Puts an entry at a free index. False if there is none.
    pub(crate) fn add(&mut self, entry: Entry) -> bool {
        match self.0.iter().position(Entry::is_free) {
            Some(index) => self.0[index] = entry,
            None if self.0.len() < NAMES_PER_HASH => self.0.push(entry),
            None => return false,
        }
        true
    }

    /// Frees an index. The other names keep theirs.
    pub(crate) fn free(&mut self, index: usize) {
        self.0[index] = Entry::FREE;
        while self.0.last().is_some_and(Entry::is_free) {
            self.0.pop();
        }
    }
}

/// The hash of a name in a directory of a volume. The two lowest bits are 0: they number the entries of one hash in
/// [cookies](slackwater::backend::DirEntry::cookie). The highest is 0 too, since Linux passes cookies as `off_t`.
/// A cookie of 0 would be the start of the listing, so the hash is at least 4.
pub(crate) fn hash_of_name(salt: u64, name: &OsStr) -> u64 {
    // FNV-1a over salt and name, then a full mix: collisions cannot be made without the salt of the volume.
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ salt;
    for byte in name.as_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^= hash >> 32;
    ((hash & (u64::MAX >> 1)) & !3).max(4)
}

impl Encode for Entries {
    fn encode_to(&self, out: &mut BytesMut) {
        put_varint(out, self.0.len() as u64);
        for entry in &self.0 {
            put_varint(out, entry.ino);
            out.put_u32_le(entry.type_bits);
            put_bytes(out, entry.name.as_bytes());
        }
    }
}

impl Decode for Entries {
    fn decode_from(input: &mut Input<'_>) -> Result<Self, Corrupt> {
        let count = input.varint()?;
        if count > NAMES_PER_HASH as u64 {
            return Err(Corrupt("too many names of one hash"));
        }
        let mut entries = Vec::new();
        for _ in 0..count {
            let ino = input.varint()?;
            let type_bits = input.u32()?;
            let name = OsString::from_vec(input.bytes()?.to_vec());
            entries.push(Entry { name, ino, type_bits });
        }
        Ok(Self(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Entry {
        Entry { name: name.into(), ino: 7, type_bits: 0o100_000 }
    }

    fn names(entries: &Entries) -> Vec<&str> {
        entries.0.iter().map(|entry| entry.name.to_str().expect("text")).collect()
    }

    #[test]
    fn names_of_one_hash_keep_their_index() {
        let mut entries = Entries::default();
        for name in ["a", "b", "c"] {
            assert!(entries.add(entry(name)));
        }
        entries.free(0);
        assert_eq!(names(&entries), ["", "b", "c"]);
        entries.free(2);
        assert_eq!(names(&entries), ["", "b"]);
        assert!(entries.add(entry("d")));
        assert_eq!(names(&entries), ["d", "b"]);
        let decoded = Entries::decode(&entries.encode()).expect("valid");
        assert_eq!(decoded, entries);
        entries.free(0);
        entries.free(1);
        assert_eq!(names(&entries), [""; 0]);
    }

    #[test]
    fn a_fifth_name_of_one_hash_is_refused() {
        let mut entries = Entries::default();
        for name in ["a", "b", "c", "d"] {
            assert!(entries.add(entry(name)));
        }
        assert!(!entries.add(entry("e")));
        entries.free(1);
        assert!(entries.add(entry("e")));
        assert_eq!(names(&entries), ["a", "e", "c", "d"]);
    }
}
