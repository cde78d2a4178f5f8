//! Names of cgroups in the configuration: the path as in `/proc/PID/cgroup`, or the directory below a mount.
//!
//! Settings for anything else would silently apply to no process. So a name is rejected if no process can ever be in
//! such a cgroup. For a cgroup that does not exist yet only a warning is logged, since containers come and go.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tenants::TenantConfig;
use crate::tenants::error::TenantsError;
use slackwater_host::cgroup::{Hierarchy, Kind, Layout};

/// The usual mount point of cgroups.
const CUSTOMARY: &str = "/sys/fs/cgroup";

/// Why no process can be in a cgroup of this name.
#[derive(Debug, thiserror::Error)]
pub enum CgroupNameError {
    /// The cgroup is in a v1 hierarchy without the memory controller.
    #[error(
        "{mountpoint} is a hierarchy without the memory controller; write the cgroup as in /proc/PID/cgroup, on the line \
         that begins with 0:: or has `memory`"
    )]
    OtherHierarchy {
        /// Where that hierarchy is mounted.
        mountpoint: PathBuf,
    },
    /// The name is both the path of one cgroup and the directory of another.
    #[error("it names a cgroup and is also the directory of another one; for the second, write {meant:?}")]
    Ambiguous {
        /// Path of the cgroup with that directory.
        meant: PathBuf,
    },
    /// The directory is not below any mounted hierarchy.
    #[error("no cgroup hierarchy is mounted there; write the cgroup as in /proc/PID/cgroup, such as /containers/a")]
    BesideMounts,
    /// The path is outside the mounted part of the hierarchy, or contains `..`.
    #[error("only cgroups below {shown} are visible here; write the path of one of them, without `..`")]
    Outside {
        /// The cgroups that are mounted.
        shown: String,
    },
}

/// Replaces the names in `config` by the paths used in lookups. Logs a warning for each cgroup that does not exist.
///
/// # Errors
/// No process can be in one of the cgroups.
pub(super) fn by_path(
    config: BTreeMap<PathBuf, TenantConfig>,
    mounts: &[(Option<Kind>, Hierarchy)],
    layout: &Layout,
) -> Result<BTreeMap<PathBuf, TenantConfig>, TenantsError> {
    let mut by_path = BTreeMap::<PathBuf, TenantConfig>::new();
    for (name, config) in config {
        let path = path_of(&name, mounts, layout)?;
        warn_if_absent(&path, layout);
        // A cgroup with two names gets the smaller limit, as with the limit of the cgroup itself.
        by_path.entry(path).and_modify(|other| *other = config.and(*other)).or_insert(config);
    }
    Ok(by_path)
}

/// The path used in lookups for the cgroup called `name`.
///
/// # Errors
/// No process can be in it.
pub(super) fn path_of(
    name: &Path,
    mounts: &[(Option<Kind>, Hierarchy)],
    layout: &Layout,
) -> Result<PathBuf, TenantsError> {
    find_path(name, mounts, layout).map_err(|source| TenantsError::NoSuchCgroup { name: name.to_owned(), source })
}

pub(super) fn warn_if_absent(path: &Path, layout: &Layout) {
    if !layout.has(path) {
        tracing::warn!(cgroup = ?path, "this cgroup does not exist yet: its settings apply once it does");
    }
}

