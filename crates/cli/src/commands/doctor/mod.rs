//! `slackwater doctor`: features that this machine lacks, and what each one affects.

mod trial_mount;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags, memfd_create, openat2};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::process::{Resource, configure_io_flusher_behavior, geteuid, getrlimit};
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::name;
use slackwater_control::outln;
use slackwater_host::Printable as _;
use slackwater_host::size;
use slackwater_host::{MountInfo, memory_limits};

use crate::commands::doctor::trial_mount::Trial;
use crate::object::{self, StoreFinding};
use crate::os::kernel::{self, Version};
use crate::volume::pressure;

/// The result of one check.
enum Finding {
    /// The feature is available.
    Good(String),
    /// The feature is missing; `effect` says what that affects.
    Missing { what: String, effect: &'static str },
    /// A feature is missing without which nothing can be mounted.
    Fatal(Failure),
}

impl Finding {
    fn missing(what: impl Into<String>, effect: &'static str) -> Self {
        Self::Missing { what: what.into(), effect }
    }
}

type Probe = (&'static str, fn() -> Finding);

/// The name of the findings of a trial mount.
const FUSE: &str = "FUSE";

const PROBES: [Probe; 13] = [
    ("kernel", probe_kernel),
    ("/dev/fuse", probe_fuse),
    ("fusermount3", probe_helper),
    ("/dev/shm", probe_shm),
    ("memory", probe_memory),
    ("locked memory", probe_memlock),
    ("I/O flusher", probe_io_flusher),
    ("huge pages", probe_collapse),
    ("openat2", probe_openat2),
    ("RWF_DONTCACHE", probe_dontcache),
    ("cgroups", probe_cgroups),
    ("memory pressure", probe_pressure),
    ("sync", probe_sync),
];

/// Runs all checks of this machine, or of the store of `url`, and prints the results. The status says whether a mount
/// can work.
///
/// # Errors
/// `url` is not a URL.
pub(crate) fn run(url: Option<&str>, credentials: Option<&Path>) -> Result<ExitCode, Failure> {
    let mut can_mount = true;
    if let Some(url) = url {
        if !name::is_url(Path::new(url)) {
            return Err(Failure::usage(format!("{} is not the URL of an object volume", url.printable()))
                .advise("write for example s3://bucket/volume, or nothing to check this machine"));
        }
        for StoreFinding { name, result } in object::check_store(url, credentials) {
            can_mount &= show(&name, result.map_or_else(Finding::Fatal, Finding::Good));
        }
        return Ok(status(can_mount));
    }
    for (name, probe) in PROBES {
        can_mount &= show(name, probe());
    }
    if can_mount {
        for finding in probe_features() {
            can_mount &= show(FUSE, finding);
        }
    }
    Ok(status(can_mount))
}

fn status(can_mount: bool) -> ExitCode {
    match can_mount {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(Reason::Failed.status()),
    }
}

/// Prints a finding. Returns false if nothing can be mounted.
fn show(name: &str, finding: Finding) -> bool {
    match finding {
        Finding::Good(text) => outln!("ok       {name}: {text}"),
        Finding::Missing { what, effect } => {
            // A finding of the trial mount names what is affected; other findings have a sentence.
            let label = if name == FUSE { "affects" } else { "effect" };
            outln!("missing  {name}: {what}\n           {label}: {effect}");
        }
        Finding::Fatal(failure) => {
            outln!("FATAL    {name}: {failure}\n           effect: nothing can be mounted");
            return false;
        }
    }
    true
}

/// Fails on a machine that cannot mount: without `/dev/fuse`, or without a way to use it.
pub(crate) fn check_fuse() -> Result<(), Failure> {
    let denied = |error: &io::Error| Failure::failed(format!("cannot open /dev/fuse: {error}"));
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Failure::failed("/dev/fuse does not exist")
                .advise("load the module (modprobe fuse); a container needs --device /dev/fuse"));
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(denied(&error).advise(
                "become root, or give users access (chmod 666 /dev/fuse); a container needs --device /dev/fuse",
            ));
        }
        Err(error) => return Err(denied(&error).advise("load the module: modprobe fuse")),
    }
    if !geteuid().is_root() && helper().is_none() {
        return Err(Failure::failed("cannot find fusermount3, which users other than root need to mount")
            .advise("install fuse3, or become root"));
    }
    Ok(())
}

fn helper() -> Option<std::path::PathBuf> {
    // mount(8) removes the variable for other users; then execvp(3) searches this path.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|folder| folder.join("fusermount3")).find(|path| path.is_file())
}

