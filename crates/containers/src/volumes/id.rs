//! Ids of volumes.
//!
//! A platform chooses the name of a volume, and a name may be anything. The id is derived from it: the readable part of
//! the name, and a hash of the whole. It is a file name, a name of a volume in a daemon, and a part of a URL.
//!
//! # Invariants
//! D1. An id has at most 64 bytes: letters, digits, dots, dashes and underscores; it begins with a letter or digit.
//! D2. The id of a name never changes, in later versions too: records and directories have it as their name.
//! D3. The hash has 64 bits, so two names with the same id can be found by a long search. A record has the whole name, and
//!     the second of them is refused.

use sha2::{Digest, Sha256};
use slackwater_control::name::VolumeName;

/// Longest name: that of Kubernetes and of the Container Storage Interface is shorter.
pub(super) const NAME_BYTES_MAX: usize = 1024;
/// Bytes of the name in an id. The names of Kubernetes, `pvc-UUID`, have 40.
const READABLE_BYTES_MAX: usize = 40;

/// The id of the volume that is named `name`.
pub(super) fn of(name: &str) -> String {
    let plain = |byte: u8| if byte.is_ascii_alphanumeric() || b".-_".contains(&byte) { byte as char } else { '-' };
    let readable: String = name.bytes().map(plain).skip_while(|letter| !letter.is_ascii_alphanumeric()).collect();
    let readable = &readable[..readable.len().min(READABLE_BYTES_MAX)];
    let hash = Sha256::digest(name.as_bytes());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    if readable.is_empty() { format!("volume-{hash}") } else { format!("{readable}-{hash}") }
}

/// Whether a text from outside may be an id (D1). Nothing else is ever part of a path.
pub(super) fn is_valid(text: &str) -> bool {
    VolumeName::new(text).is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_never_change() {
        for (name, id) in [
            ("data", "data-3a6eb0790f39ac87"),
            ("pvc-0b6ecf0e-4a5f-4b4a-8a4e-0d3c0f6e7a11", "pvc-0b6ecf0e-4a5f-4b4a-8a4e-0d3c0f6e7a11-09fdffcc5c6a423e"),
            ("../../etc/passwd", "etc-passwd-3754d6cb3a38e118"),
            ("", "volume-e3b0c44298fc1c14"),
            ("\u{e9}", "volume-4a99557e4033c353"),
        ] {
            assert_eq!(of(name), id);
        }
    }

    proptest! {
        #[test]
        fn every_name_has_a_safe_id_of_its_own(name in any::<String>(), other in any::<String>()) {
            let id = of(&name);
            prop_assert!(is_valid(&id), "{id}");
            prop_assert_eq!(id.len() <= READABLE_BYTES_MAX + 17, true);
            prop_assert_eq!(id == of(&other), name == other);
        }
    }
}
