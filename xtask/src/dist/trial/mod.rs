//! The Debian package on a fresh Debian, in a directory: installed by the commands of the README, used from
//! `/etc/fstab` and by systemd, and removed.
//!
//! It has its own namespaces of mounts and processes, which end with it. Debian's packages are from where this machine has
//! its own; it is skipped where that is not Debian, or without root.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::command::output;
use super::tree::make_folder;
use crate::cargo::target_directory;
use crate::folders::cannot;
use crate::suites::{is_installed, is_root};

/// Makes the archive of the system.
const FRESH: &str = include_str!("fresh.sh");
/// Makes the system in namespaces.
const STAGE: &str = include_str!("stage.sh");
/// Runs in the system.
const TRIAL: &str = include_str!("trial.sh");
/// Runs in the system as a service of systemd.
const SERVICE: &str = include_str!("service.sh");

/// Begins to fetch the system, which takes minutes of network and seconds of processor time. [`run`] waits for it.
pub(crate) fn prepare() {
    if let (Some(mirror), Ok(folder)) = (mirror(), folder()) {
        let mut fresh = Command::new("setpriv");
        fresh.args(["--pdeathsig", "TERM", "nice"]).args(make_fresh(&mirror, &folder));
        // If it fails, `run` tries again and reports it.
        let _ = fresh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    }
}

/// Installs `deb`, uses it and removes it; and then the same for `rpm` without the use.
pub(super) fn run(deb: &Path, rpm: Option<&Path>) -> Result<(), String> {
    let Some(mirror) = mirror() else {
        println!("skipped: no fresh Debian here; that needs root, Debian and mmdebstrap");
        return Ok(());
    };
    let readme = fs::read_to_string("README.md").map_err(|error| cannot(Path::new("README.md"), &error))?;
    let commands = install_commands(&readme).ok_or("README.md: no `bash` block in the section Install")?;
    let folder = folder()?;
    let start = Instant::now();
    let [program, arguments @ ..] = &make_fresh(&mirror, &folder)[..] else { unreachable!("it has a program") };
    output(Command::new(program).args(arguments))?;
    println!("a fresh Debian, {}: waited {:.0} s", mirror.release, start.elapsed().as_secs_f64());
    for (name, text) in [("stage.sh", STAGE), ("trial.sh", TRIAL), ("service.sh", SERVICE), ("readme.sh", &commands)] {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| cannot(&path, &error))?;
    }
    let mut stage = Command::new("unshare");
    stage.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]);
    stage
        .args(["timeout", "--kill-after=10", "300", "bash"])
        .arg(folder.join("stage.sh"))
        .arg(&folder)
        .arg(deb)
        .args(rpm);
    print!("{}", output(&mut stage)?);
    Ok(())
}

fn folder() -> Result<PathBuf, String> {
    let folder = target_directory()?.join("dist-trial");
    make_folder(&folder)?;
    Ok(folder)
}

/// The command that makes the archive, or waits until another one has made it.
fn make_fresh(mirror: &Mirror, folder: &Path) -> Vec<OsString> {
    let archive = folder.join("fresh.tar").into_os_string();
    let script = ["bash", "-c", FRESH, "fresh"].map(OsString::from);
    script.into_iter().chain([archive, (&mirror.release).into(), (&mirror.address).into()]).collect()
}

/// Where this machine has its packages from.
struct Mirror {
    release: String,
    address: String,
}

fn mirror() -> Option<Mirror> {
    if !is_root() || !is_installed("mmdebstrap") {
        return None;
    }
    let format = "$(ORIGIN) $(COMPONENT) $(RELEASE) $(REPO_URI)";
    let targets = output(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]));
    main_archive(&targets.ok()?)
}

/// The main archive of Debian among the lines of `apt-get indextargets`. Updates have a release with a hyphen.
fn main_archive(targets: &str) -> Option<Mirror> {
    targets.lines().find_map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        let ["Debian", "main", release, address] = words[..] else { return None };
        let is_plain = !release.contains('-');
        is_plain.then(|| Mirror { release: release.to_owned(), address: address.to_owned() })
    })
}

/// The first `bash` block of the section on installing.
fn install_commands(readme: &str) -> Option<String> {
    let section = readme.split_once("\n## Install\n")?.1;
    let block = section.split_once("\n```bash\n")?.1;
    block.split_once("```").map(|(commands, _)| commands.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_archive_is_found_among_others() {
        let targets = " main nodistro http://other\nDebian main bookworm-updates http://x/\n\
                       Debian main bookworm http://y/\n";
        let mirror = main_archive(targets).unwrap();
        assert_eq!((&*mirror.release, &*mirror.address), ("bookworm", "http://y/"));
        assert!(main_archive("Ubuntu main noble http://z/\n").is_none());
    }

    #[test]
    fn the_commands_of_the_readme_are_found() {
        let commands = install_commands(include_str!("../../../../README.md")).unwrap();
        assert_eq!(commands.lines().count(), 2, "{commands}");
        assert!(commands.contains("apt install ./"), "{commands}");
    }
}