fn find_path(name: &Path, mounts: &[(Option<Kind>, Hierarchy)], layout: &Layout) -> Result<PathBuf, CgroupNameError> {
    let name: PathBuf = name.components().collect();
    let is_path = layout.has(&name);
    let mount = mounts.iter().filter(|(_, mount)| name.starts_with(&mount.mountpoint));
    let path = match mount.max_by_key(|(_, mount)| mount.mountpoint.components().count()) {
        None if !is_path && name.starts_with(CUSTOMARY) => return Err(CgroupNameError::BesideMounts),
        None => name,
        Some((kind, mount)) => {
            let meant = mount.path(&name).filter(|_| kind.is_some());
            match meant {
                Some(meant) if is_path && layout.has(&meant) => return Err(CgroupNameError::Ambiguous { meant }),
                _ if is_path => name,
                Some(meant) => meant,
                None => return Err(CgroupNameError::OtherHierarchy { mountpoint: mount.mountpoint.clone() }),
            }
        }
    };
    if layout.hierarchies().all(|hierarchy| hierarchy.directory(&path).is_none()) {
        let shown: Vec<_> = layout.hierarchies().map(|hierarchy| format!("{:?}", hierarchy.root)).collect();
        return Err(CgroupNameError::Outside { shown: shown.join(" and ") });
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Directories in place of hierarchies, with a cgroup `/there` in each; removed with the test.
    struct Machine {
        directory: PathBuf,
        mountinfo: String,
    }

    impl Machine {
        /// Takes the roots of the unified and the memory hierarchy; `cpu` always exists.
        fn new(test: &str, unified: Option<&str>, memory: Option<&str>) -> Self {
            let directory = std::env::temp_dir().join(format!("slackwater-named-{test}-{}", std::process::id()));
            let mut mountinfo = String::new();
            for (name, root, kind) in [
                ("unified", unified, "cgroup2 cgroup2 rw"),
                ("memory", memory, "cgroup cgroup rw,memory"),
                ("cpu", Some("/"), "cgroup cgroup rw,cpu"),
            ] {
                let Some(root) = root else { continue };
                let mountpoint = directory.join(name);
                fs::create_dir_all(mountpoint.join("there")).unwrap();
                mountinfo += &format!("35 31 0:32 {root} {} rw - {kind}\n", mountpoint.display());
            }
            Self { directory, mountinfo }
        }

        fn mounts(&self) -> Vec<(Option<Kind>, Hierarchy)> {
            Hierarchy::all(&self.mountinfo).collect()
        }

        fn mountpoint(&self, name: &str) -> String {
            self.directory.join(name).to_str().unwrap().to_owned()
        }

        /// The path for which a limit of `name` is set, or the error.
        fn path(&self, name: &str) -> Result<PathBuf, String> {
            let layout = Layout::parse(&self.mountinfo);
            let limits = BTreeMap::from([(name.into(), TenantConfig::limit(1))]);
            let by_path = by_path(limits, &self.mounts(), &layout).map_err(|error| error.to_string())?;
            Ok(by_path.into_keys().next().unwrap())
        }

        fn refusal(&self, name: &str) -> String {
            let refusal = self.path(name).unwrap_err();
            assert!(refusal.contains(&format!("{name:?}")), "{refusal}");
            refusal
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.directory).unwrap();
        }
    }

    #[test]
    fn a_path_names_itself_in_any_spelling_whether_it_exists_or_not() {
        let machine = Machine::new("path", Some("/"), None);
        for (name, path) in [("/there", "/there"), ("//a/./b/", "/a/b"), ("/", "/"), ("/a=b \n\"", "/a=b \n\"")] {
            assert_eq!(machine.path(name), Ok(path.into()));
        }
    }

    #[test]
    fn a_directory_names_its_cgroup() {
        let machine = Machine::new("directory", Some("/"), Some("/"));
        for hierarchy in ["unified", "memory"] {
            let at = machine.mountpoint(hierarchy);
            for (rest, path) in [("/there", "/there"), ("/not/yet/", "/not/yet"), ("", "/")] {
                assert_eq!(machine.path(&format!("{at}{rest}")), Ok(path.into()));
            }
        }
        let nested = Machine::new("nested", Some("/system.slice/x"), None);
        let at = nested.mountpoint("unified");
        assert_eq!(nested.path(&format!("{at}/there")), Ok("/system.slice/x/there".into()));
    }

    #[test]
    fn of_two_names_of_one_cgroup_the_smaller_limit_counts() {
        let machine = Machine::new("two", Some("/"), None);
        let layout = Layout::parse(&machine.mountinfo);
        let directory = format!("{}/there", machine.mountpoint("unified"));
        for (one, other) in [(5, 7), (7, 5)] {
            let limits = [("/there".into(), one), (directory.clone().into(), other)];
            let limits = BTreeMap::from(limits.map(|(name, bytes)| (name, TenantConfig::limit(bytes))));
            let by_path = by_path(limits, &machine.mounts(), &layout).unwrap();
            assert_eq!(by_path, BTreeMap::from([("/there".into(), TenantConfig::limit(5))]));
        }
    }

    #[test]
    fn names_without_possible_processes_are_rejected_with_what_to_write() {
        let machine = Machine::new("refused", Some("/"), None);
        let cpu = machine.refusal(&format!("{}/there", machine.mountpoint("cpu")));
        assert!(cpu.contains("0::") && cpu.contains("/cpu"), "{cpu}");
        let beside = machine.refusal("/sys/fs/cgroup/there");
        assert!(beside.contains("such as /containers/a"), "{beside}");
        for name in ["/a/../b", "/..", &format!("{}/../x", machine.mountpoint("unified"))] {
            assert!(machine.refusal(name).contains("without `..`"), "{name}");
        }
        let nested = Machine::new("outside", Some("/system.slice/x"), Some("/y"));
        let outside = nested.refusal("/containers/a");
        assert!(outside.contains(r#"below "/system.slice/x" and "/y""#), "{outside}");
        assert_eq!(nested.path("/y/a"), Ok("/y/a".into()));
    }

    #[test]
    fn an_ambiguous_name_is_rejected_unless_only_one_of_its_cgroups_exists() {
        let machine = Machine::new("ambiguous", Some("/"), None);
        let at = machine.mountpoint("unified");
        let directory = format!("{at}/there");
        // A cgroup whose path equals the directory of the other.
        fs::create_dir_all(format!("{at}{directory}")).unwrap();
        let refusal = machine.refusal(&directory);
        assert!(refusal.contains(r#"write "/there""#), "{refusal}");
        fs::remove_dir(&directory).unwrap();
        assert_eq!(machine.path(&directory), Ok(directory.clone().into()));
    }
}
