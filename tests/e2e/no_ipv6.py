"""`python no_ipv6.py WORD...`: Penstock where sockets of IPv6 are as unknown as to a kernel without
it, by a filter of system calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

AF_INET6 = 10


def without_ipv6() -> None:
    """For this process, for good."""
    load, equal, give = 0x20, 0x15, 0x06
    number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EAFNOSUPPORT
    program = [
        (load, 0, 0, 0),  # the number of the call
        (equal, 0, 3, number),
        (load, 0, 0, 16),  # its first argument
        (equal, 0, 1, AF_INET6),
        (give, 0, 0, refuse),
        (give, 0, 0, allow),
    ]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    held = ctypes.create_string_buffer(code)
    filters = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, by_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(seccomp, by_filter, filters, 0, 0) == 0


if __name__ == "__main__":
    without_ipv6()
    os.execv(sys.executable, [sys.executable, "-m", "penstock", *sys.argv[1:]])
