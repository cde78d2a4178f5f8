//! One suite for every backend and every layer: what the port promises, property by property.

mod bytes;
mod creation;
#[allow(dead_code, reason = "shared with the tests of the directory, which use all of it")]
mod fixture;
mod handles;
mod names;
mod ranges;
mod readdir;
mod xattrs;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use slackwater::backend::{Backend, Call, Limits, MemBackend};
use slackwater_backends::{Delay, DirBackend, Fault, Rate};

use fixture::{TempDir, Volume, as_nobody};

/// A property: its name for the report, and a function that panics where it does not hold.
type Property = (&'static str, fn(&Volume));

/// Lists functions as properties under their own names.
macro_rules! properties {
    ($($name:ident),* $(,)?) => {
        pub(crate) const PROPERTIES: &[crate::Property] = &[$((stringify!($name), $name)),*];
    };
}
use properties;

/// Checks each property on a fresh backend, which lives as long as what comes with it.
fn conforms<F>(fresh: impl Fn() -> (Arc<dyn Backend>, F)) {
    let mut broken = Vec::new();
    let names = [names::PROPERTIES, creation::PROPERTIES, readdir::PROPERTIES, handles::PROPERTIES].concat();
    let nodes = [bytes::PROPERTIES, ranges::PROPERTIES, xattrs::PROPERTIES].concat();
    for (name, property) in [names, nodes].concat() {
        let (backend, fixture) = fresh();
        let volume = Volume::new(backend);
        if catch_unwind(AssertUnwindSafe(|| property(&volume))).is_err() {
            broken.push(name);
        }
        drop((volume, fixture));
    }
    assert!(broken.is_empty(), "broken properties: {broken:#?}");
}

fn mem() -> Arc<dyn Backend> {
    Arc::new(MemBackend::new())
}

#[test]
fn the_memory_backend_conforms() {
    conforms(|| (mem(), ()));
}

#[test]
fn a_directory_on_the_disk_conforms() {
    conforms(|| {
        let dir = TempDir::new();
        (Arc::new(DirBackend::open(dir.path()).expect("it was just made")), dir)
    });
}

#[test]
fn a_directory_in_memory_conforms() {
    conforms(|| {
        let dir = TempDir::new_in("/dev/shm");
        (Arc::new(DirBackend::open(dir.path()).expect("it was just made")), dir)
    });
}

#[test]
fn a_directory_without_kernel_handles_conforms() {
    conforms(|| {
        let dir = TempDir::new();
        (Arc::new(DirBackend::open_unprivileged(dir.path()).expect("it was just made")), dir)
    });
}

/// A backend whose calls are all made by callers that wait.
struct Waiting(Arc<dyn Backend>);

impl Backend for Waiting {
    fn submit(&self, call: Call) {
        self.0.submit_and_wait(call);
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }
}

#[test]
fn a_directory_served_by_its_callers_conforms() {
    conforms(|| {
        let dir = TempDir::new();
        let backend = Arc::new(DirBackend::open(dir.path()).expect("it was just made"));
        let (fault, control) = Fault::new(Arc::new(Delay::new(Arc::new(Rate::new(backend, u64::MAX)))));
        (Arc::new(Waiting(Arc::new(fault))), (dir, control))
    });
}

#[test]
fn a_directory_of_somebody_without_privileges_conforms() {
    as_nobody(|parent| {
        conforms(|| {
            let dir = TempDir::new_in(parent);
            (Arc::new(DirBackend::open(dir.path()).expect("it was just made")), dir)
        });
    });
}

#[test]
fn a_delay_of_nothing_conforms() {
    conforms(|| (Arc::new(Delay::new(mem())), ()));
}

#[test]
fn a_fault_layer_without_rules_conforms() {
    conforms(|| {
        let (layer, control) = Fault::new(mem());
        (Arc::new(layer), control)
    });
}

#[test]
fn a_rate_above_all_rates_conforms() {
    conforms(|| (Arc::new(Rate::new(mem(), u64::MAX)), ()));
}

#[test]
fn a_stack_of_layers_conforms() {
    conforms(|| {
        let (fault, control) = Fault::new(Arc::new(Rate::new(mem(), 1 << 40)));
        (Arc::new(Delay::new(Arc::new(fault))), control)
    });
}
