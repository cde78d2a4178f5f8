//! The manifests and the chart in `dist` are valid, agree with each other, and use options that the command has.
//!
//! No test here needs a cluster. A test is skipped if a program is missing that reads the files. Building helm takes minutes, so
//! it is not installed; by hand: `go install helm.sh/helm/v3/cmd/helm@latest`.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../../../mount/tests/needs/mod.rs"]
mod needs;
mod objects;
#[path = "../rig/mod.rs"]
mod rig;
mod tools;

use std::fs;

use serde_json::Value;

use crate::objects::{Objects, VERSION, helm, kustomize, validate};
use crate::rig::{Scratch, run};
use crate::tools::Tools;

/// Each overlay, and the values of the chart that give the same objects.
const PLACES: [(&str, &str); 2] = [("daemon-on-host", "daemon.place=host"), ("daemon-in-pod", "daemon.place=pod")];

#[test]
fn the_manifests_fit_the_schemas_of_kubernetes() {
    let Some(tools) = Tools::find() else { return };
    for overlay in ["daemon-on-host", "daemon-in-pod", "examples/cluster"] {
        let text = kustomize(&tools, overlay);
        validate(&tools, &text).expect(0, &["daemonset/slackwater-csi"]);
        // The validator refuses unknown fields.
        validate(&tools, &text.replace("attachRequired", "attackRequired")).expect(1, &["attackRequired"]);
    }
    for example in ["pod.yaml", "cluster/object.yaml"] {
        validate(&tools, &fs::read_to_string(objects::dist("kubernetes/examples").join(example)).unwrap())
            .expect(0, &[]);
    }
}

#[test]
fn the_chart_passes_its_linter_and_gives_the_objects_of_the_manifests() {
    if needs::are_missing(&["helm"]) {
        return;
    }
    let Some(tools) = Tools::find() else { return };
    helm(&["lint", "--strict"], &[]).expect(0, &["0 chart(s) failed"]);
    for (overlay, values) in PLACES {
        let rendered = helm(&["template", "--namespace=slackwater", "slackwater"], &[values]);
        rendered.expect(0, &[]);
        validate(&tools, &rendered.text).expect(0, &["daemonset/slackwater-csi"]);
        let (chart, manifests) =
            (Objects::of(&tools, &rendered.text), Objects::of(&tools, &kustomize(&tools, overlay)));
        // The chart is installed in a namespace that exists.
        assert_eq!(chart.sorted(&[]), manifests.sorted(&["Namespace"]), "{overlay}");
    }
}

#[test]
fn the_chart_refuses_values_that_it_does_not_know() {
    if needs::are_missing(&["helm"]) {
        return;
    }
    for (values, word) in [
        ("daemon.place=nowhere", "place"),
        ("pools.fast=relative", "fast"),
        ("daemn.place=pod", "daemn"),
        ("sidecars.resizer=sig-storage/csi-resizer", "resizer"),
        ("storageClasses[0].name=a", "pool"),
        ("storageClasses[0].limits.dirty=1", "dirty"),
        ("storageClasses[0].secrets=keys", "secrets"),
    ] {
        helm(&["template", "slackwater"], &[values]).expect(1, &["specifications of the schema", word]);
    }
}

