//! Limits of a volume, as people write them: parameters of a storage class, attributes of a volume, options of Docker,
//! annotations of a pod.
//!
//! All of these are maps from text to text. The keys here begin with `slackwater.`; other keys belong to other programs
//! and are passed over. The values are those of the command line.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackwater_host::Printable as _;

use crate::exit::Failure;
use crate::option_values::{parse_dirty_limit, parse_duration, parse_upload_limit};

/// The beginning of all keys.
const PREFIX: &str = "slackwater.";
/// Most characters of a key or a value in a message.
const SHOWN_MAX: usize = 64;

/// Limits of one volume. `None`: no limit, or the default of the daemon.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(into = "BTreeMap<String, String>", try_from = "BTreeMap<String, String>")]
pub(crate) struct Limits {
    /// Most dirty data, in bytes.
    pub(crate) dirty_limit: Option<u64>,
    /// Whether data stays out of the cache.
    pub(crate) dontcache: Option<bool>,
    /// Age at which dirty data is written back.
    pub(crate) dirty_expire: Option<Duration>,
    /// Most bytes per second that an object volume sends to its store.
    pub(crate) upload_limit: Option<u64>,
    /// Most files and directories of a directory volume.
    pub(crate) quota_inodes: Option<u64>,
}

/// One key: how its value is read, and how it is written.
struct Key {
    name: &'static str,
    example: &'static str,
    read: fn(Limits, &str) -> Result<Limits, String>,
    write: fn(&Limits) -> Option<String>,
}

const KEYS: [Key; 5] = [
    Key {
        name: "dirty-limit",
        example: "64MiB",
        read: |limits, value| Ok(Limits { dirty_limit: Some(parse_dirty_limit(value)?), ..limits }),
        write: |limits| limits.dirty_limit.map(|bytes| bytes.to_string()),
    },
    Key {
        name: "dontcache",
        example: "on",
        read: |limits, value| Ok(Limits { dontcache: Some(on_or_off(value)?), ..limits }),
        write: |limits| limits.dontcache.map(|is_on| if is_on { "on" } else { "off" }.to_owned()),
    },
    Key {
        name: "dirty-expire",
        example: "5s",
        read: |limits, value| Ok(Limits { dirty_expire: Some(parse_duration(value)?), ..limits }),
        write: |limits| limits.dirty_expire.map(|age| humantime::format_duration(age).to_string()),
    },
    Key {
        name: "upload-limit",
        example: "50MiB",
        read: |limits, value| Ok(Limits { upload_limit: Some(parse_upload_limit(value)?), ..limits }),
        write: |limits| limits.upload_limit.map(|bytes| bytes.to_string()),
    },
    Key {
        name: "quota-inodes",
        example: "100000",
        read: |limits, value| Ok(Limits { quota_inodes: Some(count(value)?), ..limits }),
        write: |limits| limits.quota_inodes.map(|inodes| inodes.to_string()),
    },
];

impl Limits {
    /// Reads the attributes that begin with `slackwater.`, and passes over all others.
    ///
    /// # Errors
    /// An unknown key, or a bad value. The message names the key and the value, and gives an example.
    pub(crate) fn parse(attributes: &BTreeMap<String, String>) -> Result<Self, Failure> {
        let mut limits = Self::default();
        for (attribute, value) in attributes {
            let Some(name) = attribute.strip_prefix(PREFIX) else { continue };
            let key = KEYS.iter().find(|key| key.name == name).ok_or_else(|| unknown(attribute))?;
            limits = (key.read)(limits, value).map_err(|reason| {
                Failure::usage(format!("{attribute}=\"{}\": {reason}", shown(value)))
                    .advise(format!("write for example {attribute}={}", key.example))
            })?;
        }
        Ok(limits)
    }

    /// Those that are settings of a running volume, as for `slackwater set`.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let dirty_limit = self.dirty_limit.map(|bytes| ("dirty-limit", bytes.to_string()));
        let dirty_expire = self.dirty_expire.map(|age| ("dirty-expire", humantime::format_duration(age).to_string()));
        dirty_limit.into_iter().chain(dirty_expire).collect()
    }

    /// The attributes from which [`Limits::parse`] reads the same limits.
    pub(crate) fn attributes(&self) -> BTreeMap<String, String> {
        KEYS.iter().filter_map(|key| Some((format!("{PREFIX}{}", key.name), (key.write)(self)?))).collect()
    }
}

