//! Profiles of the AWS command line: `~/.aws/config` and `~/.aws/credentials`.
//!
//! `object_store` reads the environment, containers, instances and web identities. The profiles that most users have
//! are read here, as far as they hold keys, a region and an endpoint. Profiles that need a login or another program are
//! refused with the command that turns them into variables.

use std::collections::BTreeMap;
use std::fs;

use object_store::aws::AwsCredential;

use super::environment::Environment;

/// The settings of a profile.
#[derive(Default)]
pub(super) struct Profile {
    pub(super) keys: Option<AwsCredential>,
    pub(super) region: Option<String>,
    pub(super) endpoint_url: Option<String>,
}

type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// The endpoint of S3 in this environment, if it is not Amazon's own.
pub(super) fn endpoint(environment: &Environment) -> Option<String> {
    let set = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(|name| environment.get(name));
    let found = set.map(str::to_owned).or_else(|| read(environment).ok()?.endpoint_url);
    found.map(|endpoint| endpoint.trim_end_matches('/').to_owned())
}

/// The profile that `AWS_PROFILE` names, or the default one; empty if there are no files.
///
/// # Errors
/// A text for the user: the named profile does not exist, or needs more than a file gives.
///
/// # Blocking
/// Reads two files.
pub(super) fn read(environment: &Environment) -> Result<Profile, String> {
    let file = |variable, default| {
        let name = environment.get(variable).unwrap_or(default);
        let path = environment.path(name);
        let text = path.as_ref().and_then(|path| fs::read_to_string(path).ok());
        (path.unwrap_or_else(|| name.into()), text.unwrap_or_default())
    };
    let (config_path, config) = file("AWS_CONFIG_FILE", "~/.aws/config");
    let (credentials_path, credentials) = file("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials");
    let named = environment.get("AWS_PROFILE").or_else(|| environment.get("AWS_DEFAULT_PROFILE"));
    let name = named.unwrap_or("default");
    let (config, mut credentials) = (sections(&config), sections(&credentials));
    let mut settings = config
        .get(&format!("profile {name}"))
        .or_else(|| (name == "default").then(|| config.get("default")).flatten())
        .cloned()
        .unwrap_or_default();
    settings.append(&mut credentials.remove(name).unwrap_or_default());
    if settings.is_empty() && named.is_some() {
        return Err(format!(
            "the profile {name:?} (AWS_PROFILE) is neither in {} nor in {}. List profiles with `aws configure \
             list-profiles`",
            config_path.display(),
            credentials_path.display()
        ));
    }
    let has_keys = settings.contains_key("aws_access_key_id");
    let needs = ["sso_session", "sso_start_url", "role_arn", "credential_process"];
    if let Some(key) = needs.into_iter().find(|key| !has_keys && settings.contains_key(*key)) {
        // Keys in the environment win over the profile; so does anything that `object_store` finds by itself.
        if environment.get("AWS_ACCESS_KEY_ID").is_none() {
            return Err(format!(
                "the profile {name:?} gets its keys through {key}, which Slackwater does not follow. Put short-lived \
                 keys into the environment: eval \"$(aws configure export-credentials --profile {name} --format env)\""
            ));
        }
    }
    let services = settings.get("services").and_then(|name| config.get(&format!("services {name}")));
    let s3_endpoint = services.and_then(|service| service.get("s3.endpoint_url")).cloned();
    let token = settings.remove("aws_session_token");
    let keys = settings.remove("aws_access_key_id").zip(settings.remove("aws_secret_access_key"));
    Ok(Profile {
        endpoint_url: s3_endpoint.or_else(|| settings.remove("endpoint_url")),
        keys: keys.map(|(key_id, secret_key)| AwsCredential { key_id, secret_key, token }),
        region: settings.remove("region"),
    })
}

