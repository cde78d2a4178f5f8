//! Every form of a rename is killed on its way, at each point: it is made once, and no file is lost.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use slackwater_fuse::abi::Opcode;

use super::by_descriptor::overlay;
use super::requests::{Call, ONE_AT_A_TIME, Rig, file_with};
use super::user::in_own_namespace;
use crate::rig::{Scratch, need_fuse};

/// The points of a request that changes something.
pub(super) const CHANGE: [&str; 5] = ["Read", "Begun", "CarriedOut", "Recorded", "Answered"];

/// RENAME_WHITEOUT leaves a whiteout at the old name. A request that came again moved it over the file, which was lost even
/// if it was durable. Both names, and the files that they led to, decide for every form of a rename.
#[test]
fn every_form_of_a_rename_that_is_killed_on_its_way_is_made_once() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("kept");
    let rig = Rig::of(scratch, source, mountpoint);
    kill_each_change(&rig, &CHANGE, &renames());
    rig.umount();
}

#[test]
fn every_form_of_a_rename_on_an_overlay_that_is_killed_on_its_way_is_made_once() {
    need_fuse();
    in_own_namespace(|| {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("kept");
        if overlay(&scratch, &source) {
            // Without whiteouts, which an overlay does not make for others.
            let renames: Vec<_> = renames().into_iter().filter(|(what, ..)| !what.contains("whiteout")).collect();
            let rig = Rig::of(scratch, source, mountpoint);
            kill_each_change(&rig, &CHANGE, &renames);
            rig.umount();
        }
    });
}

/// Every form of a rename. The kernel itself leaves two names of one file alone.
fn renames() -> Vec<(&'static str, Opcode, Call)> {
    vec![
        ("a rename over a file", Opcode::Rename, |mount, _, n| {
            let (from, to) = two_files(mount, n)?;
            fs::rename(&from, &to)?;
            assert_eq!((fs::read(to)?, from.exists()), (b"moved".to_vec(), false));
            Ok(())
        }),
        ("a rename over one of two names of a file", Opcode::Rename, |mount, _, n| {
            let (from, to) = two_files(mount, n)?;
            fs::hard_link(&to, mount.join(format!("link{n}")))?;
            fs::rename(&from, &to)?;
            assert_eq!((fs::read(to)?, from.exists()), (b"moved".to_vec(), false));
            assert_eq!(fs::read(mount.join(format!("link{n}")))?, b"other");
            Ok(())
        }),
        ("a rename of one of two names of a file", Opcode::Rename, |mount, source, n| {
            let (from, to) = two_files(mount, n)?;
            fs::hard_link(&from, mount.join(format!("link{n}")))?;
            fs::rename(&from, &to)?;
            assert_eq!((fs::read(to)?, from.exists()), (b"moved".to_vec(), false));
            assert!(source.join(format!("link{n}")).exists());
            Ok(())
        }),
        ("a rename of a directory over another", Opcode::Rename, |mount, _, n| {
            let (from, to) = (mount.join(format!("d{n}")), mount.join(format!("to{n}")));
            fs::create_dir(&from)?;
            fs::write(from.join("within"), b"here")?;
            fs::create_dir(&to)?;
            fs::rename(&from, &to)?;
            assert_eq!((fs::read(to.join("within"))?, from.exists()), (b"here".to_vec(), false));
            Ok(())
        }),
        ("a rename that would replace nothing", Opcode::Rename2, |mount, _, n| {
            let (from, to) = two_files(mount, n)?;
            assert_eq!(rename_with(&from, &to, RenameFlags::NOREPLACE), Err(Errno::EXIST));
            let free = mount.join(format!("free{n}"));
            rename_with(&from, &free, RenameFlags::NOREPLACE)?;
            assert_eq!((fs::read(free)?, fs::read(to)?, from.exists()), (b"moved".to_vec(), b"other".to_vec(), false));
            Ok(())
        }),
        ("an exchange of a file and a directory", Opcode::Rename2, |mount, _, n| {
            drop(file_with(mount, n, b"file")?);
            let (one, other) = (mount.join(format!("f{n}")), mount.join(format!("d{n}")));
            fs::create_dir(&other)?;
            rename_with(&one, &other, RenameFlags::EXCHANGE)?;
            assert_eq!((fs::read(other)?, one.is_dir()), (b"file".to_vec(), true));
            Ok(())
        }),
        ("a rename that leaves a whiteout", Opcode::Rename2, |mount, source, n| {
            let (from, to) = (mount.join(format!("f{n}")), mount.join(format!("to{n}")));
            file_with(mount, n, b"moved")?.sync_all()?;
            rename_with(&from, &to, RenameFlags::WHITEOUT)?;
            assert_eq!((fs::read(to)?, is_whiteout(&from)?), (b"moved".to_vec(), true));
            assert_eq!(fs::read(source.join(format!("to{n}")))?, b"moved");
            Ok(())
        }),
        ("a rename over a file that leaves a whiteout", Opcode::Rename2, |mount, _, n| {
            let (from, to) = two_files(mount, n)?;
            rename_with(&from, &to, RenameFlags::WHITEOUT)?;
            assert_eq!((fs::read(to)?, is_whiteout(&from)?), (b"moved".to_vec(), true));
            Ok(())
        }),
        ("a rename of a directory that leaves a whiteout", Opcode::Rename2, |mount, _, n| {
            let (from, to) = (mount.join(format!("d{n}")), mount.join(format!("to{n}")));
            fs::create_dir(&from)?;
            fs::write(from.join("within"), b"here")?;
            rename_with(&from, &to, RenameFlags::WHITEOUT)?;
            assert_eq!((fs::read(to.join("within"))?, is_whiteout(&from)?), (b"here".to_vec(), true));
            Ok(())
        }),
    ]
}

fn two_files(mount: &Path, n: u32) -> io::Result<(PathBuf, PathBuf)> {
    drop(file_with(mount, n, b"moved")?);
    let to = mount.join(format!("to{n}"));
    fs::write(&to, b"other")?;
    Ok((mount.join(format!("f{n}")), to))
}

fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, from, CWD, to, flags)
}

/// A whiteout of overlayfs is a character device with the number 0.
fn is_whiteout(path: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    Ok(found.file_type().is_char_device() && found.rdev() == 0)
}

/// Kills servers at each of these points of each change.
#[track_caller]
pub(super) fn kill_each_change(rig: &Rig, points: &[&str], changes: &[(&str, Opcode, Call)]) {
    let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (form, opcode, call) in changes.iter().copied() {
        for (point, times) in points.iter().flat_map(|point| [(*point, 1), (*point, 2)]) {
            if times == 2 && point == "Answered" {
                continue;
            }
            let (what, own) = (format!("{form} killed at {point}, {times} times"), rig.number());
            let order = format!("{point} {} {times}", opcode as u32);
            let has_died = rig.dies(&what, &order, move |mount, source| call(mount, source, own));
            assert!(has_died, "{what}: no process died there");
        }
    }
}
