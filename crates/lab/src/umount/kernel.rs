//! The running kernel under the same kind of load: ext4 on loop devices, and cgroups that come and go.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::axes::Load;
use crate::cgroups::{Cgroup, Hierarchy};
use crate::harness::threads::beside;
use crate::harness::{Options, Samples, rounds};
use crate::programs::{self, Tenants, Writer};
use crate::scratch::Scratch;

/// Mounts in the background.
const BACKGROUND: usize = 4;
const IMAGE_BYTES: u64 = 32 << 20;

/// Unmounts by the kernel.
pub(crate) struct Kernel {
    /// Whether the kernel writes back by cgroup here.
    pub(crate) about: String,
    /// Milliseconds by load, in the order of [`Load::ALL`].
    ms: [Samples; 3],
}

impl Kernel {
    pub(crate) fn ms(&self, load: Load) -> &Samples {
        &self.ms[load as usize]
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let one = |load: &Load| serde_json::json!({ "load": load.name(), "ms": self.ms(*load).all() });
        serde_json::json!({ "about": self.about, "umounts": Load::ALL.iter().map(one).collect::<Vec<_>>() })
    }
}

/// Unmounts an idle target in each round under each load; a writer writes `blocks` at a time.
///
/// # Errors
/// Something that this needs is not permitted or not installed here.
pub(crate) fn measure(options: &Options, blocks: u64, home: &Path) -> Result<Kernel> {
    ensure!(rustix::process::geteuid().is_root(), "only root may mount");
    let hierarchy = Hierarchy::unified()?;
    let scratch = Scratch::in_folder(home)?;
    let cgroup = hierarchy.make()?;
    let images = (0..=BACKGROUND).map(|number| Image::new(scratch.path(), number)).collect::<Result<Vec<_>>>()?;
    let (target, background) = images.split_first().context("there is no image")?;
    let mounts = background.iter().map(Image::mount).collect::<Result<Vec<_>>>()?;
    let mut ms: [Samples; 3] = Default::default();
    rounds::run("kernel", options.rounds(), &Load::ALL, |_, load| {
        for _ in 0..options.pick(2, 1) {
            ms[*load as usize].push(under(*load, blocks, &mounts, &cgroup, || umount(target))?);
        }
        Ok(())
    })?;
    mounts.into_iter().try_for_each(LoopMount::umount)?;
    Ok(Kernel { about: cgroup.about().to_owned(), ms })
}

/// Mounts, has one file written and synced, and unmounts; the milliseconds of the unmount.
///
/// Another program writes the file: one that is open here is also open in every writer that is just being forked, and then
/// the mount is busy.
fn umount(image: &Image) -> Result<f64> {
    let mounted = image.mount()?;
    programs::write(&mounted.path().join("file"))?;
    let start = Instant::now();
    mounted.umount()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Does `work` while each of `mounts` has a writer according to `load`.
fn under<T>(
    load: Load,
    blocks: u64,
    mounts: &[LoopMount],
    cgroup: &Cgroup,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let tenants = if load == Load::Churn { Tenants::Fresh } else { Tenants::Steady };
    let writer = |(number, mounted): (usize, &LoopMount)| {
        let (name, file) = (format!("writer-{number}"), mounted.path().join("churned"));
        move |stop: &AtomicBool| {
            let writer = Writer { cgroup: &|name| cgroup.child(name), name, file, blocks };
            writer.run(tenants, stop, &AtomicU64::new(0))
        }
    };
    let mounts = if load == Load::Idle { &[] } else { mounts };
    Ok(beside(mounts.iter().enumerate().map(writer), |_| work())?.0)
}

/// A file with an empty ext4, and where it is mounted.
struct Image {
    file: PathBuf,
    mountpoint: PathBuf,
}

/// A mount by a loop device that goes away with it; unmounted when dropped.
struct LoopMount(Option<PathBuf>);

impl Image {
    fn new(folder: &Path, number: usize) -> Result<Self> {
        let (file, mountpoint) = (folder.join(format!("image-{number}")), folder.join(format!("mnt-{number}")));
        fs::create_dir(&mountpoint).with_context(|| format!("cannot create {}", mountpoint.display()))?;
        File::create_new(&file)?.set_len(IMAGE_BYTES)?;
        programs::run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&file))?;
        Ok(Self { file, mountpoint })
    }

    fn mount(&self) -> Result<LoopMount> {
        programs::run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).args([&self.file, &self.mountpoint]))?;
        Ok(LoopMount(Some(self.mountpoint.clone())))
    }
}

impl LoopMount {
    fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    /// The system call, and nothing else.
    fn umount(mut self) -> Result<()> {
        unmount(self.path(), UnmountFlags::empty()).context("umount")?;
        self.0 = None;
        Ok(())
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        match unmount(path, UnmountFlags::DETACH) {
            // A second interrupt has removed it with its directory.
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
            Err(error) => eprintln!("cannot unmount {}: {error}", path.display()),
        }
    }
}