impl From<Limits> for BTreeMap<String, String> {
    fn from(limits: Limits) -> Self {
        limits.attributes()
    }
}

impl TryFrom<BTreeMap<String, String>> for Limits {
    type Error = Failure;

    fn try_from(attributes: BTreeMap<String, String>) -> Result<Self, Failure> {
        Self::parse(&attributes)
    }
}

fn unknown(attribute: &str) -> Failure {
    let known: Vec<_> = KEYS.iter().map(|key| format!("{PREFIX}{}", key.name)).collect();
    Failure::usage(format!("unknown attribute \"{}\"", shown(attribute)))
        .advise(format!("known attributes: {}", known.join(", ")))
}

fn on_or_off(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("neither on nor off".to_owned()),
    }
}

fn count(value: &str) -> Result<u64, String> {
    value.parse().ok().filter(|count| *count > 0).ok_or_else(|| "not a positive whole number".to_owned())
}

/// A text from outside, for a message that quotes it.
pub(super) fn shown(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", text[..end].printable()),
        None => text.printable().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(attributes: &[(&str, &str)]) -> Result<Limits, Failure> {
        Limits::parse(&attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn each_key_sets_its_limit_and_other_programs_keys_are_passed_over() {
        let all = parsed(&[
            ("slackwater.dirty-limit", "64MiB"),
            ("slackwater.dontcache", "on"),
            ("slackwater.dirty-expire", "500ms"),
            ("slackwater.upload-limit", "50MB"),
            ("slackwater.quota-inodes", "1000"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("pool", "/srv/pool"),
        ]);
        let expected = Limits {
            dirty_limit: Some(64 << 20),
            dontcache: Some(true),
            dirty_expire: Some(Duration::from_millis(500)),
            upload_limit: Some(50_000_000),
            quota_inodes: Some(1000),
        };
        assert_eq!(all, Ok(expected));
        assert_eq!(parsed(&[]), Ok(Limits::default()));
    }

    #[test]
    fn a_refusal_names_the_key_and_the_value_and_gives_an_example() {
        for (key, value, example) in [
            ("slackwater.dirty-limit", "lots", "64MiB"),
            ("slackwater.dirty-limit", "", "64MiB"),
            ("slackwater.dontcache", "true", "on"),
            ("slackwater.dirty-expire", "30", "5s"),
            ("slackwater.upload-limit", "1k", "50MiB"),
            ("slackwater.quota-inodes", "0", "100000"),
            ("slackwater.quota-inodes", "-1", "100000"),
        ] {
            let refusal = parsed(&[(key, value)]).unwrap_err().to_string();
            let [named, shown] = [format!("{key}="), format!("\"{}\"", shown(value))];
            assert!(refusal.contains(&named) && refusal.contains(&format!("{key}={example}")), "{refusal}");
            assert!(value.is_empty() || refusal.contains(&shown), "{refusal}");
        }
        for key in ["slackwater.dirty_limit", "slackwater.", "slackwater.Dontcache"] {
            let refusal = parsed(&[(key, "on")]).unwrap_err().to_string();
            assert!(refusal.contains(key) && refusal.contains("slackwater.quota-inodes"), "{refusal}");
        }
        let long = parsed(&[("slackwater.dontcache", &"\u{1b}[2J".repeat(1000))]).unwrap_err().to_string();
        assert!(long.len() < 700 && !long.contains('\u{1b}'), "{long}");
    }

    proptest! {
        #[test]
        fn limits_survive_as_attributes(
            dirty_limit: Option<u64>,
            dontcache: Option<bool>,
            age_ms in proptest::option::of(0..10_000_000_000_u64),
            upload_limit in proptest::option::of(65_536_u64..),
            quota_inodes in proptest::option::of(1_u64..),
        ) {
            let dirty_expire = age_ms.map(Duration::from_millis);
            let limits = Limits { dirty_limit, dontcache, dirty_expire, upload_limit, quota_inodes };
            prop_assert_eq!(Limits::parse(&limits.attributes()), Ok(limits.clone()));
            let text = serde_json::to_string(&limits).unwrap();
            prop_assert_eq!(serde_json::from_str::<Limits>(&text).unwrap(), limits);
        }
    }
}