/// The `[sections]` of a file and their `key = value` lines. An indented line below `key =` is stored as `key.inner`.
fn sections(text: &str) -> Sections {
    let mut sections = Sections::new();
    let (mut section, mut parent) = (String::new(), String::new());
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            section = name.split_whitespace().collect::<Vec<_>>().join(" ");
            sections.entry(section.clone()).or_default();
        } else if let Some((key, value)) = trimmed.split_once('=') {
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
            let key = match line.starts_with([' ', '\t']) {
                true => format!("{parent}.{key}"),
                false => {
                    parent.clone_from(&key);
                    key
                }
            };
            if !value.is_empty() {
                sections.entry(section.clone()).or_default().insert(key, value.to_owned());
            }
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
# a comment
[default]
region = eu-central-1
[profile work]
region=us-west-2
services = local
[services local]
s3 =
  endpoint_url = http://127.0.0.1:9000
[profile login]
sso_session = corp
[ profile  plain ]
endpoint_url = http://127.0.0.1:9001/
";
    const CREDENTIALS: &str = "\
[default]
aws_access_key_id = KEY
aws_secret_access_key = SECRET=with=signs
[work]
aws_access_key_id=WORK
aws_secret_access_key=S
aws_session_token = T
";

    /// Runs `test` with the two files in a directory of its own.
    fn with_files(name: &str, test: impl FnOnce(&dyn Fn(&[(&str, &str)]) -> Environment)) {
        let dir = std::env::temp_dir().join(format!("slackwater-profile-{}-{name}", std::process::id()));
        fs::create_dir_all(dir.join(".aws")).expect("a scratch directory");
        fs::write(dir.join(".aws/config"), CONFIG).expect("a file");
        fs::write(dir.join(".aws/credentials"), CREDENTIALS).expect("a file");
        let home = dir.to_str().expect("UTF-8").to_owned();
        test(&|variables| match *variables {
            [] => Environment::of([("HOME", &home)]),
            [one] => Environment::of([("HOME", &home), one]),
            [one, two] => Environment::of([("HOME", &home), one, two]),
            _ => unreachable!("at most two"),
        });
        fs::remove_dir_all(dir).expect("ours");
    }

    #[test]
    fn the_default_profile_is_used_without_being_named() {
        with_files("default", |environment| {
            let profile = read(&environment(&[])).expect("it is there");
            let keys = profile.keys.expect("it has keys");
            assert_eq!((keys.key_id.as_str(), keys.secret_key.as_str()), ("KEY", "SECRET=with=signs"));
            assert_eq!(profile.region.as_deref(), Some("eu-central-1"));
        });
    }

    #[test]
    fn a_named_profile_may_have_services_and_a_token() {
        with_files("named", |environment| {
            let profile = read(&environment(&[("AWS_PROFILE", "work")])).expect("it is there");
            assert_eq!(profile.keys.expect("it has keys").token.as_deref(), Some("T"));
            assert_eq!(profile.region.as_deref(), Some("us-west-2"));
            assert_eq!(profile.endpoint_url.as_deref(), Some("http://127.0.0.1:9000"));
            assert_eq!(
                endpoint(&environment(&[("AWS_PROFILE", "plain")])).as_deref(),
                Some("http://127.0.0.1:9001"),
                "without the last slash"
            );
        });
    }

    #[test]
    fn a_profile_that_needs_a_login_names_the_command() {
        with_files("login", |environment| {
            let error = read(&environment(&[("AWS_PROFILE", "login")])).err().expect("refused");
            assert!(error.contains("sso_session") && error.contains("export-credentials"), "{error}");
            let keys = [("AWS_PROFILE", "login"), ("AWS_ACCESS_KEY_ID", "K")];
            assert!(read(&environment(&keys)).is_ok(), "keys in the environment win");
        });
    }

    #[test]
    fn an_unknown_profile_is_an_error_and_no_files_are_none() {
        with_files("unknown", |environment| {
            let error = read(&environment(&[("AWS_PROFILE", "typo")])).err().expect("refused");
            assert!(error.contains("typo") && error.contains(".aws/config"), "{error}");
        });
        assert!(read(&Environment::of([("HOME", "/nowhere")])).is_ok());
    }
}
