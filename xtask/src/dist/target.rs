//! The platforms of a release. All are Linux with musl: a static binary runs on every distribution.

/// A platform, its names in the formats of packages, and the programs that build for it.
pub(crate) struct Target {
    pub(crate) triple: &'static str,
    /// The name in Debian packages and in container images.
    pub(crate) debian: &'static str,
    /// The name in RPM packages.
    pub(crate) rpm: &'static str,
    /// The compiler for C code.
    pub(crate) compiler: &'static str,
    /// The package that has the compiler.
    pub(crate) compiler_package: &'static str,
    /// The linker for Rust, which has its own start-up files and C library for these targets.
    pub(crate) linker: &'static str,
    pub(crate) strip: &'static str,
    /// The program that runs programs of the platform on the others.
    pub(crate) emulator: &'static str,
}

/// The platforms, of which the first one is the default.
pub(crate) const TARGETS: [Target; 2] = [
    Target {
        triple: "x86_64-unknown-linux-musl",
        debian: "amd64",
        rpm: "x86_64",
        compiler: "musl-gcc",
        compiler_package: "musl-tools",
        linker: "gcc",
        strip: "strip",
        emulator: "qemu-x86_64-static",
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        debian: "arm64",
        rpm: "aarch64",
        compiler: "aarch64-linux-gnu-gcc",
        compiler_package: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        linker: "aarch64-linux-gnu-gcc",
        strip: "aarch64-linux-gnu-strip",
        emulator: "qemu-aarch64-static",
    },
];

impl Target {
    /// Whether this machine runs its programs without an emulator.
    pub(crate) fn is_native(&self) -> bool {
        self.triple.starts_with(std::env::consts::ARCH)
    }
}
