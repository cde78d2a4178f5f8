//! Data that dead mounts left of the same source, or of a directory above or below it.
//!
//! Data of this source in other local files would overwrite newer data later, so the mount is refused. Data of a
//! directory above or below is written back as soon as this process owns the source, before any program can write.

use rustix::fs::OFlags;
use slackwater_control::exit::Failure;
use slackwater_control::output::shell;
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::registry::{Entry, Found};
use crate::source::directory::Directory;
use crate::source::opened::Opened;
use crate::source::{Source, lock};
use crate::volume::{arena_file, rescued};

/// Whether the arena of a dead mount belongs to a directory above or below the source of `entry`, and not to the same
/// one.
pub(super) fn is_beside(dead: &Entry, entry: &Entry) -> bool {
    let is_other = dead.arena != entry.arena && !dead.source.is_same(&entry.source);
    is_other && dead.source.conflicts_with(&entry.source)
}

/// Writes back what a dead mount of a directory above or below left.
pub(super) fn write_back(found: &Found, alive: &[&Entry], say: &dyn Fn(&str)) -> Result<(), Failure> {
    let dead = &found.entry;
    let source = dead.source.name();
    let Some(left) = arena_file::left_in(&dead.arena)? else {
        let what =
            format!("{} has data of {}, and another process uses it", dead.arena.printable(), source.printable());
        return Err(Failure::busy(what).advise("wait until that process ends, or mount that source first"));
    };
    if !left.iter().any(|(volume, _)| dead.is_meant_by(volume)) {
        return Ok(());
    }
    let (place, lock) = Directory::open(source, OFlags::RDONLY)
        .map_err(|error| not_written_back(dead, &format!("cannot open {}: {error}", source.printable())))?;
    if place.identity(alive).ok().as_ref() != Some(&dead.identity) {
        let what = format!("{} is a different directory now, or its file system was remounted", source.printable());
        return Err(not_written_back(dead, &what));
    }
    if lock::take(&place, &lock, say).map_or(true, |owner| owner.is_some()) {
        return Err(not_written_back(dead, &format!("{} is locked by another process", source.printable())));
    }
    say(&format!("an earlier mount of {} died with unwritten data: writing it back", source.printable()));
    if let Some(left) = arena_file::open_left(&dead.arena, &dead.identity)? {
        let opened = Opened::Directory { path: source.to_path_buf(), mark: None };
        let rescued = arena_file::write_back(left, dead, &opened, |_| ())?;
        rescued::print_all(&rescued, source);
    }
    found.remove();
    Ok(())
}

fn not_written_back(dead: &Entry, why: &str) -> Failure {
    let (source, arena) = (dead.source.name().printable(), dead.arena.printable());
    Failure::failed(format!(
        "an earlier mount of {source} left data in {arena}, which must be written back first: {why}"
    ))
    .advise(format!("mount it once: slackwater mount {} MOUNTPOINT", shell::word(dead.source.name())))
    .advise(format!("to abandon that data, move the arena away: {}", arena_file::away(&dead.arena)))
}

/// Whether a mount of `entry` takes over what `dead` left. A reader of an object volume has nothing, and takes nothing
/// over from a writer.
fn is_successor(entry: &Entry, dead: &Entry) -> bool {
    dead.source.is_same(&entry.source) && (dead.source.is_reader() || !entry.source.is_reader())
}

/// Fails if an earlier mount of this source left data in other local files: written back later, it would overwrite newer
/// data.
pub(super) fn check_left_elsewhere<'a>(dead: impl Iterator<Item = &'a Found>, entry: &Entry) -> Result<(), Failure> {
    for dead in dead.map(|found| &found.entry) {
        let is_about_this = match entry.source.is_reader() {
            true => is_successor(entry, dead),
            false => dead.source.is_same(&entry.source) || dead.source.name() == entry.source.name(),
        };
        if dead.arena == entry.arena || !is_about_this {
            continue;
        }
        check_log(dead, entry)?;
        let Some(mut left) = arena_file::left_in(&dead.arena)? else {
            // A mount process does not use a file with data of another source. The next daemon takes over the file of a
            // dead one, and removes the entries whose data it has written back.
            let Some(daemon) = &dead.daemon else { continue };
            let (source, daemon) = (dead.source.name().printable(), shell::word(daemon));
            let what = format!("a daemon died with unwritten data of {source}, and the next daemon has taken it over");
            return Err(Failure::failed(what).advise(format!(
                "mount it there to write the data back: slackwater mount --daemon --socket {daemon}"
            )));
        };
        if left.is_empty() && dead.daemon.is_none() {
            arena_file::remove(&dead.arena)?; // it only holds memory
        }
        left.retain(|(volume, _)| dead.is_meant_by(volume));
        let bytes: u64 = left.iter().map(|(_, bytes)| bytes).sum();
        if bytes > 0 {
            // Directory and number may be the same on another file system.
            let is_same = left.iter().any(|(volume, _)| volume == entry.identity.as_bytes());
            let (bytes, source, arena) = (size::text(bytes), dead.source.name().printable(), dead.arena.printable());
            let what = format!("an earlier mount of {source} died with {bytes} of unwritten data, which is in {arena}");
            let advice = match (is_same, &dead.source) {
                (true, _) => format!("mount it with --arena {} first to write the data back", shell::word(&dead.arena)),
                (false, Source::Directory(_)) => {
                    format!("{source} is a different directory now, or its file system was remounted")
                }
                (false, Source::Object(_)) => format!("{source} is a different volume now"),
            };
            let away = format!("to abandon that data, move the arena away: {}", arena_file::away(&dead.arena));
            return Err(Failure::failed(what).advise(advice).advise(away));
        }
    }
    Ok(())
}

/// Fails if a dead writer of this object volume left changes in a local log that this mount would not find.
fn check_log(dead: &Entry, entry: &Entry) -> Result<(), Failure> {
    let (Source::Object(left), Source::Object(volume)) = (&dead.source, &entry.source) else { return Ok(()) };
    let log = left.log_dir(&dead.arena);
    if left.id != volume.id || log == volume.log_dir(&entry.arena) || !left.has_log(&dead.arena) {
        return Ok(());
    }
    let (source, shown) = (dead.source.name().printable(), log.printable());
    Err(Failure::failed(format!("an earlier mount of {source} died with changes that are only in {shown}"))
        .advise(format!("mount it with --arena {} first to bring them to the store", shell::word(&dead.arena)))
        .advise(format!("to abandon those changes, move the log away: {}", arena_file::away(&log))))
}

/// Removes obsolete entries of dead mounts: this source is taken over, or their local files are gone.
pub(super) fn forget<'a>(dead: impl Iterator<Item = &'a Found>, entry: &Entry) {
    dead.filter(|found| is_successor(entry, &found.entry) || !found.entry.has_local_files()).for_each(Found::remove);
}
