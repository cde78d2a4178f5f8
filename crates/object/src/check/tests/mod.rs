//! Each kind of damage is made on purpose, found, repaired, and then gone.

mod damage;
mod lost;
mod rig;
