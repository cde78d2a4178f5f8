//! A volume as its file records it.
//!
//! # Format
//! JSON of version 1. A file of a newer version is refused and stays as it is. Fields that are unknown here are skipped.

use serde::{Deserialize, Serialize};

use crate::limits::Limits;
use crate::volumes::id;
use crate::volumes::pool::Pool;

const VERSION: u32 = 1;

/// A volume.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The id, derived from the name: at most 64 letters, digits, dots, dashes and underscores.
    pub(crate) id: String,
    /// The name, as the platform gave it.
    pub(crate) name: String,
    pub(crate) pool: Pool,
    /// A path or a URL, as `slackwater mount` takes it.
    pub(crate) source: String,
    /// The size. `None`: no limit.
    pub(crate) bytes: Option<u64>,
    pub(crate) limits: Limits,
    /// Whether the volume was made with credentials of its own. Only a call that has them may change its store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_credentials: bool,
}

/// How far the making or the removal of a volume is.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// The source may or may not exist; nothing has used it yet.
    Making,
    Ready,
    /// The source may be gone, wholly or in part.
    Removing,
}

/// The content of a file.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(super) struct Stored {
    version: u32,
    pub(super) state: State,
    #[serde(flatten)]
    pub(super) record: Record,
}

impl Stored {
    pub(super) fn new(state: State, record: &Record) -> Self {
        Self { version: VERSION, state, record: record.clone() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("a record has only text and numbers");
        text.push(b'\n');
        text
    }

    /// Reads the file of the volume `id`.
    ///
    /// # Errors
    /// The reason why the file is unreadable.
    pub(super) fn decode(bytes: &[u8], id: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if version > VERSION {
            return Err(format!("it has version {version}, and this program reads versions up to {VERSION}"));
        }
        let stored: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if stored.record.id != id || id::of(&stored.record.name) != id {
            return Err("it belongs to another volume".to_owned());
        }
        if !stored.record.pool.has(&stored.record.source, id) {
            return Err("its source is not in its pool".to_owned());
        }
        Ok(stored)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use slackwater_testkit::damage;

    pub(in crate::volumes) fn record(name: &str) -> Record {
        Record {
            id: id::of(name),
            name: name.to_owned(),
            pool: Pool::Directory("/srv/pool".into()),
            source: format!("/srv/pool/{}", id::of(name)),
            bytes: Some(1 << 30),
            limits: Limits::parse(&[("slackwater.dirty-limit".into(), "64MiB".into())].into()).unwrap(),
            has_credentials: false,
        }
    }

    #[test]
    fn the_format_stays_readable() {
        let text = r#"{"version": 1, "state": "ready", "id": "data-3a6eb0790f39ac87", "name": "data",
            "pool": {"directory": "/srv/pool"}, "source": "/srv/pool/data-3a6eb0790f39ac87", "bytes": 1073741824,
            "limits": {"slackwater.dirty-limit": "64MiB"}, "novel": 1}"#;
        let stored = Stored::new(State::Ready, &record("data"));
        assert_eq!(Stored::decode(text.as_bytes(), "data-3a6eb0790f39ac87"), Ok(stored.clone()));
        assert_eq!(Stored::decode(&stored.encode(), &stored.record.id), Ok(stored));
        let newer = text.replace("\"version\": 1", "\"version\": 2");
        assert!(Stored::decode(newer.as_bytes(), "data-3a6eb0790f39ac87").unwrap_err().contains("version 2"));
        let strayed = text.replace("/srv/pool/data", "/srv/other/data");
        assert!(Stored::decode(strayed.as_bytes(), "data-3a6eb0790f39ac87").unwrap_err().contains("not in its pool"));
        assert!(Stored::decode(text.as_bytes(), "other").unwrap_err().contains("another volume"));
    }

    proptest! {
        #![proptest_config(damage::cases())]

        #[test]
        fn damaged_records_are_refused_or_valid(text in damage::damaged(vec![Stored::new(State::Ready, &record("data")).encode()])) {
            if let Ok(stored) = Stored::decode(&text, "data-3a6eb0790f39ac87") {
                prop_assert_eq!(stored.record.name, "data");
            }
        }
    }
}
