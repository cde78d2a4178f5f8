//! POSIX ACLs, as Linux stores, checks and applies them (`posix_acl_valid`, `posix_acl_create`, `posix_acl_chmod`).

use bytes::{BufMut, Bytes, BytesMut};
use slackwater::ErrorKind;

use crate::tree::Stop;

/// The attribute that limits access to a node.
pub(super) const ACCESS: &str = "system.posix_acl_access";
/// The attribute of a directory that new nodes in it start with.
pub(super) const DEFAULT: &str = "system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The id of entries for no user or group of their own.
const NO_ID: u32 = u32::MAX;

/// A valid ACL: in order, and with all entries that one must have.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(super) struct Acl(Vec<AclEntry>);

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct AclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl Acl {
    /// Reads the value of an attribute. `None` if it has no entries, which removes the ACL.
    ///
    /// # Errors
    /// `Unsupported` for another version, `Invalid` for a value that is no ACL.
    pub(super) fn decode(value: &[u8]) -> Result<Option<Self>, Stop> {
        let (version, entries) = value.split_first_chunk().ok_or(ErrorKind::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(ErrorKind::Unsupported.into());
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(ErrorKind::Invalid.into());
        }
        let acl = Self(entries.iter().map(AclEntry::decode).collect());
        match acl.0.is_empty() {
            true => Ok(None),
            false if acl.is_valid() => Ok(Some(acl)),
            false => Err(ErrorKind::Invalid.into()),
        }
    }

    /// The value of the attribute.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(size_of::<u32>() + self.0.len() * ENTRY_BYTES);
        out.put_u32_le(VERSION);
        for entry in &self.0 {
            out.put_u16_le(entry.tag);
            out.put_u16_le(entry.permissions);
            out.put_u32_le(entry.id);
        }
        out.freeze()
    }

    /// Whether it has entries that a mode cannot express.
    pub(super) fn is_extended(&self) -> bool {
        self.0.iter().any(|entry| matches!(entry.tag, USER | GROUP | MASK))
    }

    /// The permission bits of a node with this access ACL.
    pub(super) fn mode(&self) -> u32 {
        let of = |tag| self.0.iter().find(|entry| entry.tag == tag).map(|entry| u32::from(entry.permissions));
        let group = of(MASK).or(of(GROUP_OBJ));
        of(USER_OBJ).unwrap_or(0) << 6 | group.unwrap_or(0) << 3 | of(OTHER).unwrap_or(0)
    }

    /// Takes the permissions of the owner, the mask or else the group, and others from `mode`.
    pub(super) fn set_mode(&mut self, mode: u32) {
        self.change(|tag, permissions| *permissions = bits_of(mode, tag));
    }

    /// Makes a default ACL the access ACL of a new node: neither allows more than `mode` did and the other does.
    pub(super) fn restrict(&mut self, mode: &mut u32) {
        let wanted = *mode;
        self.change(|tag, permissions| *permissions &= bits_of(wanted, tag));
        *mode = *mode & !0o777 | self.mode();
    }

    fn change(&mut self, change: impl Fn(u16, &mut u16)) {
        let group = if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OBJ };
        for entry in &mut self.0 {
            if matches!(entry.tag, USER_OBJ | OTHER) || entry.tag == group {
                change(entry.tag, &mut entry.permissions);
            }
        }
    }

    fn is_valid(&self) -> bool {
        // The tag that must come next, or with which named entries end.
        let mut state = USER_OBJ;
        let mut needs_mask = false;
        for entry in &self.0 {
            if entry.permissions & !0o7 != 0 {
                return false;
            }
            state = match (entry.tag, state) {
                (USER_OBJ, USER_OBJ) => USER,
                (USER, USER) | (GROUP, GROUP) if entry.id != NO_ID => {
                    needs_mask = true;
                    state
                }
                (GROUP_OBJ, USER) => GROUP,
                (MASK, GROUP) => OTHER,
                (OTHER, OTHER) => 0,
                (OTHER, GROUP) if !needs_mask => 0,
                _ => return false,
            };
        }
        state == 0
    }
}

