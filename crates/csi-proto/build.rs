//! Generates Rust from `proto/csi.proto`, which is version 1.13.0 of the specification without a change.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["csi.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).generate_default_stubs(true).compile_fds(files)?;
    println!("cargo::rerun-if-changed=proto/csi.proto");
    Ok(())
}
