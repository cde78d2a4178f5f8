//! The module as a whole: absurd inputs, and loops closed over a simulated device.

mod absurd;
mod closed_loop;
mod simulation;
mod tenants;