#[test]
fn the_storage_classes_of_the_chart_are_those_of_the_examples() {
    if needs::are_missing(&["helm"]) {
        return;
    }
    let Some(tools) = Tools::find() else { return };
    let values = [
        "storageClasses[0].name=slackwater-directory",
        "storageClasses[0].pool=directory",
        "storageClasses[0].limits.dirty-limit=256MiB",
        "storageClasses[0].expand=true",
        "storageClasses[1].name=archive",
        "storageClasses[1].pool=s3://bucket/volumes",
        "storageClasses[1].secret=keys",
    ];
    let rendered = helm(&["template", "slackwater", "--show-only=templates/storageclasses.yaml"], &values);
    rendered.expect(0, &[]);
    let class = |objects: &Objects| {
        let mut class = objects.named("StorageClass", "slackwater-directory").clone();
        class["metadata"].as_object_mut().unwrap().remove("labels");
        class
    };
    let rendered = Objects::of(&tools, &rendered.text);
    assert_eq!(class(&rendered), class(&Objects::of(&tools, &kustomize(&tools, "examples/cluster"))));
    let roles = helm(&["template", "slackwater", "--show-only=templates/rbac.yaml"], &values);
    let roles = Objects::of(&tools, &roles.text);
    let is_of_secrets = |rule: &&Value| rule["resources"][0] == "secrets";
    let rules = roles.named("Role", "slackwater-csi")["rules"].as_array().unwrap().clone();
    let of_secrets: Vec<_> = rules.iter().filter(is_of_secrets).map(|rule| rule["resourceNames"].to_string()).collect();
    assert_eq!(of_secrets, ["[\"keys\"]"], "no other secret can be read");
    let parameters = &rendered.named("StorageClass", "archive")["parameters"];
    for call in ["provisioner", "node-stage"] {
        assert_eq!(parameters[format!("csi.storage.k8s.io/{call}-secret-name")], "keys", "{parameters}");
        assert_eq!(parameters[format!("csi.storage.k8s.io/{call}-secret-namespace")], "default", "{parameters}");
    }
}

#[test]
fn the_command_has_the_options_of_the_manifests() {
    let Some(tools) = Tools::find() else { return };
    let scratch = Scratch::new();
    let accepts = |arguments: &[String]| run(scratch.command(arguments.iter().map(String::as_str).chain(["--help"])));
    for (overlay, _) in PLACES {
        let objects = Objects::of(&tools, &kustomize(&tools, overlay));
        let containers = objects.containers();
        let own = containers.iter().filter(|it| it["image"] == format!("slackwater:{VERSION}"));
        let mut commands = Vec::new();
        for container in own {
            let arguments = container["args"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned());
            let mut arguments: Vec<_> = arguments.collect();
            accepts(&arguments).expect(0, &["Usage: slackwater"]);
            arguments.push("--no-such-option".to_owned());
            accepts(&arguments).expect(2, &["--no-such-option"]);
            commands.push(arguments.swap_remove(0));
        }
        commands.sort();
        let expected = if overlay == "daemon-in-pod" { vec!["csi", "daemon"] } else { vec!["csi"] };
        assert_eq!(commands, expected, "{overlay}");
    }
}

#[test]
fn versions_are_those_of_the_command() {
    let read = |name: &str| fs::read_to_string(objects::dist(name)).unwrap();
    let chart = read("helm/slackwater/Chart.yaml");
    for key in ["version", "appVersion"] {
        assert!(chart.lines().any(|line| line == format!("{key}: {VERSION}")), "{key} in Chart.yaml");
    }
    for name in ["base/daemonset.yaml", "daemon-in-pod/daemonset.yaml"] {
        let text = read(&format!("kubernetes/{name}"));
        let images: Vec<_> = text.split("image: slackwater:").skip(1).collect();
        assert!(!images.is_empty() && images.iter().all(|rest| rest.starts_with(&format!("{VERSION}\n"))), "{name}");
    }
    // The daemon's container and the file that configures it.
    let values = read("helm/slackwater/values.yaml");
    for line in read("kubernetes/daemon-in-pod/slackwater.toml").lines() {
        assert!(values.contains(line), "values.yaml has not {line:?}");
    }
}

/// Every image but ours is of the sidecars, and none has a host: clusters name their own.
#[test]
fn images_are_named_without_a_registry() {
    let Some(tools) = Tools::find() else { return };
    for (overlay, _) in PLACES {
        for container in Objects::of(&tools, &kustomize(&tools, overlay)).containers() {
            let image = container["image"].as_str().unwrap();
            assert!(image.starts_with("slackwater:") || image.starts_with("sig-storage/"), "{image}");
        }
    }
    let cluster = Objects::of(&tools, &kustomize(&tools, "examples/cluster"));
    let hosts = |container: &&Value| !container["image"].as_str().unwrap().starts_with("registry.example/");
    assert!(!cluster.containers().iter().any(|it| hosts(&it)), "an image that the example forgets");
}
