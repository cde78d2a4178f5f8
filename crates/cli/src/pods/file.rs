//! The file with the names of pods: one JSON document in the runtime directory, which only this user can write.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use slackwater_control::pod_cgroup::is_pod_uid;
use slackwater_host::Printable as _;

use super::{Names, PODS_MAX, PodName};

/// Maximum bytes of a file with [`PODS_MAX`] pods.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    pods: Names,
}

/// The names in `path`; none if there is no such file, or if it is damaged.
pub(super) fn read(path: &Path) -> Names {
    let read = || -> io::Result<Document> {
        let mut text = String::new();
        File::open(path)?.take(BYTES_MAX).read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    };
    match read() {
        Ok(Document { pods, .. }) => pods.into_iter().filter(is_valid).take(PODS_MAX).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Names::new(),
        Err(error) => {
            tracing::warn!("the names of pods in {} are lost: {error}", path.printable());
            Names::new()
        }
    }
}

fn is_valid((uid, name): &(String, PodName)) -> bool {
    is_pod_uid(uid) && PodName::parse(&format!("{}/{}", name.namespace, name.name)).is_some()
}

/// Replaces the file. A process that is killed meanwhile leaves the old one.
pub(super) fn write(path: &Path, names: &Names) -> io::Result<()> {
    let text = serde_json::to_vec(&Document { version: 1, pods: names.clone() })?;
    let next = path.with_extension("new");
    fs::write(&next, text)?;
    fs::rename(&next, path).inspect_err(|_| drop(fs::remove_file(&next)))
}

/// Removes the file.
pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}", path.printable());
    }
}
