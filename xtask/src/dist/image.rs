//! The container image: a directory in the layout of the Open Container Initiative, written as plain files.
//!
//! The image has one layer with the command, its configuration and empty directories. It has no other program, and no
//! certificates: object volumes over TLS need those of the host, as docs/INSTALL.md shows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::Release;
use super::command::{gzip, output, sha256};
use super::tree::{Tree, make_folder};
use crate::folders::{self, cannot};

const TYPES: &str = "application/vnd.oci.image";

/// The image in `folder`.
pub(super) fn make(release: &Release, tree: &Tree, folder: &Path) -> Result<PathBuf, String> {
    let image = folder.join(format!("slackwater-{}-oci-{}", release.version, release.target.debian));
    folders::remove(&image)?;
    let blobs = image.join("blobs/sha256");
    make_folder(&blobs)?;
    let blob = |name: &str, bytes: &[u8]| -> Result<Value, String> {
        let path = release.work.join(name);
        fs::write(&path, bytes).map_err(|error| cannot(&path, &error))?;
        let digest = sha256(&path)?;
        let kept = blobs.join(&digest);
        fs::copy(&path, &kept).map_err(|error| cannot(&kept, &error))?;
        Ok(json!({ "digest": format!("sha256:{digest}"), "size": bytes.len() }))
    };

    let archive = layer(release, tree)?;
    let contents = format!("sha256:{}", sha256(&archive)?);
    let layer = typed(blob("layer.tar.gz", &gzip(&archive)?)?, "layer.v1.tar+gzip");
    let created = release.date("+%Y-%m-%dT%H:%M:%SZ")?;
    let configuration = json!({
        "created": created,
        "architecture": release.target.debian,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/slackwater"],
            "Cmd": ["daemon", "--config", "/etc/slackwater.toml"],
            "Env": ["PATH=/usr/bin:/usr/sbin"],
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "slackwater",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [contents] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    });
    let configuration = typed(blob("config.json", configuration.to_string().as_bytes())?, "config.v1+json");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": format!("{TYPES}.manifest.v1+json"),
        "config": configuration,
        "layers": [layer],
    });
    let mut manifest = typed(blob("manifest.json", manifest.to_string().as_bytes())?, "manifest.v1+json");
    manifest["platform"] = json!({ "architecture": release.target.debian, "os": "linux" });
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": release.version });
    let index = json!({ "schemaVersion": 2, "mediaType": format!("{TYPES}.index.v1+json"), "manifests": [manifest] });
    for (name, value) in [("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })), ("index.json", index)] {
        let path = image.join(name);
        fs::write(&path, value.to_string()).map_err(|error| cannot(&path, &error))?;
    }
    Ok(image)
}

/// A description of a blob, with its type.
fn typed(mut blob: Value, name: &str) -> Value {
    blob["mediaType"] = format!("{TYPES}.{name}").into();
    blob
}

/// The uncompressed archive of the layer.
fn layer(release: &Release, tree: &Tree) -> Result<PathBuf, String> {
    let (root, archive) = (release.work.join("image"), release.work.join("layer.tar"));
    tree.only(&["usr/bin", "usr/sbin", "etc"].map(Path::new)).write(&root)?;
    for folder in ["dev/shm", "mnt", "proc", "run", "sys", "tmp"] {
        make_folder(&root.join(folder))?;
    }
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=ustar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", release.epoch)).arg("--directory").arg(&root).arg("--file").arg(&archive).arg(".");
    output(release.dated(&mut tar))?;
    Ok(archive)
}