fn probe_kernel() -> Finding {
    let Some(running) = Version::running() else {
        return Finding::missing(
            "cannot determine its version",
            "Slackwater does not check whether this kernel is new enough",
        );
    };
    match kernel::check(Some(running)) {
        Err(failure) => Finding::Fatal(failure),
        Ok(()) if running < kernel::TESTED => Finding::missing(
            format!("Linux {running} is older than the version that releases are tested on ({})", kernel::TESTED),
            "each mount tests whether cached readers could miss a write; if so, reads bypass the kernel's cache and are slower",
        ),
        Ok(()) => Finding::Good(format!("Linux {running} (needs {}, tested on {})", kernel::FLOOR, kernel::TESTED)),
    }
}

fn probe_fuse() -> Finding {
    check_fuse().map_or_else(Finding::Fatal, |()| Finding::Good("can be opened".into()))
}

fn probe_helper() -> Finding {
    match helper() {
        Some(path) => Finding::Good(path.printable().to_string()),
        None => Finding::missing("not in PATH (package fuse3)", "only root can mount"),
    }
}

fn probe_shm() -> Finding {
    let effect = "a mount needs --arena FILE on another tmpfs";
    match rustix::fs::statvfs("/dev/shm") {
        Err(errno) => Finding::missing(format!("no /dev/shm: {}", io::Error::from(errno)), effect),
        Ok(space) => {
            let free = space.f_bavail.saturating_mul(space.f_frsize);
            let text = format!("{} free", size::text(free));
            if free < 256 << 20 { Finding::missing(text, "only a small cache fits") } else { Finding::Good(text) }
        }
    }
}

fn probe_memory() -> Finding {
    let limits = memory_limits();
    let text = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), size::text);
    let cgroup = limits.cgroup_bytes.filter(|bytes| limits.machine_bytes.is_none_or(|machine| *bytes < machine));
    match limits.machine_bytes {
        None => Finding::missing("cannot read /proc/meminfo", "a cache larger than the memory is not refused"),
        machine => Finding::Good(match cgroup {
            Some(_) => format!("{}, and {} for this cgroup", text(machine), text(cgroup)),
            None => format!("{}, no smaller limit for this cgroup", text(machine)),
        }),
    }
}

fn probe_memlock() -> Finding {
    match getrlimit(Resource::Memlock).current {
        None => Finding::Good("no limit".into()),
        Some(bytes) => Finding::missing(
            format!("limited to {}", size::text(bytes)),
            "with swap space, the cache may be swapped out, which makes it slower",
        ),
    }
}

/// Sets the flag as a mount process does.
fn probe_io_flusher() -> Finding {
    match configure_io_flusher_behavior(true) {
        Ok(()) => Finding::Good("PR_SET_IO_FLUSHER is allowed".into()),
        Err(errno) => Finding::missing(
            format!("PR_SET_IO_FLUSHER needs CAP_SYS_RESOURCE: {}", io::Error::from(errno)),
            "when memory is nearly exhausted, a flush may have to wait for memory that only it can free",
        ),
    }
}

/// The cache asks for huge pages after it was filled.
fn probe_collapse() -> Finding {
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    let effect = "the cache uses small pages and is a few percent slower";
    match enabled {
        _ if Version::running().is_some_and(|running| running < Version::new(6, 1)) => {
            Finding::missing("MADV_COLLAPSE needs Linux 6.1", effect)
        }
        enabled if enabled.is_empty() => {
            Finding::missing("this kernel does not support them for memory files (MADV_COLLAPSE)", effect)
        }
        enabled if enabled.contains("[deny]") => {
            Finding::missing("denied by /sys/kernel/mm/transparent_hugepage/shmem_enabled", effect)
        }
        _ => Finding::Good("MADV_COLLAPSE is available".into()),
    }
}

fn probe_openat2() -> Finding {
    match openat2(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        Ok(_) => Finding::Good("available".into()),
        Err(errno) => Finding::missing(
            io::Error::from(errno).to_string(),
            "mount points inside a source directory are recognised by their device number only; a sandbox may forbid the call",
        ),
    }
}

