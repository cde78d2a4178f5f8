//! Repairs, each as one call of the tree.
//!
//! A repair changes as little as its error needs. Counts that it makes wrong are errors of the next round.

use std::ffi::{OsStr, OsString};

use slackwater::ErrorKind;
use slackwater::backend::{NewNode, NodeKind};

use crate::check::problem::{Place, Problem};
use crate::contents::map;
use crate::format::{CHUNK_BYTES, Decode, Encode, Entries, Entry, Inode, Key, ROOT, SegmentRecord, hash_of_name};
use crate::names;
use crate::tree::{Stop, View};

/// The directory for what has lost its name.
const LOST_AND_FOUND: &str = "lost+found";
/// The most numbers of inodes that one repair skips.
const SKIPPED_INOS_MAX: u64 = 1 << 24;

/// Repairs an error. Returns `false` if it cannot be repaired.
///
/// # Errors
/// [`Stop::Missing`]; the records that it needs are damaged.
pub(super) fn repair_one(view: &mut View<'_>, problem: &Problem) -> Result<bool, Stop> {
    match problem {
        // K3; and bytes that are wrong cannot be made right.
        Problem::UnknownKey(_) | Problem::Undecodable(..) | Problem::CorruptExtent { .. } => return Ok(false),
        Problem::NoRoot => {
            if view.get(Key::Inode(ROOT))?.is_some() {
                return Ok(false);
            }
            names::make_root(view, 0o755, (0, 0));
        }
        Problem::NoCounters => {
            // Every commit stores the counters. This changes nothing else.
            let root = names::inode(view, ROOT)?;
            names::put_inode(view, ROOT, &root);
        }
        // The repair of the lost inode came before.
        Problem::DanglingName(place) if view.get(Key::Inode(place.ino))?.is_some() => return Ok(false),
        Problem::DanglingName(place) | Problem::SecondName(place) => drop_name(view, place)?,
        // They belong to the root that this round makes.
        Problem::StrayNames { dir: ROOT, .. } => return Ok(false),
        Problem::StrayNames { dir, hash } => view.delete(Key::Entries { dir: *dir, hash: *hash }),
        Problem::MisplacedName { place, hash } => return move_name(view, place, *hash),
        Problem::WrongType { place, type_bits } => {
            change_names(view, place.dir, place.hash, |entries| {
                let found = entries.0.iter_mut().find(|entry| entry.name == place.name && entry.ino == place.ino);
                if let Some(entry) = found {
                    entry.type_bits = *type_bits;
                }
            })?;
        }
        Problem::WrongParent { dir, parent, .. } => change_inode(view, *dir, |inode| inode.parent = *parent)?,
        Problem::Cycle { dir, parent } => return leave_cycle(view, *dir, *parent),
        Problem::LostInode { ino, end_bytes } => {
            if view.get(Key::Inode(*ino))?.is_some() {
                return Ok(false);
            }
            let inode = Inode { size_bytes: *end_bytes, ..Inode::new(0o100_600, view.now()) };
            names::put_inode(view, *ino, &inode);
            view.count(1, 0);
        }
        Problem::Unnamed(ino) => return give_name(view, *ino),
        Problem::NamedOrphan(ino) | Problem::StrayOrphan(ino) => view.delete(Key::Orphan(*ino)),
        Problem::WrongLinks { ino, should, .. } => change_inode(view, *ino, |inode| inode.nlink = *should)?,
        Problem::WrongAllocated { ino, should, .. } => {
            change_inode(view, *ino, |inode| inode.allocated_bytes = *should)?;
        }
        Problem::StrayChunk { ino, index } | Problem::EmptyChunk { ino, index } => {
            view.delete(Key::Chunk { ino: *ino, index: *index });
        }
        Problem::BehindEnd { ino, size_bytes } => while map::truncate(view, *ino, *size_bytes)? != map::Step::Done {},
        Problem::LostExtent { ino, index, at, len, .. } => {
            let offset_bytes = index * CHUNK_BYTES + u64::from(*at);
            while map::punch(view, *ino, offset_bytes, u64::from(*len))? != map::Step::Done {}
        }
        Problem::StrayXattr { ino, number } => view.delete(Key::Xattr { ino: *ino, number: *number }),
        Problem::LostXattr { ino, name } => {
            change_inode(view, *ino, |inode| inode.xattrs.retain(|(other, _)| other != name))?;
        }
        Problem::StrayBlob(segment) => view.delete(Key::Blob(*segment)),
        Problem::NoRecord { segment, record } => view.put(Key::Segment(*segment), record.encode()),
        Problem::WrongLive { segment, should, .. } => {
            let key = Key::Segment(*segment);
            let Some(bytes) = view.get(key)? else { return Ok(false) };
            let Ok(record) = SegmentRecord::decode(&bytes) else { return Ok(false) };
            let dead_unix_ms = if *should == 0 { (view.now().0 / 1_000_000).max(1) as u64 } else { 0 };
            view.put(key, SegmentRecord { live_bytes: *should, dead_unix_ms, ..record }.encode());
        }
        Problem::WrongInodes { is, should } => {
            view.count(should.wrapping_sub(*is) as i64, 0);
            touch_root(view)?;
        }
        Problem::WrongDataBytes { is, should } => {
            view.count(0, should.wrapping_sub(*is) as i64);
            touch_root(view)?;
        }
        Problem::WrongNextIno { is, should } => {
            if should - is > SKIPPED_INOS_MAX {
                return Ok(false);
            }
            for _ in *is..*should {
                view.new_ino();
            }
            touch_root(view)?;
        }
    }
    Ok(true)
}

