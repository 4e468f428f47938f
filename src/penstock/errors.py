"""The exception tree. Every error states in one sentence what is wrong, where, and what to do.

    PenstockError
    ├── BadSettings     a setting is unknown, malformed or conflicts with others
    ├── BadMessage      a message cannot be stored: topic, properties, size
    ├── CorruptData     bytes do not match their format; carries path, offset, expected and found
    ├── BadStore        a store cannot be opened as it is: wrong file size, foreign file, missing folder
    ├── StoreInUse      another process, or this one, owns the store
    ├── StoreFailed     the disk refused an operation: full, read-only, or a failed sync
    ├── BadFrame        bytes from the network are not a remoting frame; the connection must be closed
    ├── BadRequest      the arguments or body of a frame do not fit its code
    ├── Unreachable     a peer cannot be connected to, or its connection is lost
    ├── NoAnswer        a peer did not answer in time
    ├── Refused         a peer answered with an error; carries its code and remark
    ├── NoRoute         no name server knows the topic, or a broker has no address
    ├── DataLost        messages to be read no longer exist
    ├── BadQuery        a query cannot be run: its syntax, its names or its types
    └── MissingPackage  an optional package is needed and not installed

Damage found by a scan is not an exception: the scan reports it as data.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class PenstockError(Exception):
    """Root of all errors. `path`, `offset`, `expected` and `found` are set if they are known."""

    def __init__(
        self,
        message: str,
        *,
        path: str | Path | None = None,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        super().__init__(message)
        self.path = None if path is None else str(path)
        self.offset = offset
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.offset is None else f" (at offset {self.offset})"
        detail = ""
        if self.expected is not None:
            detail = f"; expected {self.expected}, found {self.found}"
        return f"{where}{self.args[0]}{detail}{at}"


class BadSettings(PenstockError):
    """A setting is unknown or malformed, or conflicts with others."""


class BadMessage(PenstockError):
    """A message cannot be stored."""


class CorruptData(PenstockError):
    """Bytes do not match their format."""


class BadStore(PenstockError):
    """A store cannot be opened as it is."""


class StoreInUse(PenstockError):
    """Another process owns the store, or this process has already opened it."""


class StoreFailed(PenstockError):
    """The disk refused an operation: full, read-only, or a failed sync."""


class BadFrame(PenstockError):
    """Bytes from the network are not a remoting frame. The reader must close the connection."""


class BadRequest(PenstockError):
    """The arguments or the body of a frame do not fit its request code. The receiver answers with an error."""


class Unreachable(PenstockError):
    """A peer cannot be connected to, or its connection is lost."""


class NoAnswer(PenstockError):
    """A peer did not answer in time. It may or may not have executed the request."""


class Refused(PenstockError):
    """A peer answered with an error. `code` is the response code, `remark` is the peer's text. `msg_id` is the id that
    the answer to a send names all the same. With SYSTEM_ERROR the message is in the broker's log then, and it is not
    known whether it stays there.
    """

    def __init__(self, message: str, *, code: int, remark: str = "", msg_id: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.remark = remark
        self.msg_id = msg_id


class NoRoute(PenstockError):
    """No name server knows the topic, or a broker has no address."""


class DataLost(PenstockError):
    """Messages to be read no longer exist."""


class BadQuery(PenstockError):
    """A query cannot be run."""


class MissingPackage(PenstockError):
    """An optional package is needed and not installed."""


def disk_refused(what: str, path: Path, size: int, error: OSError) -> StoreFailed:
    """Returns the StoreFailed for an OSError. `what` names the operation, which needed `size` bytes at `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFailed(
            f"{what}: no space left on the disk for {size} bytes; free some space, writing resumes by itself", path=path
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreFailed(f"{what}: the folder is read-only for this user; check its owner and mount", path=path)
    return StoreFailed(f"{what}: {os.strerror(error.errno or 0)}; check the disk and the permissions", path=path)