fn probe_dontcache() -> Finding {
    const RWF_DONTCACHE: u32 = 0x80;
    let effect = "data that cannot bypass the kernel's page cache stays there as a second copy";
    let file = match memfd_create("slackwater-doctor", MemfdFlags::CLOEXEC) {
        Ok(file) => file,
        Err(errno) => return Finding::missing(io::Error::from(errno).to_string(), effect),
    };
    let flags = ReadWriteFlags::from_bits_retain(RWF_DONTCACHE);
    // A file in memory does not support the flag, and an old kernel gives the same error. So the version decides.
    match rustix::io::pwritev2(file.as_fd(), &[io::IoSlice::new(b"x")], 0, flags) {
        Ok(_) => Finding::Good("available".into()),
        Err(_) if Version::running().is_some_and(|running| running >= Version::new(6, 14)) => {
            Finding::Good("available if the source's file system supports it".into())
        }
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Finding::missing("needs Linux 6.14", effect),
        Err(errno) => Finding::missing(io::Error::from(errno).to_string(), effect),
    }
}

fn probe_cgroups() -> Finding {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let layout = cgroup_layout(&mounts);
    match layout {
        None => {
            Finding::missing("no cgroup hierarchy is mounted", "this cgroup's memory limit is not known; set --cache")
        }
        Some(layout) => Finding::Good(layout),
    }
}

fn probe_pressure() -> Finding {
    let sources = pressure::sources();
    match sources.is_empty() {
        true => Finding::missing(
            "neither PSI nor a memory cgroup reports it (boot with psi=1)",
            "a mount process keeps unneeded memory when memory is short: a few hundred bytes for each file that was looked up",
        ),
        false => Finding::Good(sources.join(", ")),
    }
}

/// The finding about sync(1), sync(2) and syncfs(2): only virtiofs receives these calls from the kernel.
fn probe_sync() -> Finding {
    Finding::missing(
        "Linux does not report sync(1), sync(2) and syncfs(2) to FUSE servers",
        "they return 0 but make nothing on a mount durable; use `slackwater sync`, fsync(2), O_SYNC or O_DSYNC",
    )
}

fn probe_features() -> Vec<Finding> {
    let Trial { missing, no_uring } = match trial_mount::run() {
        Err(failure) => return vec![Finding::Fatal(failure)],
        Ok(trial) => trial,
    };
    let mut findings: Vec<_> =
        missing.iter().map(|missing| Finding::missing(missing.feature, missing.affects)).collect();
    if findings.is_empty() {
        findings.push(Finding::Good("a trial mount found all features".into()));
    }
    findings.push(match no_uring {
        None => Finding::Good("requests come over io_uring (mount --transport)".into()),
        Some(why) => Finding::missing(
            format!("requests cannot come over io_uring: {why}"),
            "the speed of small reads and writes: a 4 KiB write of a program on another idle CPU takes 68 us instead of 6 \
             (slackwater-fuse.conf among the examples of the package turns it on at boot)",
        ),
    });
    findings
}

/// The mounted cgroup versions, and which of them has the memory controller.
fn cgroup_layout(mounts: &[u8]) -> Option<String> {
    let of_kind = |wanted: &'static str| MountInfo::all(mounts).filter(move |mount| mount.kind == wanted);
    let unified = of_kind("cgroup2").next().map(|mount| mount.point);
    let unified = unified.as_ref().map(|point| point.printable());
    let memory = of_kind("cgroup").find(|mount| mount.has_super_option("memory")).map(|mount| mount.point);
    match (unified, memory) {
        (Some(unified), None) => Some(format!("version 2 at {unified}")),
        (unified, Some(memory)) => {
            let beside = unified.map_or_else(String::new, |unified| format!(", version 2 without memory at {unified}"));
            let there = if memory.exists() { "" } else { " (not visible from here)" };
            Some(format!("memory in version 1 at {}{there}{beside}", memory.printable()))
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn cgroup_layouts_are_recognised() {
        let cgroup_layout = |mounts: &str| super::cgroup_layout(mounts.as_bytes());
        let v2 = "30 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let v1 = "31 22 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  32 22 0:28 / /proc rw - cgroup cgroup rw,memory\n";
        assert_eq!(cgroup_layout(v2).unwrap(), "version 2 at /sys/fs/cgroup");
        assert_eq!(cgroup_layout(v1).unwrap(), "memory in version 1 at /proc");
        let both = format!("{v1}33 22 0:29 / /u rw - cgroup2 cgroup2 rw\n");
        assert_eq!(cgroup_layout(&both).unwrap(), "memory in version 1 at /proc, version 2 without memory at /u");
        assert_eq!(cgroup_layout("23 22 0:22 / /proc rw - proc proc rw\n"), None);
    }
}
