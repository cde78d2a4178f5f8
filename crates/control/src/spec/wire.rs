//! Specifications in messages: to a daemon, to the process that has a volume mounted, and to a keeper. Programs of other
//! versions read them too.
//!
//! # Invariants
//! Y1. An option that a message does not state has its default.
//! Y2. The first version of the messages had the options `FIRST`, two of them in a form of their own, and refuses any
//!     other one. A daemon of that version therefore refuses a request with a later option. A keeper would end the
//!     process that sends one, and gets later options as settings ([`split`]).
//! Y3. Processes of the first version compare the options of a further mount by their texts ([`texts`]).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::fields;
use super::values::{Follow, Rate};
use super::{MountSpec, NONE, VolumeSpec, with_unit};

/// Y2.
const FIRST: [&str; 10] = [
    "read-only",
    "allow-other",
    "nosuid",
    "nodev",
    "noexec",
    "dontcache",
    "transport",
    "take-over",
    "follow",
    "upload-limit",
];
/// Options with a form of their own: a time as seconds and nanoseconds, and a number under another name.
const FOLLOW: &str = "follow";
const UPLOAD_LIMIT: &str = "upload-limit";
const UPLOAD_LIMIT_BYTES_PER_S: &str = "upload-limit-bytes-per-s";

/// Writes the options of a volume.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(spec: &VolumeSpec, serializer: S) -> Result<S::Ok, S::Error> {
    let value = |(name, text): (String, String)| {
        let value = if fields::is_switch(spec, &name) { Value::Bool(true) } else { text.into() };
        (name, value)
    };
    let mut fields: Map<_, _> = fields::stated(spec).map(value).collect();
    if let Some(Follow(age)) = &spec.follow {
        fields.insert(FOLLOW.to_owned(), serde_json::to_value(age).map_err(serde::ser::Error::custom)?);
    }
    if let Some(Rate(bytes)) = spec.upload_limit {
        fields.remove(UPLOAD_LIMIT);
        fields.insert(UPLOAD_LIMIT_BYTES_PER_S.to_owned(), bytes.into());
    }
    fields.serialize(serializer)
}

/// Reads the options of a volume.
///
/// # Errors
/// An option is unknown or has an invalid value.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<VolumeSpec, D::Error> {
    let mut fields = Map::deserialize(deserializer)?;
    fields.retain(|_, value| !value.is_null());
    if let Some(age) = fields.get_mut(FOLLOW)
        && age.is_object()
    {
        let follow = Follow(Duration::deserialize(age.take()).map_err(D::Error::custom)?);
        *age = follow.to_string().into();
    }
    if let Some(bytes) = fields.remove(UPLOAD_LIMIT_BYTES_PER_S) {
        fields.insert(UPLOAD_LIMIT.to_owned(), bytes.to_string().into());
    }
    VolumeSpec::deserialize(Value::Object(fields)).map_err(D::Error::custom)
}

/// The options that programs of the first version read, and the other ones as settings (Y2).
pub fn split(spec: &VolumeSpec) -> (VolumeSpec, Vec<(String, String)>) {
    let mut first = spec.clone();
    let later: Vec<_> = fields::stated(spec).filter(|(name, _)| !FIRST.contains(&name.as_str())).collect();
    for (name, _) in &later {
        // It is one of its options.
        let _ = fields::reset(&mut first, name);
    }
    (first, later)
}

/// The options that a further mount states (Y3).
pub fn texts(spec: &MountSpec) -> BTreeMap<String, String> {
    spec.stated().map(|(name, value)| (name.clone(), with_unit(&name, &value))).collect()
}

/// The options that a further mount has stated.
#[derive(Debug, Default)]
pub struct Stated {
    pub spec: MountSpec,
    /// A line for each option that does not exist here.
    unknown: Vec<String>,
}

impl Stated {
    /// The options with these texts (Y3).
    pub fn of_texts(texts: &BTreeMap<String, String>) -> Self {
        let mut stated = Self::default();
        for (name, text) in texts {
            let bytes = text.rsplit_once(" (").and_then(|(_, bytes)| bytes.strip_suffix(" bytes)"));
            let value = bytes.unwrap_or(text);
            let set = match name.split_once(' ') {
                Some((list, of)) => stated.spec.set(list, Some(&format!("{of}={value}"))),
                None => stated.spec.set(name, Some(value)),
            };
            if set.is_err() {
                stated.unknown.push(format!("--{name} is {text} here, and {NONE} there"));
            }
        }
        stated
    }

    /// The options of a further mount in a daemon, which has a cache and tenants of its own.
    pub fn of_volume(volume: VolumeSpec) -> Self {
        Self { spec: MountSpec { volume, ..MountSpec::default() }, unknown: Vec::new() }
    }

    /// A line for each option that the mounted volume does not have.
    pub fn contradictions(&self, mounted: &MountSpec) -> Vec<String> {
        [self.unknown.clone(), self.spec.contradictions(mounted)].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Message {
        #[serde(with = "super")]
        options: VolumeSpec,
    }

    #[test]
    fn options_keep_the_form_of_the_first_version() {
        let mut options = VolumeSpec { read_only: true, nosuid: true, ..VolumeSpec::default() };
        options.put("follow", "1500ms").unwrap();
        options.put("upload-limit", "1MiB").unwrap();
        let text = serde_json::to_string(&Message { options: options.clone() }).unwrap();
        let expected = r#"{"options":{"follow":{"nanos":500000000,"secs":1},"nosuid":true,"read-only":true,"upload-limit-bytes-per-s":1048576}}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap().options, options);
    }

    #[test]
    fn messages_of_the_first_version_are_read() {
        let text = r#"{"options":{"read-only":false,"allow-other":true,"nosuid":false,"nodev":false,"noexec":true,
            "dontcache":true,"transport":"dev","take-over":true,"follow":{"secs":5,"nanos":0},
            "upload-limit-bytes-per-s":65536}}"#;
        let options = serde_json::from_str::<Message>(text).unwrap().options;
        assert!(options.allow_other && options.noexec && options.dontcache && options.take_over && !options.read_only);
        assert_eq!((options.follow.unwrap().0, options.upload_limit.unwrap().0), (Duration::from_secs(5), 65536));
        assert_eq!(serde_json::from_str::<Message>(r#"{"options":{}}"#).unwrap().options, VolumeSpec::default());
        assert!(serde_json::from_str::<Message>(r#"{"options":{"colour":"blue"}}"#).is_err());
    }

    #[test]
    fn later_options_are_settings() {
        let mut options = VolumeSpec { nodev: true, ..VolumeSpec::default() };
        let first = options.clone();
        options.put("dirty-limit", "1MiB").unwrap();
        options.put("dirty-expire", "5s").unwrap();
        let (kept, later) = split(&options);
        assert_eq!(kept, first);
        let mut again = kept;
        later.iter().try_for_each(|(name, value)| again.put(name, value)).unwrap();
        assert_eq!((again, later.len()), (options, 2));
    }
}
