"""Anonymous shared memory: makes the file that an arena maps, or says how much is missing.

`memfd_create` is the first choice: such a file has no name, does not count against the size of `/dev/shm`,
and goes with the last process that has it open. Where the kernel refuses it, an unlinked file in `/dev/shm`
does the same within that file system's size. Either is filled with real pages here, so that running out is an
error now and never a bus error later.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from rollout_contract.errors import ConfigurationError

SHM_DIRECTORY = Path("/dev/shm")  # noqa: S108 (not a temporary file: the kernel's shared memory)
CGROUP_FILES = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def memory_file(nbytes: int, *, purpose: str, directory: Path | None = None) -> int:
    """A descriptor (closed on exec) of `nbytes` of shared memory, all of them reserved.

    `directory` asks for an unlinked file in that file system instead of an anonymous one.
    Raises ConfigurationError where there is not enough.
    """
    fd = _anonymous_file() if directory is None else None
    if fd is None and directory is None:
        directory = SHM_DIRECTORY
    try:
        available = available_bytes(directory)
        if available is not None and nbytes > available:
            raise _shortage(nbytes, available, purpose, directory)
        if fd is None:
            assert directory is not None
            fd = _unlinked_file(directory)
        os.ftruncate(fd, max(nbytes, 1))
        os.posix_fallocate(fd, 0, max(nbytes, 1))
    except BaseException as error:
        if fd is not None:
            os.close(fd)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise _shortage(nbytes, available_bytes(directory) or 0, purpose, directory) from error
        raise
    return fd


def mapped(fd: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a memory file, shared. The mapping goes with the last array that views it.

    Python's own mmap objects keep a descriptor of the file open as long as they live; a batch that somebody keeps must not.
    """
    size = max(nbytes, 1)
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address in (None, _MAP_FAILED):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {size} bytes of shared memory: {os.strerror(code)}")
    buffer = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(buffer, libc.munmap, address, size).atexit = False
    return np.ctypeslib.as_array(buffer)


_MAP_FAILED = ctypes.c_void_p(-1).value


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def available_bytes(directory: Path | None = None) -> int | None:
    """Bytes that shared memory may still take: what the machine and the control group leave, and the file system's room."""
    limits = [limit for limit in (_machine_bytes(), _cgroup_bytes()) if limit is not None]
    if directory is not None:
        room = os.statvfs(directory)
        limits.append(room.f_bavail * room.f_frsize)
    return min(limits, default=None)


def _anonymous_file() -> int | None:
    """A file without a name anywhere; None where the kernel has none to give."""
    try:
        return os.memfd_create("rollout-arena", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return None


def _unlinked_file(directory: Path) -> int:
    return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _machine_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _cgroup_bytes() -> int | None:
    for limit_file, usage_file in CGROUP_FILES:
        try:
            limit, usage = limit_file.read_text().strip(), usage_file.read_text().strip()
        except OSError:
            continue
        if limit.isdigit() and usage.isdigit():
            return max(0, int(limit) - int(usage) + _reclaimable_bytes(limit_file.parent / "memory.stat"))
    return None


def _reclaimable_bytes(stat_file: Path) -> int:
    """What the group's usage counts as used although the kernel gives it back on demand: cached files."""
    try:
        fields = dict(line.split(maxsplit=1) for line in stat_file.read_text().splitlines())
    except OSError:
        return 0
    return int(fields.get("total_inactive_file", fields.get("inactive_file", "0")))


def _shortage(needed: int, available: int, purpose: str, directory: Path | None) -> ConfigurationError:
    where = f"in {directory}" if directory else "on this machine (or in this pod's memory limit)"
    return ConfigurationError(
        f"the shared memory for {purpose} needs {needed} bytes, but {available} are available {where}. "
        "Use fewer environments or frames per batch, or give it more memory."
    )
