//! Every option through every source and back, and what documents state about options.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{CommandFactory as _, Parser as _};
use serde::Serialize;
use serde_json::Value;
use slackwater_control::protocol::{Message, MountRequest, Request};
use slackwater_control::spec::fields::{self, is_switch, value_name};
use slackwater_control::spec::values::{Age, Follow};
use slackwater_control::spec::wire::{Stated, split, texts};
use slackwater_control::spec::*;

use crate::arguments::{Arguments, Command, MountArguments};
use crate::commands::mount::options::apply;
use crate::server::start::Start;

/// The names of all options of a specification.
fn names(spec: &impl Serialize) -> Vec<String> {
    let Ok(Value::Object(fields)) = serde_json::to_value(spec) else { panic!("a specification is a structure") };
    fields.into_iter().map(|(name, _)| name).collect()
}

/// A value of an option, by its kind; none for a switch.
fn sample(name: &str) -> Option<&'static str> {
    let kind = value_name::<MountSpec>(name)?;
    Some(match (name, kind.as_str()) {
        ("tenant-by", _) => "cgroup",
        ("transport", _) => "dev",
        (_, "SIZE") => "67108864",
        (_, "TIME") => "5s",
        (_, "PERCENT") => "7",
        (_, "ADDRESS") => "127.0.0.1:9810",
        (_, "TENANT=SIZE") => "/a=65536",
        (_, "TENANT=on|off") => "/a=off",
        (_, "FILE" | "TEXT") => "/dev/shm/x",
        (name, kind) => panic!("{name}: no sample of {kind}"),
    })
}

fn mount(words: &[String]) -> MountArguments {
    let words = ["slackwater", "mount", "/a", "/b"].map(str::to_owned).into_iter().chain(words.iter().cloned());
    let Command::Mount(arguments) = Arguments::parse_from(words).command else { panic!("the line says mount") };
    *arguments
}

/// The specification of a mount with one option, and the option as in a list.
fn mount_with(name: &str) -> (MountSpec, String) {
    let word = sample(name).map_or_else(|| name.to_owned(), |value| format!("{name}={value}"));
    let spec = mount(&[format!("--{word}")]).spec;
    assert_ne!(spec, MountSpec::default(), "{name}");
    (spec, word)
}

/// An option in a table.
fn in_table(name: &str) -> String {
    match sample(name) {
        None => format!("{name} = true"),
        Some(value) if name.starts_with("tenant-") && name != "tenant-by" => format!("{name} = [\"{value}\"]"),
        Some(value) => format!("{name} = \"{value}\""),
    }
}

#[test]
fn every_option_of_a_volume_comes_through_every_source_and_back() {
    for name in names(&VolumeSpec::default()) {
        let (spec, word) = mount_with(&name);
        let volume = spec.volume.clone();
        let value = sample(&name).unwrap_or(values::ON);

        let mut listed = mount(&[]);
        assert_eq!(apply(&mut listed, &word.replace(&name, &name.replace('-', "_"))).unwrap(), [""; 0], "{word}");
        assert_eq!(listed.spec, spec, "-o {word}");

        let table = format!("[volumes.a]\nsource = \"/a\"\nmountpoint = \"/b\"\n{}", in_table(&name));
        match toml::from_str::<ServerSpec>(&table) {
            Ok(config) => assert_eq!(config.volumes.values().next().unwrap().options, volume, "{table}"),
            Err(error) => assert!(name == NOT_CONFIGURED && error.to_string().contains("unknown field"), "{error}"),
        }

        let [source, mountpoint] = ["/a", "/b"].map(PathBuf::from);
        let options = volume.clone();
        let request = MountRequest { name: None, source, mountpoint, options, credentials: None, is_repeated: false };
        let line = Message::request(Request::Mount(request.clone())).line();
        assert_eq!(serde_json::from_slice::<Message<Request>>(&line).unwrap().body, Request::Mount(request), "{name}");

        let (mut kept, settings) = split(&volume);
        settings.iter().for_each(|(key, value)| kept.put(key, value).unwrap());
        assert_eq!(kept, volume, "{name} in a keeper");

        let mut changed = VolumeSpec::default();
        match changed.change(&name, value) {
            Ok(()) => assert_eq!(changed, volume, "set {name}={value}"),
            Err(failure) => assert!(!CHANGEABLE.contains(&name.as_str()), "{failure}"),
        }
        assert_eq!(changed.put(&name, if is_switch(&volume, &name) { values::OFF } else { NONE }), Ok(()));
        assert_eq!(changed, VolumeSpec::default(), "{name} is reset");

        let is_compared = !NOT_COMPARED.contains(&name.as_str());
        check_compared(&name, &spec, is_compared);
    }
}

#[test]
fn every_option_of_a_process_comes_through_every_source_and_back() {
    for name in fields::ids::<ServerSpec>().iter().map(|id| id.as_str().replace('_', "-")) {
        let (spec, word) = mount_with(&name);
        let mut listed = mount(&[]);
        assert_eq!(apply(&mut listed, &word).unwrap(), [""; 0], "{word}");
        assert_eq!(listed.spec, spec, "-o {word}");
        let config = toml::from_str::<ServerSpec>(&in_table(&name)).unwrap();
        assert_eq!(config, spec.server, "{name}");
        assert_eq!(ServerSpec::default().override_by(&config), Ok(config.clone()));
        let line = ["slackwater".to_owned(), "daemon".to_owned(), format!("--{word}")];
        let Command::Daemon(daemon) = Arguments::parse_from(line).command else { panic!("the line says daemon") };
        assert_eq!(daemon.server, config, "{name}");
        check_compared(&name, &spec, true);
    }
}

