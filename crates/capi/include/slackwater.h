/*
 * Slackwater: directories behind a page cache with write-back.
 *
 * An engine has one cache of fixed size. Volumes are directories mounted in it, and files are opened by their path in a volume. The
 * programs of this machine see nothing of it: a volume is not a mount of the kernel.
 *
 *   - Writes return when the data is in the cache. slackwater_fsync returns 0 only when it is durable in the directory.
 *   - Each open file reports a failed write-back once, from slackwater_fsync or slackwater_close. The data stays in the cache and is
 *     written again.
 *   - If the cache is a file on tmpfs, it outlives a killed process: open it and mount the same directories under the same names.
 *
 * Functions return 0 or a count, or a negative errno. slackwater_message then says more. All functions may be called from any
 * thread; a handle may be used by several threads at once, except that the call that ends it must be the last one. Not for use after fork().
 */
#ifndef SLACKWATER_H
#define SLACKWATER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A cache, with the threads that write it back. */
typedef struct slackwater_engine slackwater_engine;
/* A directory behind the cache. */
typedef struct slackwater_volume slackwater_volume;
/* An open file. */
typedef struct slackwater_file slackwater_file;

/* Flags of slackwater_open. Files are always open for reading and writing. */
#define SLACKWATER_CREATE 1u    /* make the file if it does not exist */
#define SLACKWATER_EXCLUSIVE 2u /* with SLACKWATER_CREATE: fail with EEXIST if it does */
#define SLACKWATER_TRUNCATE 4u  /* set its size to 0 */

/* The version of this interface. It grows with each addition; nothing is removed while the number of hundreds stays the same. */
#define SLACKWATER_VERSION 100u

/* The version of the library, to compare with SLACKWATER_VERSION. */
uint32_t slackwater_version(void);

/*
 * What the last failed call of this thread says. Never NULL; valid until the next failing call of this thread.
 */
const char *slackwater_message(void);

/*
 * Makes an engine with a cache of `cache_bytes`, which is allocated at once.
 *
 * `arena` is a file on tmpfs that holds the cache, such as /dev/shm/my-server.arena. If it exists, it is opened with all data in it,
 * and `cache_bytes` is ignored. With NULL the cache ends with the process.
 *
 * Errors: -ENOMEM, -ENOSPC (it does not fit), -EBUSY (another process has the file), -EINVAL.
 */
int slackwater_engine_open(uint64_t cache_bytes, const char *arena, slackwater_engine **engine);

/*
 * Ends an engine, and removes the file of its cache unless that has data of volumes that were not mounted again. The handle is
 * invalid then, except after -EBUSY.
 *
 * Errors: -EBUSY while a volume is mounted; those of removing the file.
 */
int slackwater_engine_close(slackwater_engine *engine);

/*
 * Mounts a directory, which nothing else may mount or change meanwhile. `name` identifies its data in the cache after a crash: always use the same name for the same directory. Data
 * that a killed process left under that name is part of the volume at once.
 *
 * Errors: those of opening the directory; -EBUSY (the name is taken).
 */
int slackwater_mount(slackwater_engine *engine, const char *name, const char *directory, slackwater_volume **volume);

/*
 * Makes all data of a volume durable in its directory.
 */
int slackwater_sync(slackwater_volume *volume);

/*
 * Writes everything back and ends the volume. All its files must be closed. With `deadline_ms` 0 there is no deadline. The handle is
 * invalid if this returns 0; otherwise nothing has changed, and nothing is lost.
 *
 * Errors: -EBUSY (files are open), -ETIMEDOUT (the deadline passed).
 */
int slackwater_umount(slackwater_volume *volume, uint32_t deadline_ms);

/*
 * Opens the file at `path`, names separated by slashes from the root of the volume. Symbolic links are not followed. `mode` has the
 * permissions of a new file.
 */
int slackwater_open(slackwater_volume *volume, const char *path, uint32_t flags, uint32_t mode, slackwater_file **file);

/*
 * Reads up to `size` bytes at `offset`. Returns their number, which is smaller only at the end of the file.
 */
int64_t slackwater_read(slackwater_file *file, void *buffer, size_t size, uint64_t offset);

/*
 * Writes `size` bytes at `offset`, and returns `size`. Waits while the cache is full of unwritten data.
 */
int64_t slackwater_write(slackwater_file *file, const void *buffer, size_t size, uint64_t offset);

/*
 * The size of the file in bytes.
 */
int64_t slackwater_size(slackwater_file *file);

/*
 * Returns 0 when everything written to the file before is durable in the directory. Otherwise the data is kept and written again.
 */
int slackwater_fsync(slackwater_file *file);

/*
 * Closes a file. The handle is invalid then, whatever this returns: 0, or an error of write-back that this handle has not reported
 * yet. Unwritten data stays in the cache.
 */
int slackwater_close(slackwater_file *file);

#ifdef __cplusplus
}
#endif

#endif
