//! `volume.json`: what a volume is, written once.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The version of the format that this program writes, and the newest that it reads.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// The name of the object.
pub(crate) const VOLUME_OBJECT: &str = "volume.json";

/// The object that says that a volume is being deleted: what is left belongs to no volume.
pub(crate) const DELETED_OBJECT: &str = "deleted.json";

/// The identity of a volume.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) struct VolumeRecord {
    /// Random.
    pub(crate) id: u128,
    /// The salt of [`hash_of_name`](super::hash_of_name): random.
    pub(crate) salt: u64,
    pub(crate) created_unix_ms: u64,
}

/// The object, as JSON for people.
#[derive(Serialize, Deserialize)]
struct Json {
    format: u32,
    /// 32 hexadecimal digits.
    id: String,
    /// 16 hexadecimal digits.
    salt: String,
    created_unix_ms: u64,
}

impl VolumeRecord {
    /// The id in digits.
    pub(crate) fn id_text(&self) -> String {
        format!("{:032x}", self.id)
    }

    pub(crate) fn encode(&self) -> Bytes {
        let (id, salt) = (self.id_text(), format!("{:016x}", self.salt));
        let json = Json { format: FORMAT_VERSION, id, salt, created_unix_ms: self.created_unix_ms };
        // Strings and numbers always have a form in JSON.
        let mut text = serde_json::to_vec_pretty(&json).unwrap_or_default();
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
        let json: Json = serde_json::from_slice(bytes).map_err(bad)?;
        match (hexadecimal(&json.id, 32), hexadecimal(&json.salt, 16)) {
            (Some(id), Some(salt)) => Ok(Self { id, salt: salt as u64, created_unix_ms: json.created_unix_ms }),
            _ => Err(format!("{VOLUME_OBJECT} has a bad id or salt")),
        }
    }
}

/// The number with exactly so many digits.
fn hexadecimal(text: &str, digits: usize) -> Option<u128> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let record = VolumeRecord { id: 0xab, salt: 7, created_unix_ms: 5 };
        let text = record.encode();
        assert_eq!(VolumeRecord::decode(&text), Ok(record));
        let text = std::str::from_utf8(&text).expect("text");
        assert!(text.contains(r#""id": "000000000000000000000000000000ab""#), "{text}");
        assert!(text.contains(r#""salt": "0000000000000007""#), "{text}");
    }

    #[test]
    fn a_newer_format_is_named_whatever_its_fields_are() {
        let error = VolumeRecord::decode(br#"{"format": 9, "identity": 7}"#).expect_err("newer");
        assert!(error.contains("format 9"), "{error}");
        assert!(VolumeRecord::decode(b"{").is_err());
    }

    #[test]
    fn an_id_or_salt_that_is_no_number_is_refused() {
        let (id, salt) = ("0123456789abcdef0123456789abcdef", "0123456789abcdef");
        let decode = |id: &str, salt: &str| {
            let text = format!(r#"{{"format":1,"id":"{id}","salt":"{salt}","created_unix_ms":1}}"#);
            VolumeRecord::decode(text.as_bytes())
        };
        assert!(decode(id, salt).is_ok());
        for bad in ["", "12", "+123456789abcdef", "0123456789abcdeg"] {
            assert!(decode(&id.replace(salt, bad), salt).is_err(), "{bad}");
            assert!(decode(id, bad).is_err(), "{bad}");
        }
    }
}
