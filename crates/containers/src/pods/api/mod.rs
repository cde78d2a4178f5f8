//! The API of Kubernetes, as far as it has the annotations of a pod.
//!
//! A process in a pod finds the server in its environment, and a token and the certificate of the server's authority in
//! files. kubelet replaces the token every hour, so it is read for each request.
//!
//! # Invariants
//! A1. The token is sent only to a server with a certificate of that authority, directly, over TLS.
//! A2. An answer is at most [`ANSWER_BYTES_MAX`] long, and arrives within [`ANSWER_WITHIN`]. Anything else is an error.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode};
use serde::Deserialize;
use slackwater_control::exit::{Failure, Reason};
use slackwater_host::Printable as _;

use crate::limits::Limits;
use crate::pods::{Pod, limits_of};

/// The files of the pod that this process is in.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";
const PORT_VARIABLE: &str = "KUBERNETES_SERVICE_PORT";

/// Time limit of an answer. A publish of a volume waits for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Annotations have at most 256 KiB, and the rest of the metadata seldom as much.
const ANSWER_BYTES_MAX: usize = 2 << 20;
/// The form of an answer with only the metadata of an object, not the whole pod.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Where the server is, and what is needed to ask it.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    url: String,
    /// The directory of the token and the certificate.
    account: PathBuf,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    uid: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Api {
    /// The server of the cluster in which this process is. `None` outside of one.
    pub(crate) fn of_cluster() -> Option<Self> {
        let host = std::env::var(HOST_VARIABLE).ok().filter(|host| !host.is_empty())?;
        let port = std::env::var(PORT_VARIABLE).ok()?.parse().ok()?;
        Some(Self::at(&host, port, Path::new(ACCOUNT)))
    }

    fn at(host: &str, port: u16, account: &Path) -> Self {
        // An IPv6 address has brackets in a URL.
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Self { url: format!("https://{host}:{port}"), account: account.to_owned() }
    }

    /// The limits in the annotations of a pod.
    ///
    /// # Errors
    /// As [`Api::annotations`]; or an annotation is invalid.
    ///
    /// # Blocking
    /// As [`Api::annotations`].
    pub(crate) fn limits(&self, pod: &Pod) -> Result<Limits, Failure> {
        limits_of(&self.annotations(pod)?)
    }

    /// The annotations of a pod.
    ///
    /// # Errors
    /// The server refuses or does not answer, or has no such pod. The message says what to do.
    ///
    /// # Blocking
    /// At most [`ANSWER_WITHIN`].
    fn annotations(&self, pod: &Pod) -> Result<BTreeMap<String, String>, Failure> {
        let path = format!("api/v1/namespaces/{}/pods/{}", segment(&pod.namespace)?, segment(&pod.name)?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::failed(format!("cannot ask {}: {error}", self.url)))?;
        let body = runtime.block_on(self.get(&path))?;
        let object: Object = serde_json::from_slice(&body)
            .map_err(|error| Failure::failed(format!("{} has sent no metadata of a pod: {error}", self.url)))?;
        if object.metadata.uid != pod.uid {
            // It was deleted, and another one has its name.
            return Err(absent(&path));
        }
        Ok(object.metadata.annotations)
    }

    async fn get(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let failed = |error: reqwest::Error| {
            let mut text = format!("no answer from {}: {error}", self.url);
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                text += &format!(": {inner}");
                cause = inner.source();
            }
            let reason = if error.is_timeout() { Reason::Deadline } else { Reason::Failed };
            Failure::new(reason, text)
        };
        let request = self.client()?.get(format!("{}/{path}", self.url)).bearer_auth(self.read("token")?.trim());
        let mut answer = request.send().await.map_err(failed)?;
        check_status(&answer, path)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(Failure::failed(format!("{} sends more than the metadata of a pod", self.url)));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// A1.
    fn client(&self) -> Result<Client, Failure> {
        let authority = self.read("ca.crt")?;
        let build = || {
            let certificates = Certificate::from_pem_bundle(authority.as_bytes())?;
            Client::builder()
                .tls_certs_only(certificates)
                .https_only(true)
                .no_proxy()
                .redirect(Policy::none())
                .timeout(ANSWER_WITHIN)
                .default_headers(HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(METADATA))]))
                .build()
        };
        build().map_err(|error| {
            Failure::failed(format!("{}: not certificates: {error}", self.account.join("ca.crt").printable()))
        })
    }

    fn read(&self, name: &str) -> Result<String, Failure> {
        let path = self.account.join(name);
        fs::read_to_string(&path).map_err(|error| {
            Failure::failed(format!("cannot read {}: {error}", path.printable()))
                .advise("give the plugin's pod a service account, with automountServiceAccountToken: true")
        })
    }
}

fn check_status(answer: &Response, path: &str) -> Result<(), Failure> {
    match answer.status() {
        StatusCode::OK => Ok(()),
        StatusCode::NOT_FOUND => Err(absent(path)),
        StatusCode::UNAUTHORIZED => Err(Failure::failed(format!("{path}: the server refuses the plugin's token"))
            .advise("check that the service account of the plugin exists in this cluster")),
        StatusCode::FORBIDDEN => Err(Failure::failed(format!("{path}: the plugin may not read pods"))
            .advise("bind a role with the verb get on pods to its service account")),
        status => Err(Failure::failed(format!("{path}: the server answers {status}"))),
    }
}

fn absent(path: &str) -> Failure {
    Failure::new(Reason::NotMounted, format!("{path}: there is no such pod"))
}

/// A name that is one part of a path, and nothing more.
fn segment(name: &str) -> Result<&str, Failure> {
    let is_name = (1..=253).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
        && !name.starts_with('.');
    is_name.then_some(name).ok_or_else(|| Failure::usage(format!("`{}` is not a name of a pod", name.printable())))
}

#[cfg(test)]
mod cluster;
#[cfg(test)]
mod tests;
