//! The transport of the mounts in tests. `cargo xtask uring` runs these tests once more with the other one.

use slackwater_fuse::mount::Uring;

/// Environment variable with `uring` if requests come over io_uring.
const TRANSPORT_VARIABLE: &str = "SLACKWATER_TEST_TRANSPORT";

/// Whether the mounts use io_uring. If they should and cannot, the test fails.
pub(crate) fn uring() -> Uring {
    match std::env::var(TRANSPORT_VARIABLE).as_deref() {
        Ok("uring") => Uring::Always,
        Ok(other) => panic!("{TRANSPORT_VARIABLE}={other} is no transport"),
        Err(_) => Uring::Never,
    }
}
