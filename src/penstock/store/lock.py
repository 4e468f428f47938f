"""The lock file of a store: which process may write to it.

One process owns a store, with one StoreLock; `lock_owner` only asks. The system releases the lock when the process
ends, however it ends, so a crash leaves no lock behind.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import StoreInUse, disk_refused

_FLOCK = "hhqqi"
"""Linux's struct flock: type, whence, start, length, process."""

_locked_here: dict[tuple[int, int], int] = {}
"""(device, inode) of each `lock` file that this process has locked, with its descriptor: see `StoreLock`."""


class StoreLock:
    """Exclusive ownership: a POSIX record lock on the first byte of `lock`, as in RocketMQ.

    Such a lock belongs to the process, and closing any descriptor of the file drops it. So this process never opens a
    `lock` that it has locked; a table of the locked ones is asked instead.
    """

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._identity = identity

    @classmethod
    def acquire(cls, path: Path, descriptor: int) -> StoreLock:
        """Locks the open file and owns its descriptor. Raises StoreInUse and closes it if another process has it."""
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(descriptor)
            raise StoreInUse(
                "the store is in use by another process; stop it, or read with `penstock store ...`",
                path=path.parent,
            ) from error
        try:
            os.pwrite(descriptor, b"lock", 0)
        except OSError as error:
            os.close(descriptor)
            raise disk_refused("cannot take the store's lock", path, 4, error) from error
        facts = os.fstat(descriptor)
        identity = (facts.st_dev, facts.st_ino)
        _locked_here[identity] = descriptor
        return cls(descriptor, identity)

    def release(self) -> None:
        _locked_here.pop(self._identity, None)
        os.close(self._descriptor)

    def lend(self) -> StoreLock:
        """The same lock for a nested open: closing that store does not release it."""
        return _LentLock(self._descriptor, self._identity)


class _LentLock(StoreLock):
    def release(self) -> None:
        pass


def held_by_this_process(path: Path) -> bool:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return False
    return (facts.st_dev, facts.st_ino) in _locked_here


def lock_owner(path: Path) -> int:
    """Process id of the holder of the lock `path`, 0 if it is free; neither acquires nor drops the lock.

    -1 for a process of another container or host, which has no id here.
    """
    if not path.exists():
        return 0
    if held_by_this_process(path):
        return os.getpid()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, owner = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return 0 if kind == fcntl.F_UNLCK else int(owner) or -1


class HeldLocks(NamedTuple):
    """The locks that the caller of `MessageStore.open` already holds."""

    store: StoreLock | None = None
    job: StoreLock | None = None
    """The lock of external dispatch."""

    def lend(self) -> HeldLocks:
        """The same locks for a nested open; see `StoreLock.lend`."""
        return HeldLocks(*(None if lock is None else lock.lend() for lock in self))


NO_LOCKS: Final = HeldLocks()
