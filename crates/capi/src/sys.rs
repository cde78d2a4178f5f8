//! The exported functions.
//!
//! # Invariants
//! - **C1** A handle is the address of a box that the call which made it has given away. The call that ends it takes
//!   the box back, unless it returns an error after which the header says that the handle is still valid.
//! - **C2** Every pointer is checked for NULL. Otherwise the caller guarantees what the header asks for: it is a live
//!   handle, a string, or a buffer of the given size.
//! - **C3** No panic leaves a function: it is reported as `EIO`.

#![allow(unsafe_code, reason = "pointers of C cannot be checked; the header says what callers guarantee (C2)")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::slice;
use std::time::Duration;

use crate::calls::{Cache, File, Volume};
use crate::failure::{self, Failure};

/// `SLACKWATER_VERSION` in the header.
const VERSION: u32 = 100;

/// Runs a call and turns its outcome into a number (C3).
fn run<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, c_int> {
    let outcome = catch_unwind(AssertUnwindSafe(call));
    outcome.unwrap_or_else(|_| Err(Failure::new(libc::EIO, "internal error: a panic"))).map_err(Failure::report)
}

fn status(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    run(call).err().unwrap_or(0)
}

fn count(call: impl FnOnce() -> Result<u64, Failure>) -> i64 {
    run(call).map_or_else(i64::from, |count| i64::try_from(count).unwrap_or(i64::MAX))
}

fn null(what: &str) -> Failure {
    Failure::new(libc::EINVAL, format!("{what} is NULL"))
}

/// # Safety
/// `handle` is NULL or a live handle (C2).
unsafe fn borrowed<'h, T>(handle: *mut T, what: &str) -> Result<&'h T, Failure> {
    // SAFETY: C2; the box is not taken back before the caller ends the handle (C1).
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// # Safety
/// `handle` is a live handle, which is used for the last time.
unsafe fn taken<T>(handle: *mut T) -> T {
    // SAFETY: the box was given away by `give` (C1), and nothing uses the handle any more.
    *unsafe { Box::from_raw(handle) }
}

/// Stores the handle of a new `value` (C1).
///
/// # Safety
/// `to` is NULL or may be written to.
unsafe fn give<T>(to: *mut *mut T, what: &str, value: impl FnOnce() -> Result<T, Failure>) -> Result<(), Failure> {
    // SAFETY: as the caller guarantees.
    let to = unsafe { to.as_mut() }.ok_or_else(|| null(what))?;
    *to = Box::into_raw(Box::new(value()?));
    Ok(())
}

/// # Safety
/// `text` is NULL or a string.
unsafe fn string<'t>(text: *const c_char, what: &str) -> Result<&'t [u8], Failure> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: it is a string, which the caller keeps during the call.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// The version of this interface.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn slackwater_version() -> u32 {
    VERSION
}

/// The message of the last failure of this thread.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn slackwater_message() -> *const c_char {
    failure::with_last(CStr::as_ptr)
}

/// Makes an engine, or opens one that a process has left.
///
/// # Safety
/// `arena` is NULL or a string, and `engine` may be written to.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_engine_open(
    cache_bytes: u64,
    arena: *const c_char,
    engine: *mut *mut Cache,
) -> c_int {
    status(|| {
        // SAFETY: as the caller guarantees.
        let arena = (!arena.is_null()).then(|| unsafe { string(arena, "arena") }).transpose()?;
        // SAFETY: as the caller guarantees.
        unsafe { give(engine, "engine", || Cache::open(cache_bytes, arena.map(path))) }
    })
}

/// Ends an engine without volumes.
///
/// # Safety
/// `engine` is NULL or a live handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_engine_close(engine: *mut Cache) -> c_int {
    status(|| {
        // SAFETY: as the caller guarantees.
        unsafe { borrowed(engine, "engine") }?.check_idle()?;
        // SAFETY: the engine ends, whatever this returns (C1).
        unsafe { taken(engine) }.close()
    })
}

