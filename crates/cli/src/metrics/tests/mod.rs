//! The rendered text, its bounds, its documentation, and clients of every kind.

mod clients;
mod dist;
mod documented;
mod page;
mod series;

use std::sync::Arc;

use slackwater::backend::MemBackend;
use slackwater::{Engine, ManualClock, Timestamp, Tunables};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_control::protocol::{Container, MemoryPressure, ObjectStatus, Shrinker, Status, Tenant};

use crate::metrics::render::Renderer;
use crate::metrics::{Snapshot, Unmounts};

use self::page::Page;

/// A snapshot of an engine with one volume without data.
fn snapshot(volumes: Vec<(String, Status)>) -> Snapshot {
    let arena = Arena::create(&ArenaConfig::memfd(16 << 20)).unwrap();
    let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
    let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(1))), tunables);
    engine.mount("volume", Arc::new(MemBackend::new())).unwrap();
    Snapshot {
        tenants: Vec::new(),
        engine: Some(engine.status()),
        shrinkers: [(Some(5), 7), (None, 1)]
            .map(|(count, deferred)| Shrinker { name: "sb-x".to_owned(), count, deferred })
            .into(),
        memory_pressure: MemoryPressure { sources: vec!["/proc/pressure".to_owned()], events: 3, freed_objects: 40 },
        volumes,
        unmounts: Unmounts::default(),
    }
}

/// A tenant that is a container, of a pod with a name.
fn container(id: u64, name: &str) -> Tenant {
    let text = |text: &str| Some(text.to_owned());
    let container = Container {
        namespace: text("default"),
        pod: text("web-0"),
        pod_uid: text("0a1b"),
        container_id: text("4f5e"),
        ..Container::default()
    };
    Tenant { limit_bytes: Some(1), container, ..Tenant::sample(id, name) }
}

/// A container within all pods.
fn nested() -> Vec<Tenant> {
    vec![
        Tenant { parent: Some(2), ..container(1, "/a") },
        Tenant { limit_bytes: Some(2), ..Tenant::sample(2, "/pods") },
    ]
}

/// A snapshot of one object volume with `tenants`, which are all.
fn of_tenants(tenants: Vec<Tenant>) -> Snapshot {
    let object = Some(ObjectStatus::sample());
    let volumes = vec![("/mnt".to_owned(), Status { tenants: tenants.clone(), object, ..Status::sample() })];
    Snapshot { tenants, ..snapshot(volumes) }
}

fn render(renderer: &mut Renderer, snapshot: &Snapshot) -> Page {
    Page::parse(&renderer.render(snapshot))
}
