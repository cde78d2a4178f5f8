//! The process of `namespace` that measures the memory of an idle volume, as it starts it.

use std::process::Command;

#[test]
fn a_process_prints_the_bytes_of_an_idle_volume() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackwater-lab"));
    let output = command.args(["idle-volumes", "500"]).output().expect("the program can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
    assert!((512.0..1e6).contains(&bytes), "{bytes}");
}
