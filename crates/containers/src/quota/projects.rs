//! The number of a project, which must be one that nothing else uses.
//!
//! No program hands the numbers of a file system out. Administrators choose them, or list them in `/etc/projid`. Several
//! of our processes may choose at once, each in a container of its own, without a lock that all can see. So a number is
//! *claimed*: the directory gets it, and the kernel's count of inodes says whether the directory is alone. If it is not,
//! it tries another number.
//!
//! # Invariants
//! J1. Directories try different numbers in turn, derived from their inode numbers. So two that meet at one number do not
//!     meet at the next.
//! J2. A claim holds if the count was 1 after the directory got the number. The count includes each directory that got it
//!     before, and each one that gets it later counts this one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use super::sys;

/// The first of our numbers: far from those that people choose, and from those of Kubernetes' own quotas, which start
/// at 1,048,577.
const FIRST: u32 = 0x5300_0000;
const COUNT: u32 = 1 << 24;
/// Numbers that a claim tries: enough even if nearly all are in use.
const ATTEMPTS: u64 = 1 << 10;
/// Files in which administrators list projects, as `name:number` and `number:directory`.
const LISTS: [&str; 2] = ["/etc/projid", "/etc/projects"];

/// Whether `project` is a number that [`claim`] chooses.
pub(super) fn is_ours(project: u32) -> bool {
    (FIRST..FIRST + COUNT).contains(&project)
}

/// Gives `directory`, but nothing in it, a project of its own.
///
/// # Errors
/// Those of the file system, or all numbers are in use.
pub(super) fn claim(directory: &File) -> io::Result<u32> {
    let listed = listed(&LISTS.map(|list| fs::read_to_string(list).unwrap_or_default()).concat());
    let inode = directory.metadata()?.ino();
    for attempt in 0..ATTEMPTS {
        let project = candidate(inode, attempt);
        if listed.contains(&project) || sys::figures(directory, project)? != sys::Figures::default() {
            continue;
        }
        assign(directory, project)?;
        if sys::figures(directory, project)?.inodes == 1 {
            return Ok(project); // J2
        }
    }
    assign(directory, 0)?;
    Err(io::Error::other("no free project number was found"))
}

/// Makes `directory` one of `project`, and new files in it too. Project 0 is none.
fn assign(directory: &File, project: u32) -> io::Result<()> {
    let attributes = sys::attributes(directory)?;
    sys::set_attributes(directory, &attributes.in_project(project, true))
}

impl sys::Attributes {
    /// The same file in another project. A directory passes the project on, unless it is 0.
    pub(super) fn in_project(mut self, project: u32, is_directory: bool) -> Self {
        let inherited = if is_directory && project != 0 { sys::INHERITED } else { 0 };
        self.flags = self.flags & !sys::INHERITED | inherited;
        self.project = project;
        self
    }
}

/// The number that a directory tries at an attempt (J1): first the one of its inode number, so that directories of one
/// file system seldom meet.
fn candidate(inode: u64, attempt: u64) -> u32 {
    let step = inode / u64::from(COUNT) * 2 + 1;
    let number = inode.wrapping_add(attempt.wrapping_mul(step));
    FIRST + (number % u64::from(COUNT)) as u32
}

/// The numbers in such a file.
fn listed(text: &str) -> Vec<u32> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.flat_map(|line| line.split(':')).filter_map(|field| field.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_the_lists_of_administrators_are_found() {
        let text = "# projects\nweb:1392508929\n1392508930:/srv/db\n\nbroken\n # 7:/no\n";
        assert_eq!(listed(text), [1_392_508_929, 1_392_508_930]);
    }

    #[test]
    fn directories_that_meet_at_one_number_part_at_the_next() {
        let (one, other) = (5, 5 + (1 << 24));
        assert_eq!(candidate(one, 0), candidate(other, 0));
        assert_ne!(candidate(one, 1), candidate(other, 1));
        assert!((0..ATTEMPTS).all(|attempt| is_ours(candidate(one, attempt)) && is_ours(candidate(other, attempt))));
        assert!(!is_ours(0) && !is_ours(1_048_577));
    }
}
