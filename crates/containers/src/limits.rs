//! Limits of a volume, as people write them: parameters of a storage class, attributes of a volume, options of Docker,
//! annotations of a pod.
//!
//! All of these are maps from text to text. The keys here begin with `slackwater.`; other keys belong to other programs
//! and are passed over. The values are those of the command line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slackwater_control::exit::Failure;
use slackwater_control::spec::fields::{self, Refused};
use slackwater_control::spec::{IN_CONTAINERS, VolumeSpec};
use slackwater_host::Printable as _;

/// The beginning of all keys.
const PREFIX: &str = "slackwater.";
/// The limit that is not an option of a mount: most files and directories of a directory volume. With an example.
pub(crate) const QUOTA_INODES: (&str, &str) = ("quota-inodes", "100000");
/// Maximum number of characters of a key or a value in a message.
const SHOWN_MAX: usize = 64;

/// Limits of one volume: options of its mount, and a quota; each by its name without the prefix, with a valid value in
/// the form that [`fields::text_of`] has.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(into = "BTreeMap<String, String>", try_from = "BTreeMap<String, String>")]
pub(crate) struct Limits(BTreeMap<String, String>);

impl Limits {
    /// Reads the attributes that begin with `slackwater.`, and passes over all others.
    ///
    /// # Errors
    /// An unknown key, or a bad value. The message names the key and the value, and gives an example.
    pub(crate) fn parse(attributes: &BTreeMap<String, String>) -> Result<Self, Failure> {
        let mut limits = Self::default();
        for (attribute, value) in attributes {
            let Some(name) = attribute.strip_prefix(PREFIX) else { continue };
            let (_, example) = keys().find(|(key, _)| *key == name).ok_or_else(|| unknown(attribute))?;
            let value = checked(name, value).map_err(|reason| {
                Failure::usage(format!("{attribute}=\"{}\": {reason}", shown(value)))
                    .advise(format!("write for example {attribute}={example}"))
            })?;
            limits.0.insert(name.to_owned(), value);
        }
        Ok(limits)
    }

    /// The value of a limit, if there is one.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// `options` of the mount, and those of the limits.
    pub(crate) fn options(&self, mut options: VolumeSpec) -> VolumeSpec {
        for (name, value) in &self.0 {
            // The quota is none of them.
            let _ = fields::set(&mut options, name, Some(value));
        }
        options
    }

    /// Maximum number of files and directories.
    pub(crate) fn quota_inodes(&self) -> Option<u64> {
        self.get(QUOTA_INODES.0)?.parse().ok()
    }

    /// The attributes from which [`Limits::parse`] reads the same limits.
    pub(crate) fn attributes(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(name, value)| (format!("{PREFIX}{name}"), value.clone())).collect()
    }
}

/// The names of all limits, each with an example.
fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    IN_CONTAINERS.into_iter().chain([QUOTA_INODES])
}

/// The value in the form that is kept.
fn checked(name: &str, value: &str) -> Result<String, String> {
    if name == QUOTA_INODES.0 {
        let inodes = value.parse().ok().filter(|inodes: &u64| *inodes > 0);
        return inodes.map(|inodes| inodes.to_string()).ok_or_else(|| "not a positive whole number".to_owned());
    }
    let mut options = VolumeSpec::default();
    fields::set(&mut options, name, Some(value)).map_err(|refused| match refused {
        Refused::Invalid(why) => why,
        Refused::Unknown => "not an option of a volume".to_owned(),
    })?;
    Ok(fields::text_of(&options, name).unwrap_or_default())
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
    let known: Vec<_> = keys().map(|(name, _)| format!("{PREFIX}{name}")).collect();
    Failure::usage(format!("unknown attribute \"{}\"", shown(attribute)))
        .advise(format!("known attributes: {}", known.join(", ")))
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
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use slackwater_control::spec::values::{Age, DirtyLimit, Rate};

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
        let all = all.unwrap();
        let options = VolumeSpec {
            dirty_limit: Some(DirtyLimit(64 << 20)),
            dontcache: true,
            dirty_expire: Some(Age(Duration::from_millis(500))),
            upload_limit: Some(Rate(50_000_000)),
            ..VolumeSpec::default()
        };
        assert_eq!((all.options(VolumeSpec::default()), all.quota_inodes()), (options, Some(1000)));
        assert_eq!(all.get("upload-limit"), Some("50000000"));
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
            dirty_limit in proptest::option::of(1_048_576_u64..),
            dontcache: bool,
            age_ms in proptest::option::of(0..10_000_000_000_u64),
            upload_limit in proptest::option::of(65_536_u64..),
            quota_inodes in proptest::option::of(1_u64..),
        ) {
            let pairs = [
                ("dirty-limit", dirty_limit.map(|bytes| bytes.to_string())),
                ("dontcache", Some(slackwater_control::spec::values::switch(dontcache).to_owned())),
                ("dirty-expire", age_ms.map(|ms| Age(Duration::from_millis(ms)).to_string())),
                ("upload-limit", upload_limit.map(|bytes| bytes.to_string())),
                ("quota-inodes", quota_inodes.map(|inodes| inodes.to_string())),
            ];
            let pairs = pairs.into_iter().filter_map(|(name, value)| Some((format!("{PREFIX}{name}"), value?)));
            let limits = Limits::parse(&pairs.collect()).unwrap();
            prop_assert_eq!(Limits::parse(&limits.attributes()), Ok(limits.clone()));
            let text = serde_json::to_string(&limits).unwrap();
            prop_assert_eq!(serde_json::from_str::<Limits>(&text).unwrap(), limits);
        }
    }
}
