//! The keys of a profile, read again from time to time: a program that logs in replaces them in the file.

use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;
use slackwater_sync::shim::Arc;
use tokio::time::Instant;

use super::environment::Environment;
use super::profile;
use super::time::now;

/// Keys are in use for this long after they were replaced in the file, at most.
const READ_EVERY: Duration = Duration::from_secs(10);

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct ProfileKeys {
    environment: Environment,
    known: Mutex<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    keys: Arc<AwsCredential>,
    read_at: Instant,
}

impl ProfileKeys {
    /// `keys` are those that the profile has now.
    pub(super) fn new(environment: Environment, keys: AwsCredential) -> Self {
        Self { environment, known: Mutex::new(Known { keys: Arc::new(keys), read_at: now() }) }
    }
}

#[async_trait]
impl CredentialProvider for ProfileKeys {
    type Credential = AwsCredential;

    /// A profile that cannot be read any more leaves the keys as they are: the store says whether they are good.
    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let known = self.known.lock().clone();
        if known.read_at.elapsed() < READ_EVERY {
            return Ok(known.keys);
        }
        let environment = self.environment.clone();
        let read = tokio::task::spawn_blocking(move || profile::read(&environment)).await;
        let mut known = self.known.lock();
        known.read_at = now();
        if let Some(keys) = read.ok().and_then(Result::ok).and_then(|profile| profile.keys) {
            known.keys = Arc::new(keys);
        }
        Ok(Arc::clone(&known.keys))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keys_that_were_replaced_are_used() {
        let file = std::env::temp_dir().join(format!("slackwater-keys-{}", std::process::id()));
        let write = |key: &str| {
            let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = S\n");
            fs::write(&file, text).expect("a scratch file");
        };
        let path = file.to_str().expect("UTF-8");
        let environment = Environment::of([
            ("AWS_SHARED_CREDENTIALS_FILE", path),
            ("AWS_CONFIG_FILE", "/nowhere"),
            ("HOME", "/nowhere"),
        ]);
        write("OLD");
        let keys = profile::read(&environment).expect("a profile").keys.expect("with keys");
        let provider = ProfileKeys::new(environment, keys);
        write("NEW");
        let now = async || provider.get_credential().await.expect("keys").key_id.clone();
        assert_eq!(now().await, "OLD", "the file is not read for each request");
        tokio::time::advance(READ_EVERY).await;
        assert_eq!(now().await, "NEW");
        fs::remove_file(&file).expect("ours");
        tokio::time::advance(READ_EVERY).await;
        assert_eq!(now().await, "NEW", "without a file, the last ones");
    }
}