/// Makes a call that changes counters alone one that changes something.
fn touch_root(view: &mut View<'_>) -> Result<(), Stop> {
    change_inode(view, ROOT, |_| ())
}

fn change_inode(view: &mut View<'_>, ino: u64, change: impl FnOnce(&mut Inode)) -> Result<(), Stop> {
    let mut inode = names::inode(view, ino)?;
    change(&mut inode);
    names::put_inode(view, ino, &inode);
    Ok(())
}

/// Changes the names of one hash.
fn change_names<T>(
    view: &mut View<'_>,
    dir: u64,
    hash: u64,
    change: impl FnOnce(&mut Entries) -> T,
) -> Result<T, Stop> {
    let key = Key::Entries { dir, hash };
    let mut entries = match view.get(key)? {
        Some(bytes) => Entries::decode(&bytes).map_err(|_| ErrorKind::Io)?,
        None => Entries::default(),
    };
    let answer = change(&mut entries);
    match entries.0.is_empty() {
        true => view.delete(key),
        false => view.put(key, entries.encode()),
    }
    Ok(answer)
}

/// Removes an entry: the last one of its name and inode, since the first is the one that is found.
fn drop_name(view: &mut View<'_>, place: &Place) -> Result<(), Stop> {
    change_names(view, place.dir, place.hash, |entries| {
        let found = entries.0.iter().rposition(|entry| entry.name == place.name && entry.ino == place.ino);
        if let Some(index) = found {
            entries.free(index);
        }
    })
}

/// Adds an entry, unless its name exists or its hash is full.
fn add_name(view: &mut View<'_>, dir: u64, entry: Entry) -> Result<bool, Stop> {
    let hash = hash_of_name(view.salt(), &entry.name);
    change_names(view, dir, hash, |entries| {
        let is_taken = entries.0.iter().any(|other| other.name == entry.name);
        !is_taken && entries.add(entry)
    })
}

/// Moves an entry to the hash of its name. If that name exists there, the entry goes: no lookup has found it.
fn move_name(view: &mut View<'_>, place: &Place, hash: u64) -> Result<bool, Stop> {
    let type_bits = names::inode(view, place.ino)?.mode & 0o170_000;
    drop_name(view, place)?;
    if hash != place.hash {
        add_name(view, place.dir, Entry { name: place.name.clone(), ino: place.ino, type_bits })?;
    }
    Ok(true)
}

/// Takes the name of a directory of a cycle away, so that it gets one below the root.
fn leave_cycle(view: &mut View<'_>, dir: u64, parent: u64) -> Result<bool, Stop> {
    let (first, last) = (Key::Entries { dir: parent, hash: 0 }, Key::Entries { dir: parent, hash: u64::MAX });
    for (key, bytes) in view.scan(first, last, usize::MAX)? {
        let Key::Entries { hash, .. } = key else { continue };
        let entries = Entries::decode(&bytes).map_err(|_| ErrorKind::Io)?;
        if let Some(entry) = entries.0.into_iter().find(|entry| entry.ino == dir) {
            drop_name(view, &Place { dir: parent, hash, name: entry.name, ino: dir })?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Gives an inode without name one in `lost+found`.
fn give_name(view: &mut View<'_>, ino: u64) -> Result<bool, Stop> {
    let Some(dir) = lost_and_found(view)? else { return Ok(false) };
    let inode = names::inode(view, ino)?;
    let is_directory = NodeKind::of_mode(inode.mode) == NodeKind::Directory;
    let name = OsString::from(format!("#{ino}"));
    if !add_name(view, dir, Entry { name, ino, type_bits: inode.mode & 0o170_000 })? {
        return Ok(false);
    }
    if is_directory {
        change_inode(view, ino, |inode| inode.parent = dir)?;
        change_inode(view, dir, |inode| inode.nlink += 1)?;
    } else {
        change_inode(view, ino, |inode| inode.nlink = 1)?;
    }
    Ok(true)
}

/// The directory `lost+found`, made if there is none; `None` if that name is no directory, or if the next number for an
/// inode is used, because [`Problem::WrongNextIno`] could not be repaired.
fn lost_and_found(view: &mut View<'_>) -> Result<Option<u64>, Stop> {
    let name = OsStr::new(LOST_AND_FOUND);
    match names::lookup(view, ROOT, name) {
        Ok((ino, inode)) => Ok((NodeKind::of_mode(inode.mode) == NodeKind::Directory).then_some(ino)),
        Err(Stop::Failed(error)) if error.kind() == ErrorKind::NotFound => {
            let next_ino = view.counters().next_ino;
            if view.get(Key::Inode(next_ino))?.is_some() {
                return Ok(None);
            }
            Ok(Some(names::make(view, ROOT, name, &NewNode::Directory, 0o700, None)?.0))
        }
        Err(stop) => Err(stop),
    }
}
