#!/usr/bin/env python3
"""Appends a line to a file behind the cache, as notes.c does.

    LIBRARY=../../../target/release/libslackwater_c.so ./notes.py DIRECTORY LINE
"""

import ctypes
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

CREATE = 1


class Slackwater:
    """The library, whose failed calls raise OSError."""

    FUNCTIONS = {
        "engine_open": (c_int, [c_uint64, c_char_p, POINTER(c_void_p)]),
        "engine_close": (c_int, [c_void_p]),
        "mount": (c_int, [c_void_p, c_char_p, c_char_p, POINTER(c_void_p)]),
        "sync": (c_int, [c_void_p]),
        "umount": (c_int, [c_void_p, c_uint32]),
        "open": (c_int, [c_void_p, c_char_p, c_uint32, c_uint32, POINTER(c_void_p)]),
        "read": (c_int64, [c_void_p, c_char_p, c_size_t, c_uint64]),
        "write": (c_int64, [c_void_p, c_char_p, c_size_t, c_uint64]),
        "size": (c_int64, [c_void_p]),
        "fsync": (c_int, [c_void_p]),
        "close": (c_int, [c_void_p]),
    }

    def __init__(self, path):
        library = ctypes.CDLL(path)
        library.slackwater_message.restype = c_char_p
        for name, (result, arguments) in self.FUNCTIONS.items():
            function = getattr(library, "slackwater_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, self.checked(function, library.slackwater_message))

    @staticmethod
    def checked(function, message):
        def call(*arguments):
            outcome = function(*arguments)
            if outcome < 0:
                raise OSError(-outcome, message().decode())
            return outcome

        return call


def main(directory, line):
    slackwater = Slackwater(os.environ.get("LIBRARY", "libslackwater_c.so"))
    engine, volume, file = c_void_p(), c_void_p(), c_void_p()
    slackwater.engine_open(64 << 20, None, byref(engine))
    slackwater.mount(engine, b"notes", os.fsencode(directory), byref(volume))
    try:
        slackwater.open(volume, b"missing", 0, 0, byref(file))
    except FileNotFoundError as error:
        print("as expected:", error.strerror)

    slackwater.open(volume, b"notes.txt", CREATE, 0o644, byref(file))
    bytes_to_write = os.fsencode(line) + b"\n"
    slackwater.write(file, bytes_to_write, len(bytes_to_write), slackwater.size(file))
    slackwater.fsync(file)
    buffer = ctypes.create_string_buffer(4096)
    length = slackwater.read(file, buffer, len(buffer), 0)
    print(f"{length} bytes:\n{buffer.raw[:length].decode()}", end="")
    slackwater.close(file)
    slackwater.umount(volume, 0)
    slackwater.engine_close(engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
