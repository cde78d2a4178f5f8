//! The programs that read manifests. Those that no package of Debian has are installed once, into the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;

use crate::needs;

/// Debian 12 has a kubectl with kustomize 2, which cannot read our files. This version builds with Go 1.26.
const KUSTOMIZE: &str = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1";
/// A package of Python that has the schemas of Kubernetes 1.25 to 1.37, and uses a reader of YAML.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";

/// The lock under which one test at a time installs programs.
static INSTALLING: Mutex<()> = Mutex::new(());

/// How overlays are built, and YAML is read and compared with schemas.
pub(crate) struct Tools {
    /// A program, and its arguments before the path of an overlay.
    kustomize: (PathBuf, &'static str),
    /// The directory of the packages of Python.
    packages: PathBuf,
}

impl Tools {
    /// `None`: the calling test is skipped.
    pub(crate) fn find() -> Option<Self> {
        let _installing = INSTALLING.lock().unwrap();
        Some(Self { packages: validator()?, kustomize: kustomize()? })
    }

    pub(crate) fn kustomize(&self) -> Command {
        let mut command = Command::new(&self.kustomize.0);
        command.arg(self.kustomize.1);
        command
    }

    pub(crate) fn python(&self) -> Command {
        let mut command = Command::new("python3");
        command.env("PYTHONPATH", &self.packages);
        command
    }
}

fn kustomize() -> Option<(PathBuf, &'static str)> {
    let version = Command::new("kubectl").args(["version", "--client", "--output=json"]).output();
    let version = version.ok().and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok());
    // Before version 1.21, kubectl had kustomize 2, and did not report that.
    if version.is_some_and(|version| version.get("kustomizeVersion").is_some()) {
        return Some(("kubectl".into(), "kustomize"));
    }
    let folder = folder(KUSTOMIZE);
    install("go", Command::new("go").args(["install", KUSTOMIZE]).env("GOBIN", &folder), &folder)?;
    Some((folder.join("kustomize"), "build"))
}

fn validator() -> Option<PathBuf> {
    let folder = folder(VALIDATOR);
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", VALIDATOR, "--target"]).arg(&folder);
    install("pip3", &mut pip, &folder)?;
    Some(folder)
}

/// The directory of a package.
fn folder(package: &str) -> PathBuf {
    let name: String =
        package.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
    Path::new(env!("CARGO_BIN_EXE_slackwater")).parent().unwrap().join(name)
}

/// Runs a command that fills `folder`, unless an earlier one has.
fn install(program: &str, command: &mut Command, folder: &Path) -> Option<()> {
    if folder.is_dir() {
        return Some(());
    }
    if needs::are_missing(&[program]) {
        return None;
    }
    let output = command.output().unwrap();
    if !output.status.success() {
        let _ = fs::remove_dir_all(folder);
        needs::skip(&format!("{program} cannot install: {}", String::from_utf8_lossy(&output.stderr)));
        return None;
    }
    Some(())
}
