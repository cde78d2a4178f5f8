//! The objects in the manifests and in the chart, read by the programs that users have.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::rig::{Output, Scratch, run};
use crate::tools::Tools;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The oldest version of Kubernetes for which the manifests are.
const OLDEST: &str = "1.29";

/// The program by which YAML becomes JSON.
const TO_JSON: &str =
    "import json, sys, yaml; json.dump([it for it in yaml.safe_load_all(sys.stdin) if it], sys.stdout)";

pub(crate) fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name).canonicalize().unwrap()
}

/// The objects of an overlay, as text.
pub(crate) fn kustomize(tools: &Tools, overlay: &str) -> String {
    let mut command = tools.kustomize();
    command.arg(dist("kubernetes").join(overlay));
    let built = run(command);
    built.expect(0, &[]);
    assert!(!built.text.to_lowercase().contains("warning"), "{}", built.text);
    built.text
}

/// Runs helm on the chart, with values.
pub(crate) fn helm(arguments: &[&str], values: &[&str]) -> Output {
    let mut command = Command::new("helm");
    command.args(arguments).arg(dist("helm/slackwater"));
    // A helm that was built without a version takes the cluster for an old one.
    if arguments[0] == "template" {
        command.arg("--kube-version=1.34.0");
    }
    command.args(values.iter().map(|value| format!("--set={value}")));
    run(command)
}

/// Compares objects with the schemas of the oldest Kubernetes.
pub(crate) fn validate(tools: &Tools, text: &str) -> Output {
    let scratch = Scratch::new();
    let path = scratch.path.join("objects.yaml");
    fs::write(&path, text).unwrap();
    let mut command = tools.python();
    command.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", OLDEST]).arg(path);
    run(command)
}

/// Objects by kind and name.
pub(crate) struct Objects(BTreeMap<(String, String), Value>);

impl Objects {
    /// The objects in a text.
    pub(crate) fn of(tools: &Tools, text: &str) -> Self {
        let scratch = Scratch::new();
        let path = scratch.path.join("objects.yaml");
        fs::write(&path, text).unwrap();
        let mut convert = tools.python();
        convert.args(["-c", TO_JSON]).stdin(fs::File::open(path).unwrap());
        let converted = run(convert);
        converted.expect(0, &[]);
        let objects: Vec<Value> = serde_json::from_str(&converted.text).unwrap();
        let name = |value: &Value| value.as_str().unwrap().to_owned();
        Self(objects.into_iter().map(|it| ((name(&it["kind"]), name(&it["metadata"]["name"])), it)).collect())
    }

    pub(crate) fn named(&self, kind: &str, name: &str) -> &Value {
        &self.0[&(kind.to_owned(), name.to_owned())]
    }

    /// The containers of the plugin's pod.
    pub(crate) fn containers(&self) -> Vec<Value> {
        let pod = &self.named("DaemonSet", "slackwater-csi")["spec"]["template"]["spec"];
        pod["containers"].as_array().unwrap().clone()
    }

    /// All but those of some kinds. Lists whose order has no meaning are sorted by name.
    pub(crate) fn sorted(mut self, without: &[&str]) -> BTreeMap<(String, String), Value> {
        self.0.retain(|(kind, _), _| !without.contains(&kind.as_str()));
        self.0.values_mut().for_each(sort);
        self.0
    }
}

fn sort(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(sort);
            items.sort_by_key(|item| item.get("name").map(ToString::to_string));
        }
        Value::Object(members) => members.values_mut().for_each(sort),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
