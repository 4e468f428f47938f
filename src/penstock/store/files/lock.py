"""The lock file of a store: decides which process may write to the store.

A process owns a store while it holds the StoreLock. `lock_owner` returns the owner without taking the lock. The system
releases the lock when the process ends, however it ends, so a crash leaves no lock behind.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import StoreInUse, disk_refused

_FLOCK = "hhqqi"
"""Linux's struct flock: type, whence, start, length, process."""
_FLOCK_OF_MACOS = "qqihh"
"""The same of macOS: start, length, process, type, whence."""

_locked_here: dict[tuple[int, int], int] = {}
"""By (device, inode) of each lock file that this process has locked, its descriptor. See `StoreLock`."""
locks_change: Final = threading.RLock()
"""Held from the look at `_locked_here` to the end of what depends on it: the system's locks do not exclude threads."""
os.register_at_fork(  # a process that another thread's fork makes must not wait for a lock that nobody holds there
    before=locks_change.acquire, after_in_parent=locks_change.release, after_in_child=locks_change.release
)


class StoreLock:
    """Exclusive ownership: a POSIX record lock on the first byte of `lock`, as in RocketMQ.

    Such a lock belongs to the process. If the process closes any descriptor of the file, the system drops the lock. So
    this process must never open a lock file that it has locked. It looks the file up in `_locked_here` instead.
    """

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._identity = identity

    @classmethod
    def acquire(cls, path: Path, descriptor: int) -> StoreLock:
        """Locks the open file `descriptor`, which the lock owns from now on.

        Raises StoreInUse if another process holds the lock, StoreFailed if the disk refuses; closes `descriptor` then.
        """
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
        with locks_change:
            _locked_here.pop(self._identity, None)
            os.close(self._descriptor)

    def lend(self) -> StoreLock:
        """Returns this lock for a nested open of the same store. Closing the nested store does not release the lock."""
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
    """Returns the process id of the lock's holder; 0 if the lock is free. Neither acquires nor drops the lock.

    Returns -1 if the holder runs in another container or on another host, because it has no process id here.
    """
    with locks_change:
        return _lock_owner(path)


def _lock_owner(path: Path) -> int:
    if not path.exists():
        return 0
    if held_by_this_process(path):
        return os.getpid()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if sys.platform == "darwin":
            asked = struct.pack(_FLOCK_OF_MACOS, 0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
            _, _, owner, kind, _ = struct.unpack(_FLOCK_OF_MACOS, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        else:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, _, _, _, owner = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return 0 if kind == fcntl.F_UNLCK else int(owner) or -1


class HeldLocks(NamedTuple):
    """The locks that the caller of `MessageStore.open` already holds."""

    store: StoreLock | None = None
    job: StoreLock | None = None
    """The lock of the external dispatch job."""

    def lend(self) -> HeldLocks:
        """Returns these locks for a nested open; see `StoreLock.lend`."""
        return HeldLocks(*(None if lock is None else lock.lend() for lock in self))


NO_LOCKS: Final = HeldLocks()
