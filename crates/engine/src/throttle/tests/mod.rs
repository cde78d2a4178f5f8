//! Tests of the module as a whole: extreme inputs, and loops closed over a simulated device.

mod closed_loop;
mod extremes;
mod simulation;
mod tenants;
