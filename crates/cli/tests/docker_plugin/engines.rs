//! Real Podman.