/// Mounts a directory.
///
/// # Safety
/// `engine` is NULL or a live handle, the strings are strings, and `volume` may be written to.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_mount(
    engine: *mut Cache,
    name: *const c_char,
    directory: *const c_char,
    volume: *mut *mut Volume,
) -> c_int {
    status(|| {
        // SAFETY: as the caller guarantees.
        let engine = unsafe { borrowed(engine, "engine") }?;
        // SAFETY: as the caller guarantees.
        let name = unsafe { string(name, "name") }?;
        // SAFETY: as the caller guarantees.
        let directory = unsafe { string(directory, "directory") }?;
        let name = str::from_utf8(name).map_err(|_| Failure::new(libc::EINVAL, "the name is not UTF-8"))?;
        // SAFETY: as the caller guarantees.
        unsafe { give(volume, "volume", || engine.mount(name, path(directory))) }
    })
}

/// Makes all data of a volume durable.
///
/// # Safety
/// `volume` is NULL or a live handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_sync(volume: *mut Volume) -> c_int {
    // SAFETY: as the caller guarantees.
    status(|| unsafe { borrowed(volume, "volume") }?.sync())
}

/// Ends a volume, or changes nothing.
///
/// # Safety
/// `volume` is NULL or a live handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_umount(volume: *mut Volume, deadline_ms: u32) -> c_int {
    status(|| {
        let deadline = (deadline_ms > 0).then(|| Duration::from_millis(deadline_ms.into()));
        // SAFETY: as the caller guarantees.
        unsafe { borrowed(volume, "volume") }?.umount(deadline)?;
        // SAFETY: it has ended, so the caller does not use the handle any more.
        drop(unsafe { taken(volume) });
        Ok(())
    })
}

/// Opens a file.
///
/// # Safety
/// `volume` is NULL or a live handle, `path` is a string, and `file` may be written to.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_open(
    volume: *mut Volume,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut *mut File,
) -> c_int {
    status(|| {
        // SAFETY: as the caller guarantees.
        let volume = unsafe { borrowed(volume, "volume") }?;
        // SAFETY: as the caller guarantees.
        let path = unsafe { string(path, "path") }?;
        // SAFETY: as the caller guarantees.
        unsafe { give(file, "file", || volume.open(path, flags, mode)) }
    })
}

/// Reads bytes.
///
/// # Safety
/// `file` is NULL or a live handle, and `buffer` is NULL or has `size` bytes that may be written to.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_read(file: *mut File, buffer: *mut c_void, size: usize, offset: u64) -> i64 {
    count(|| {
        // SAFETY: as the caller guarantees.
        let file = unsafe { borrowed(file, "file") }?;
        if buffer.is_null() {
            return Err(null("buffer"));
        }
        // SAFETY: as the caller guarantees; the library only writes to it.
        let buffer = unsafe { slice::from_raw_parts_mut(buffer.cast::<u8>(), size) };
        Ok(file.read(buffer, offset)? as u64)
    })
}

/// Writes bytes.
///
/// # Safety
/// `file` is NULL or a live handle, and `buffer` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_write(
    file: *mut File,
    buffer: *const c_void,
    size: usize,
    offset: u64,
) -> i64 {
    count(|| {
        // SAFETY: as the caller guarantees.
        let file = unsafe { borrowed(file, "file") }?;
        if buffer.is_null() {
            return Err(null("buffer"));
        }
        // SAFETY: as the caller guarantees.
        let bytes = unsafe { slice::from_raw_parts(buffer.cast::<u8>(), size) };
        Ok(file.write(bytes, offset)? as u64)
    })
}

/// The size of a file.
///
/// # Safety
/// `file` is NULL or a live handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_size(file: *mut File) -> i64 {
    // SAFETY: as the caller guarantees.
    count(|| Ok(unsafe { borrowed(file, "file") }?.size()))
}

/// Makes the data of a file durable.
///
/// # Safety
/// `file` is NULL or a live handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_fsync(file: *mut File) -> c_int {
    // SAFETY: as the caller guarantees.
    status(|| unsafe { borrowed(file, "file") }?.fsync())
}

/// Closes a file, and returns an error that it has not reported yet.
///
/// # Safety
/// `file` is NULL or a live handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn slackwater_close(file: *mut File) -> c_int {
    status(|| {
        if file.is_null() {
            return Err(null("file"));
        }
        // SAFETY: the call ends the handle, whatever it returns (C1).
        unsafe { taken(file) }.close()
    })
}