impl AclEntry {
    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let [tag, tag_high, permissions, permissions_high, id @ ..] = *bytes;
        let tag = u16::from_le_bytes([tag, tag_high]);
        let id = if matches!(tag, USER | GROUP) { u32::from_le_bytes(id) } else { NO_ID };
        Self { tag, permissions: u16::from_le_bytes([permissions, permissions_high]), id }
    }
}

/// An ACL that was valid when it was stored.
///
/// # Errors
/// `Io` if it no longer is.
pub(super) fn stored(value: &[u8]) -> Result<Acl, Stop> {
    let acl = Acl::decode(value).ok().flatten();
    acl.ok_or_else(|| ErrorKind::Io.into())
}

/// The bits of `mode` for an entry with this tag.
fn bits_of(mode: u32, tag: u16) -> u16 {
    let shift = match tag {
        USER_OBJ => 6,
        OTHER => 0,
        _ => 3,
    };
    (mode >> shift & 0o7) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries
            .iter()
            .map(|(tag, permissions, id)| AclEntry { tag: *tag, permissions: *permissions, id: *id })
            .collect())
    }

    fn decoded(acl: &Acl) -> Result<Option<Acl>, ErrorKind> {
        Acl::decode(&acl.encode()).map_err(|stop| match stop {
            Stop::Failed(error) => error.kind(),
            Stop::Missing => panic!("nothing is read"),
        })
    }

    const FULL: [(u16, u16, u32); 6] = [
        (USER_OBJ, 7, NO_ID),
        (USER, 6, 12),
        (GROUP_OBJ, 5, NO_ID),
        (GROUP, 4, 34),
        (MASK, 7, NO_ID),
        (OTHER, 1, NO_ID),
    ];

    #[test]
    fn valid_acls_are_read_back() {
        let plain = [FULL[0], FULL[2], FULL[5]];
        let masked = [FULL[0], FULL[2], FULL[4], FULL[5]];
        for entries in [&FULL[..], &plain, &masked] {
            assert_eq!(decoded(&acl(entries)), Ok(Some(acl(entries))));
        }
        assert_eq!(decoded(&acl(&[])), Ok(None));
        assert!(!acl(&plain).is_extended() && acl(&masked).is_extended());
    }

    #[test]
    fn invalid_acls_are_refused() {
        let without = |at: usize| {
            acl(&FULL.iter().copied().enumerate().filter(|(n, _)| *n != at).map(|(_, e)| e).collect::<Vec<_>>())
        };
        for at in [0, 2, 4, 5] {
            assert_eq!(decoded(&without(at)), Err(ErrorKind::Invalid), "without entry {at}");
        }
        let mut swapped = FULL;
        swapped.swap(1, 2);
        assert_eq!(decoded(&acl(&swapped)), Err(ErrorKind::Invalid));
        let mut permissions = FULL;
        permissions[3].1 = 8;
        assert_eq!(decoded(&acl(&permissions)), Err(ErrorKind::Invalid));
        let mut nobody = FULL;
        nobody[1].2 = NO_ID;
        assert_eq!(decoded(&acl(&nobody)), Err(ErrorKind::Invalid));
        for value in [&b""[..], b"\x02\0\0", b"\x02\0\0\0\x01"] {
            assert!(matches!(Acl::decode(value), Err(Stop::Failed(error)) if error.kind() == ErrorKind::Invalid));
        }
        assert!(
            matches!(Acl::decode(b"\x01\0\0\0"), Err(Stop::Failed(error)) if error.kind() == ErrorKind::Unsupported)
        );
    }

    #[test]
    fn mode_and_acl_follow_each_other() {
        let mut full = acl(&FULL);
        assert_eq!(full.mode(), 0o771);
        full.set_mode(0o640);
        assert_eq!(full.mode(), 0o640);
        assert_eq!(full.0[2].permissions, 5, "the mask changes, not the group");
        let mut plain = acl(&[FULL[0], FULL[2], FULL[5]]);
        plain.set_mode(0o4640);
        assert_eq!(plain.mode(), 0o640);
    }

    #[test]
    fn a_new_node_has_what_both_its_mode_and_the_default_acl_allow() {
        let (mut full, mut mode) = (acl(&FULL), 0o2666);
        full.restrict(&mut mode);
        assert_eq!((mode, full.mode()), (0o2660, 0o660));
        assert_eq!(full.0[3].permissions, 4, "the mask limits it");
    }
}