/// A further mount may state the option if the mounted volume has it.
#[track_caller]
fn check_compared(name: &str, spec: &MountSpec, is_compared: bool) {
    let stated = Stated::of_texts(&texts(spec));
    assert_eq!(stated.contradictions(spec), [""; 0], "{name}");
    let others = stated.contradictions(&MountSpec::default());
    assert_eq!(others.len(), usize::from(is_compared), "{name}: {others:?}");
    assert!(others.iter().all(|line| line.starts_with(&format!("--{name}"))), "{others:?}");
}

#[test]
fn a_process_gets_the_whole_specification() {
    let volume = names(&VolumeSpec::default());
    let server = fields::ids::<ServerSpec>();
    let all = volume.into_iter().chain(server.iter().map(|id| id.as_str().replace('_', "-")));
    let word = |name: String| match sample(&name) {
        Some(value) => format!("--{name}={value}"),
        None => format!("--{name}"),
    };
    let more = ["--keep", "--wait", "--credentials=/keys"].map(str::to_owned);
    let arguments = MountArguments { kept: true, ..mount(&all.map(word).chain(more).collect::<Vec<_>>()) };
    let text = serde_json::to_string(&Start::Mount(Box::new(arguments.clone()))).unwrap();
    let Start::Mount(again) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
    assert_eq!(format!("{arguments:?}"), format!("{again:?}"));
}

#[test]
fn options_of_an_unknown_name_contradict() {
    let stated = BTreeMap::from([("colour".to_owned(), "blue".to_owned())]);
    let lines = Stated::of_texts(&stated).contradictions(&MountSpec::default());
    assert_eq!(lines, ["--colour is blue here, and none there"]);
}

#[test]
fn settings_of_a_volume_are_checked() {
    let set = |key, value| VolumeSpec::default().change(key, value);
    assert_eq!(set("dirty-limit", "64MiB"), Ok(()));
    let wrong = [
        ("dirty-limit", "1KiB", "at least 1MiB"),
        ("dirty-limit", "lots", "dirty-limit=lots"),
        ("dirty-expire", "5", "30s"),
        ("dontcache", "none", "neither on nor off"),
        ("limit", "1MiB", "unknown setting"),
        ("nosuid", "on", "unknown setting"),
    ];
    for (key, value, why) in wrong {
        let failure = set(key, value).unwrap_err();
        assert!(failure.what.contains(why), "{key}={value}: {failure:?}");
    }
    let advice = set("limit", "1MiB").unwrap_err().to_string();
    assert!(advice.contains("dontcache=on|off, dirty-limit=SIZE|none, dirty-expire=TIME|none"), "{advice}");
}

#[test]
fn documents_name_the_options() {
    let has_key = |text: &str, name: &str| {
        text.lines().any(|line| line.trim_start_matches('#').starts_with(&format!("{name} = ")))
    };
    let example = include_str!("../../../../dist/slackwater.toml");
    let volume = names(&VolumeSpec::default()).into_iter().filter(|name| name != NOT_CONFIGURED);
    // Tables say the same as the lists of tenants.
    let server = names(&ServerSpec::default()).into_iter().filter(|name| !name.starts_with("tenant"));
    for name in volume.chain(server).chain(["tenant-by".to_owned()]) {
        assert!(has_key(example, &name), "dist/slackwater.toml lacks {name}");
    }
    let help = |command: &str| {
        let mut all = Arguments::command();
        all.find_subcommand_mut(command).unwrap().render_long_help().to_string()
    };
    for name in CHANGEABLE {
        assert!(help("set").contains(&format!("\n  {name}=")), "set --help lacks {name}");
    }
    for (name, _) in IN_CONTAINERS {
        for (document, text, word) in [
            ("DOCKER.md", include_str!("../../../../docs/DOCKER.md"), format!("`slackwater.{name}=")),
            ("KUBERNETES.md", include_str!("../../../../docs/KUBERNETES.md"), format!("`slackwater.{name}`")),
            ("the chart", include_str!("../../../../dist/helm/slackwater/values.schema.json"), format!("\"{name}\": ")),
        ] {
            assert!(text.contains(&word), "{document} lacks {word}");
        }
    }
}

#[test]
fn the_help_states_the_defaults() {
    let all = Arguments::command();
    let mount = all.find_subcommand("mount").unwrap();
    let default = |name: &str| {
        let option = mount.get_arguments().find(|option| option.get_long() == Some(name)).unwrap();
        let help = option.get_help().unwrap().to_string();
        help.split("[default: ").nth(1).and_then(|rest| rest.split(']').next()).unwrap().to_owned()
    };
    assert_eq!(default("dirty-ratio"), DIRTY_RATIO.to_string());
    assert_eq!(default("dirty-expire"), Age(DIRTY_EXPIRE).to_string());
    assert_eq!(default("follow"), Follow(FOLLOW).to_string());
    assert_eq!(default("tenant-by"), ServerSpec::default().tenant_by().to_string());
}
