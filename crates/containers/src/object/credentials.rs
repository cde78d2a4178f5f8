//! Credentials of one volume, in place of those in the environment of the process.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};

use slackwater_control::exit::Failure;
use slackwater_control::name;

/// Variables of a store, as a platform gives them with a volume; none, if the environment of the process counts. The
/// [`Debug`](fmt::Debug) form has their names only.
#[derive(Clone, Default, Eq, PartialEq)]
pub(crate) struct Credentials(BTreeMap<String, String>);

/// The variables that a user of a platform may set. None names a file or a program: it would be one of the machine.
const SETTINGS: [&str; 14] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ALLOW_HTTP",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
];

/// The keys of which each place needs one. Without it, the identity of the machine would be used instead.
const KEYS: [(&str, &[&str]); 3] = [
    ("s3:", &["AWS_SECRET_ACCESS_KEY"]),
    ("gs:", &["GOOGLE_SERVICE_ACCOUNT_KEY"]),
    ("az:", &["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_TOKEN"]),
];

impl Credentials {
    /// The secrets that came with a request for a volume at `place`, a path or a URL, or in a store that is not known.
    ///
    /// # Errors
    /// The place has no credentials, a secret has an unknown name, or the key is missing. The text has names only.
    pub(crate) fn of_secrets(secrets: HashMap<String, String>, place: Option<&str>) -> Result<Self, Failure> {
        if secrets.is_empty() {
            return Ok(Self::default());
        }
        if place.is_some_and(|place| !name::is_url(place.as_ref())) {
            return Err(Failure::usage("there is a secret for the volume, which is a directory")
                .advise("leave the secret out of the storage class"));
        }
        if let Some(unknown) = secrets.keys().find(|name| !SETTINGS.contains(&name.as_str())) {
            return Err(Failure::usage(format!("the secret has the key `{}`", unknown.escape_default()))
                .advise(format!("known keys: {}", SETTINGS.join(", "))));
        }
        let is_asked = |scheme| place.is_none_or(|place| place.starts_with(scheme));
        let keys: Vec<_> = KEYS.iter().filter(|(scheme, _)| is_asked(*scheme)).flat_map(|(_, keys)| *keys).collect();
        let has = |key: &&&str| secrets.get(**key).is_some_and(|value| !value.is_empty());
        if !keys.is_empty() && !keys.iter().any(has) {
            let keys = keys.into_iter().copied().collect::<Vec<_>>().join(" or ");
            return Err(Failure::usage(format!("the secret does not have the key {keys}")));
        }
        Ok(Self(secrets.into_iter().collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text of a file that `slackwater mount --credentials` reads.
    pub(crate) fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (name, value)| {
            // To a string, it cannot fail.
            let _ = writeln!(text, "{name}={}", serde_json::Value::from(value.as_str()));
            text
        })
    }

    /// The variables, each with its value.
    #[cfg(feature = "object")]
    pub(super) fn variables(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(name, value)| (name.clone(), value.clone()))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(names: &[&str]) -> HashMap<String, String> {
        names.iter().map(|name| ((*name).to_owned(), "hush \"x\"\n".to_owned())).collect()
    }

    #[test]
    fn a_secret_has_the_keys_of_its_store_and_nothing_of_the_machine() {
        let keys = secrets(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]);
        let given = Credentials::of_secrets(keys.clone(), Some("s3://bucket/x")).unwrap();
        assert_eq!(
            given.text(),
            "AWS_ACCESS_KEY_ID=\"hush \\\"x\\\"\\n\"\nAWS_SECRET_ACCESS_KEY=\"hush \\\"x\\\"\\n\"\n"
        );
        assert!(!format!("{given:?}").contains("hush"));
        assert!(Credentials::of_secrets(HashMap::new(), Some("/srv/x")).unwrap().is_empty());
        assert!(Credentials::of_secrets(keys.clone(), Some("file:///srv/x")).is_ok());
        assert!(Credentials::of_secrets(keys.clone(), None).is_ok());
        assert!(Credentials::of_secrets(secrets(&["AWS_REGION"]), None).is_err());
        for (secrets, place, part) in [
            (keys.clone(), "/srv/x", "directory"),
            (keys.clone(), "gs://bucket/x", "GOOGLE_SERVICE_ACCOUNT_KEY"),
            (secrets(&["AWS_REGION"]), "s3://bucket/x", "AWS_SECRET_ACCESS_KEY"),
            (secrets(&["AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE"]), "s3://bucket/x", "_FILE"),
            (secrets(&["AWS_WEB_IDENTITY_TOKEN_FILE"]), "s3://bucket/x", "_FILE"),
            (secrets(&["GOOGLE_APPLICATION_CREDENTIALS"]), "gs://bucket/x", "_CREDENTIALS"),
        ] {
            let refusal = Credentials::of_secrets(secrets, Some(place)).unwrap_err().to_string();
            assert!(refusal.contains(part) && !refusal.contains("hush"), "{refusal}");
        }
    }
}
