//! `volume.json`: what a volume is, written once.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The version of the format that this program writes, and the newest that it reads.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// The name of the object.
pub(crate) const VOLUME_OBJECT: &str = "volume.json";

/// The content of the object, as JSON for people.
#[derive(Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeRecord {
    pub(crate) format: u32,
    /// Random: 32 hexadecimal digits.
    pub(crate) id: String,
    /// The salt of [`hash_of_name`](super::hash_of_name): random, 16 hexadecimal digits.
    pub(crate) salt: String,
    pub(crate) created_unix_ms: u64,
}

impl VolumeRecord {
    /// Of a new volume. `random` makes its id and its salt.
    pub(crate) fn new(random: [u8; 24], created_unix_ms: u64) -> Self {
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (id, salt) = digits.split_at(32);
        Self { format: FORMAT_VERSION, id: id.to_owned(), salt: salt.to_owned(), created_unix_ms }
    }

    pub(crate) fn encode(&self) -> Bytes {
        // A record of strings and numbers always has a form in JSON.
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text.into()
    }

    /// Reads the object.
    ///
    /// # Errors
    /// A text for people that says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let bad = |error: serde_json::Error| format!("{VOLUME_OBJECT} cannot be understood: {error}");
        // A newer format may have other fields.
        let Version { format } = serde_json::from_slice(bytes).map_err(bad)?;
        if format > FORMAT_VERSION {
            return Err(format!(
                "the volume has format {format}, and this program knows formats up to {FORMAT_VERSION}. Use a newer \
                 slackwater"
            ));
        }
        let record: Self = serde_json::from_slice(bytes).map_err(bad)?;
        match (record.id_bytes(), record.salt()) {
            (Some(_), Some(_)) => Ok(record),
            _ => Err(format!("{VOLUME_OBJECT} has a bad id or salt")),
        }
    }

    /// The id as bytes.
    pub(crate) fn id_bytes(&self) -> Option<[u8; 16]> {
        let is_whole = self.id.len() == 32;
        u128::from_str_radix(&self.id, 16).ok().filter(|_| is_whole).map(u128::to_be_bytes)
    }

    /// The salt as a number.
    pub(crate) fn salt(&self) -> Option<u64> {
        u64::from_str_radix(&self.salt, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let record = VolumeRecord::new(std::array::from_fn(|n| n as u8), 5);
        assert_eq!(VolumeRecord::decode(&record.encode()), Ok(record.clone()));
        assert_eq!(record.id, "000102030405060708090a0b0c0d0e0f");
        assert_eq!(record.salt(), Some(0x1011_1213_1415_1617));
    }

    #[test]
    fn a_newer_format_is_named_whatever_its_fields_are() {
        let error = VolumeRecord::decode(br#"{"format": 9, "identity": 7}"#).expect_err("newer");
        assert!(error.contains("format 9"), "{error}");
        assert!(VolumeRecord::decode(b"{").is_err());
        assert!(VolumeRecord::decode(br#"{"format":1,"id":"12","salt":"1","created_unix_ms":1}"#).is_err());
    }
}
