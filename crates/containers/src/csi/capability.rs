//! Which accesses a volume allows, and which not.
//!
//! | Access mode | Directory | Object volume |
//! |---|---|---|
//! | of a single node, with one or more writers or only readers | yes | yes |
//! | `MULTI_NODE_READER_ONLY` | no: two machines cannot have one directory | yes: readers that follow the writer |
//! | `MULTI_NODE_SINGLE_WRITER`, `MULTI_NODE_MULTI_WRITER` | no | no: a stage does not say which node is the writer |

use slackwater_control::exit::Failure;
use slackwater_control::name;
use slackwater_control::spec::VolumeSpec;
use slackwater_csi_proto::VolumeCapability;
use slackwater_csi_proto::volume_capability::AccessType;
use slackwater_csi_proto::volume_capability::access_mode::Mode;

/// The types of file system by which people may ask for ours.
const KINDS: [&str; 3] = ["", "slackwater", "fuse.slackwater"];

/// The access that a capability asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Access {
    /// Options of the mount, `read_only` among them.
    pub(super) options: VolumeSpec,
    /// Whether only one directory on the machine may show the volume.
    pub(super) alone: bool,
}

impl Access {
    /// The access that `capability` asks for, to a volume with this source.
    ///
    /// # Errors
    /// The volume does not allow it, with the reason.
    pub(super) fn of(capability: &VolumeCapability, source: &str) -> Result<Self, Failure> {
        let mut options = VolumeSpec::default();
        match &capability.access_type {
            Some(AccessType::Mount(mount)) => {
                if !KINDS.contains(&mount.fs_type.as_str()) {
                    let what =
                        format!("volumes have no file system of the type \"{}\"", mount.fs_type.escape_default());
                    return Err(Failure::usage(what).advise("leave out the type (fsType)"));
                }
                mount.mount_flags.iter().try_for_each(|flag| set(&mut options, flag))?;
            }
            Some(AccessType::Block(_)) => {
                return Err(
                    Failure::usage("volumes are directories, not block devices").advise("use volumeMode: Filesystem")
                );
            }
            None => return Err(Failure::usage("the capability has no access type")),
        }
        let mode = capability.access_mode.as_ref().map(|access| access.mode());
        let alone = match mode {
            Some(Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter) => false,
            Some(Mode::SingleNodeSingleWriter) => true,
            Some(Mode::SingleNodeReaderOnly) => {
                options.read_only = true;
                false
            }
            Some(Mode::MultiNodeReaderOnly) if name::is_url(source.as_ref()) => {
                options.read_only = true;
                false
            }
            Some(Mode::MultiNodeReaderOnly) => {
                return Err(Failure::usage("a directory can be used on one machine at a time")
                    .advise("for readers on many machines, use a pool in an object store"));
            }
            Some(Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) => {
                return Err(Failure::usage("a volume has one machine that writes, or only machines that read")
                    .advise("use ReadWriteOnce; or ReadOnlyMany, for object volumes"));
            }
            Some(Mode::Unknown) | None => return Err(Failure::usage("the capability has no access mode")),
        };
        Ok(Self { options, alone })
    }
}

/// Sets an option by the name that mount(8) has for it.
fn set(options: &mut VolumeSpec, flag: &str) -> Result<(), Failure> {
    match flag {
        "ro" => options.read_only = true,
        "rw" => {}
        "nosuid" => options.nosuid = true,
        "nodev" => options.nodev = true,
        "noexec" => options.noexec = true,
        other => {
            let what = format!("the mount option \"{}\" is not known", other.escape_default());
            return Err(Failure::usage(what).advise("known options: ro, rw, nosuid, nodev, noexec"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use slackwater_csi_proto::volume_capability::{AccessMode, BlockVolume, MountVolume};

    use super::*;

    fn access(mode: Mode, source: &str, flags: &[&str]) -> Result<Access, Failure> {
        let mount =
            MountVolume { mount_flags: flags.iter().map(ToString::to_string).collect(), ..MountVolume::default() };
        let access_mode = Some(AccessMode { mode: mode.into() });
        Access::of(&VolumeCapability { access_mode, access_type: Some(AccessType::Mount(mount)) }, source)
    }

    #[test]
    fn many_machines_may_only_read_object_volumes() {
        for source in ["/srv/a", "s3://bucket/a"] {
            for mode in [Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter, Mode::SingleNodeSingleWriter] {
                let access = access(mode, source, &[]).unwrap();
                assert!(
                    !access.options.read_only && access.alone == (mode == Mode::SingleNodeSingleWriter),
                    "{mode:?}"
                );
            }
            assert!(access(Mode::SingleNodeReaderOnly, source, &[]).unwrap().options.read_only);
            for mode in [Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter, Mode::Unknown] {
                assert!(access(mode, source, &[]).is_err(), "{mode:?}");
            }
        }
        assert!(access(Mode::MultiNodeReaderOnly, "s3://bucket/a", &[]).unwrap().options.read_only);
        let refused = access(Mode::MultiNodeReaderOnly, "/srv/a", &[]).unwrap_err();
        assert!(refused.to_string().contains("object store"), "{refused}");
    }

    #[test]
    fn mount_options_are_known_and_block_devices_refused() {
        let options = access(Mode::SingleNodeWriter, "/a", &["noexec", "rw", "nosuid", "nodev"]).unwrap().options;
        assert_eq!(options, VolumeSpec { noexec: true, nosuid: true, nodev: true, ..VolumeSpec::default() });
        let refused = access(Mode::SingleNodeWriter, "/a", &["noatime"]).unwrap_err().to_string();
        assert!(refused.contains("noatime") && refused.contains("nosuid"), "{refused}");
        let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter.into() });
        let block = VolumeCapability { access_mode, access_type: Some(AccessType::Block(BlockVolume {})) };
        assert!(Access::of(&block, "/a").unwrap_err().to_string().contains("block devices"));
    }
}
