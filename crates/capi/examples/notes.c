/*
 * Appends a line to a file behind the cache, makes it durable, and prints the file.
 *
 *     cc notes.c -I ../include -L ../../../target/release -lslackwater_c -o notes
 *     LD_LIBRARY_PATH=../../../target/release ./notes DIRECTORY LINE
 *     LD_LIBRARY_PATH=../../../target/release ./notes DIRECTORY LINE /dev/shm/notes.arena killed
 *
 * With the name of an arena, the cache outlives the process: with `killed`, the program kills itself before the line is durable, and
 * the next run with that arena finds it.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "slackwater.h"

/* Ends the program if a call has failed. */
static int64_t checked(const char *what, int64_t outcome)
{
    if (outcome < 0) {
        fprintf(stderr, "%s: %s (%s)\n", what, slackwater_message(), strerror((int)-outcome));
        exit(1);
    }
    return outcome;
}

int main(int count, char **words)
{
    slackwater_engine *engine;
    slackwater_volume *volume;
    slackwater_file *file;
    char buffer[4096];
    int64_t size, length;

    if (count < 3) {
        fprintf(stderr, "usage: %s DIRECTORY LINE [ARENA [killed]]\n", words[0]);
        return 2;
    }
    if (slackwater_version() / 100 != SLACKWATER_VERSION / 100) {
        fprintf(stderr, "the library has another interface\n");
        return 1;
    }
    checked("engine", slackwater_engine_open(64u << 20, count > 3 ? words[3] : NULL, &engine));
    checked("mount", slackwater_mount(engine, "notes", words[1], &volume));

    /* Errors are negative errno values. */
    if (slackwater_open(volume, "missing", 0, 0, &file) != -ENOENT)
        return 1;
    if (slackwater_engine_close(engine) != -EBUSY)
        return 1;

    checked("open", slackwater_open(volume, "notes.txt", SLACKWATER_CREATE, 0644, &file));
    size = checked("size", slackwater_size(file));
    length = (int64_t)strlen(words[2]);
    snprintf(buffer, sizeof buffer, "%s\n", words[2]);
    checked("write", slackwater_write(file, buffer, (size_t)length + 1, (uint64_t)size));
    if (count > 4)
        raise(SIGKILL); /* the line is in the arena, and not in the directory */
    checked("fsync", slackwater_fsync(file));

    length = checked("read", slackwater_read(file, buffer, sizeof buffer, 0));
    printf("%" PRId64 " bytes:\n%.*s", length, (int)length, buffer);

    if (slackwater_umount(volume, 1000) != -EBUSY) /* the file is open */
        return 1;
    checked("close", slackwater_close(file));
    checked("sync", slackwater_sync(volume));
    checked("umount", slackwater_umount(volume, 0));
    checked("close of the engine", slackwater_engine_close(engine));
    return 0;
}
